#include "gateway/prepare.h"

#include <algorithm>
#include <random>

#include "api/errors.h"
#include "api/image_url.h"
#include "api/parse_chat.h"
#include "api/parse_completion.h"
#include "gateway/media.h"

namespace weft::gateway {
namespace {

using api::ApiError;
using api::Parsed;

constexpr size_t kChoicesMax = 256;

struct Target {
  std::shared_ptr<const ServedModel> model;
  ReplicaFacts facts;
};

Parsed<Target> find_model(const PrepareInput& input, const std::string& name) {
  auto found = input.models.find(name);
  if (found == input.models.end() && name.empty() && !input.models.empty())
    found = input.models.begin();
  if (found == input.models.end()) return api::model_not_found(name);
  return Target{found->second.first, found->second.second};
}

Parsed<Target> find_ready_model(const PrepareInput& input, const std::string& name) {
  auto target = find_model(input, name);
  if (target.ok() && !target->facts.ready) return api::unavailable(target->facts.not_ready_reason);
  return target;
}

// Output tokens a prompt may get: what was asked, or the default, cut to what the context leaves.
Parsed<uint32_t> output_limit(int64_t prompt, std::optional<int64_t> asked, int64_t fallback,
                              const ReplicaFacts& facts) {
  const int64_t room = facts.max_context - prompt;
  if (room < 1) return api::context_length_exceeded(facts.max_context, prompt + 1);
  return static_cast<uint32_t>(std::min(asked.value_or(fallback), room));
}

api::Check check_ids(const std::vector<int32_t>& ids, int32_t vocab, const std::string& param) {
  for (int32_t id : ids)
    if (id < 0 || id >= vocab)
      return api::bad_request(
          param, fmt::format("token id {} is outside the vocabulary of {} tokens", id, vocab));
  return std::nullopt;
}

api::Check check_sampling(const api::SamplingParams& s, int32_t vocab) {
  for (const auto& [id, bias] : s.logit_bias)
    if (id < 0 || id >= vocab)
      return api::bad_request(
          "logit_bias",
          fmt::format("token id {} is outside the vocabulary of {} tokens", id, vocab));
  return check_ids(s.stop_token_ids, vocab, "stop_token_ids");
}

ApiError invalid(const Error& error) {
  // The renderer's messages begin with the path of the field: "messages[3].tool_call_id: ...".
  const size_t colon = error.message.find(": ");
  const std::string head = error.message.substr(0, colon == std::string::npos ? 0 : colon);
  const bool is_path = !head.empty() && head.find(' ') == std::string::npos;
  return api::bad_request(is_path ? head : "messages", error.message);
}

Parsed<text::K3Prompt> render(const ServedModel& model, const api::ChatRequest& request,
                              std::vector<PreparedImage>* images,
                              const text::RenderOptions& options) {
  if (model.format == nullptr)
    return api::unsupported("model", "this model cannot chat: " + model.no_chat_reason);
  auto prepared = prepare_images(request, model.images ? &*model.images : nullptr);
  if (!prepared.ok()) return prepared.error();
  std::vector<text::ImageInfo> infos;
  for (const PreparedImage& image : *prepared) infos.push_back(image.info);
  auto prompt = model.format->prompt(request, infos, options);
  if (!prompt.ok()) return invalid(prompt.error());
  if (images != nullptr) *images = std::move(*prepared);
  return std::move(*prompt);
}

Parsed<std::vector<int32_t>> prompt_ids(
    const ServedModel& model, const ReplicaFacts& facts,
    const std::variant<std::string, std::vector<int32_t>>& prompt, const std::string& param) {
  std::vector<int32_t> ids;
  if (const auto* given = std::get_if<std::vector<int32_t>>(&prompt)) {
    ids = *given;
  } else {
    if (model.tokenizer == nullptr)
      return api::unsupported(
          param, "this model takes prompts as token ids only: " + model.no_text_reason);
    model.tokenizer->encode_into(std::get<std::string>(prompt), facts.raw_special_tokens, &ids);
    model.tokenizer->add_prompt_template(&ids);
  }
  if (ids.empty()) return api::bad_request(param, "the prompt is empty; give at least one token");
  WEFT_API_TRY(check_ids(ids, facts.vocab_size, param));
  return ids;
}

}  // namespace

Parsed<PreparedChat> prepare_chat(const PrepareInput& input) {
  auto body = api::parse_body(input.body);
  if (!body.ok()) return body.error();
  auto request = api::parse_chat_request(*body, *input.policy);
  if (!request.ok()) return request.error();
  auto target = find_ready_model(input, request->model);
  if (!target.ok()) return target.error();
  const api::EngineFeatures features{
      .n_choices = true,
      .grammar = false,
      .images = target->facts.images && target->model->images.has_value()};
  if (auto reason = api::unsupported_reason(*request, features)) return *reason;
  WEFT_API_TRY(check_sampling(request->sampling, target->facts.vocab_size));

  PreparedChat out;
  out.model = target->model;
  std::vector<PreparedImage> images;
  auto prompt = render(*out.model, *request, &images, {});
  if (!prompt.ok()) return prompt.error();
  out.prompt = std::move(prompt->ids);
  out.boundaries = std::move(prompt->boundaries);
  auto limit = output_limit(static_cast<int64_t>(out.prompt.size()), request->sampling.max_tokens,
                            target->facts.max_tokens_default, target->facts);
  if (!limit.ok()) return limit.error();
  out.max_tokens = *limit;
  auto media = place_media(out.prompt, out.model->format->markers().media_pad, std::move(images));
  if (!media.ok()) return media.error();
  out.media = std::move(*media);
  out.request = std::move(*request);
  return out;
}

Parsed<PreparedCompletion> prepare_completion(const PrepareInput& input) {
  auto body = api::parse_body(input.body);
  if (!body.ok()) return body.error();
  auto request = api::parse_completion_request(*body, *input.policy);
  if (!request.ok()) return request.error();
  auto target = find_ready_model(input, request->model);
  if (!target.ok()) return target.error();
  if (auto reason =
          api::unsupported_reason(*request, {.n_choices = true, .grammar = false, .images = false}))
    return *reason;
  WEFT_API_TRY(check_sampling(request->sampling, target->facts.vocab_size));
  if (!request->stop.empty() && target->model->tokenizer == nullptr)
    return api::unsupported(
        "stop", "stop strings need text; use stop_token_ids: " + target->model->no_text_reason);

  // The two limits of the API multiply; each choice is a sequence of its own.
  if (request->prompts.size() * static_cast<size_t>(request->sampling.n) > kChoicesMax)
    return api::bad_request(
        "n", fmt::format("{} prompts with n = {} are more than {} choices", request->prompts.size(),
                         request->sampling.n, kChoicesMax));

  PreparedCompletion out;
  out.model = target->model;
  for (size_t i = 0; i < request->prompts.size(); ++i) {
    const std::string param =
        request->prompts.size() == 1 ? "prompt" : fmt::format("prompt[{}]", i);
    auto ids = prompt_ids(*out.model, target->facts, request->prompts[i], param);
    if (!ids.ok()) return ids.error();
    auto limit = output_limit(static_cast<int64_t>(ids->size()), request->sampling.max_tokens,
                              input.policy->completion_max_tokens_default, target->facts);
    if (!limit.ok()) {
      ApiError error = limit.error();
      error.param = param;
      return error;
    }
    out.prompts.push_back(std::move(*ids));
    out.max_tokens.push_back(*limit);
  }
  out.request = std::move(*request);
  return out;
}

Parsed<std::string> answer_tokenize(const PrepareInput& input) {
  auto body = api::parse_body(input.body);
  if (!body.ok()) return body.error();
  auto request = api::parse_tokenize(*body, *input.policy);
  if (!request.ok()) return request.error();
  auto target = find_model(input, request->model);
  if (!target.ok()) return target.error();
  const ServedModel& model = *target->model;
  if (model.tokenizer == nullptr)
    return api::unsupported("model", "this model has no tokenizer: " + model.no_text_reason);
  std::vector<int32_t> ids;
  if (const auto* chat = std::get_if<api::ChatRequest>(&request->input)) {
    auto rendered =
        render(model, *chat, nullptr, {.generation_prompt = request->add_generation_prompt});
    if (!rendered.ok()) return rendered.error();
    ids = std::move(rendered->ids);
  } else {
    model.tokenizer->encode_into(std::get<std::string>(request->input),
                                 target->facts.raw_special_tokens, &ids);
    if (request->add_special_tokens) model.tokenizer->add_prompt_template(&ids);
  }
  std::vector<std::string> strings;
  if (request->return_token_strs)
    for (int32_t id : ids) strings.emplace_back(model.tokenizer->token_bytes(id));
  return api::tokenize_response_json(ids, target->facts.max_context,
                                     request->return_token_strs ? &strings : nullptr);
}

Parsed<std::string> answer_detokenize(const PrepareInput& input) {
  auto body = api::parse_body(input.body);
  if (!body.ok()) return body.error();
  auto request = api::parse_detokenize(*body, *input.policy);
  if (!request.ok()) return request.error();
  auto target = find_model(input, request->model);
  if (!target.ok()) return target.error();
  const ServedModel& model = *target->model;
  if (model.tokenizer == nullptr)
    return api::unsupported("model", "this model has no tokenizer: " + model.no_text_reason);
  WEFT_API_TRY(check_ids(request->tokens, model.tokenizer->vocab_size(), "tokens"));
  return api::detokenize_response_json(
      text::decode(*model.tokenizer, request->tokens, request->skip_special_tokens));
}

wire::Sampling to_wire(const api::SamplingParams& p, const std::vector<int32_t>& stop_ids,
                       uint32_t max_tokens, int32_t sample, uint64_t fallback_seed) {
  wire::Sampling s;
  s.set_temperature(static_cast<float>(p.temperature));
  s.set_top_p(static_cast<float>(p.top_p));
  s.set_top_k(static_cast<int32_t>(std::clamp<int64_t>(p.top_k, 0, INT32_MAX)));
  s.set_min_p(static_cast<float>(p.min_p));
  s.set_presence_penalty(static_cast<float>(p.presence_penalty));
  s.set_frequency_penalty(static_cast<float>(p.frequency_penalty));
  s.set_repetition_penalty(static_cast<float>(p.repetition_penalty));
  s.set_seed((p.seed ? static_cast<uint64_t>(*p.seed) : fallback_seed) +
             static_cast<uint64_t>(sample));
  for (const auto& [id, bias] : p.logit_bias) {
    s.add_bias_ids(id);
    s.add_bias_values(bias);
  }
  if (!p.ignore_eos)
    for (int32_t id : stop_ids) s.add_stop_ids(id);
  for (int32_t id : p.stop_token_ids) s.add_stop_ids(id);
  s.set_min_tokens(static_cast<uint32_t>(std::clamp<int64_t>(p.min_tokens, 0, max_tokens)));
  s.set_max_tokens(max_tokens);
  s.set_logprobs(p.logprobs);
  s.set_prompt_logprobs(p.prompt_logprobs);
  return s;
}

}  // namespace weft::gateway
