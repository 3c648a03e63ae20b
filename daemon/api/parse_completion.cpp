#include "api/parse_completion.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/errors.h"
#include "api/fields.h"
#include "api/parse_sampling.h"

namespace weft::api {
namespace {

class PromptReader {
 public:
  PromptReader(const ApiPolicy& policy, CompletionRequest* out) : policy_(policy), out_(out) {}

  Check read(const JsonValue* prompt) {
    if (prompt == nullptr) return bad_request("prompt", "prompt is required");
    if (prompt->is_string()) return add_text(*prompt);
    if (!prompt->is_array()) return shape_error();
    const auto& items = prompt->items();
    if (items.empty()) return bad_request("prompt", "prompt must not be empty");
    if (items.front().is_number()) return add_ids(*prompt, "prompt");
    if (items.size() > policy_.prompts_max)
      return bad_request("prompt", fmt::format("prompt has {} entries; at most {} are accepted",
                                               items.size(), policy_.prompts_max));
    const bool text = items.front().is_string();
    for (size_t i = 0; i < items.size(); ++i) {
      if (text ? !items[i].is_string() : !items[i].is_array()) return shape_error();
      WEFT_API_TRY(text ? add_text(items[i]) : add_ids(items[i], index_path("prompt", i)));
    }
    return std::nullopt;
  }

 private:
  static Check shape_error() {
    return bad_request(
        "prompt",
        "prompt must be a string, an array of strings, an array of token ids, or an array of such "
        "arrays");
  }
  Check add_text(const JsonValue& text) {
    out_->prompts.emplace_back(text.as_string());
    return std::nullopt;
  }
  Check add_ids(const JsonValue& list, const std::string& path) {
    if (list.items().empty()) return bad_request(path, path + " must not be empty");
    tokens_ += list.items().size();
    if (tokens_ > policy_.prompt_tokens_max)
      return bad_request(
          "prompt", fmt::format("prompt holds more than {} token ids", policy_.prompt_tokens_max));
    std::vector<int32_t> ids;
    ids.reserve(list.items().size());
    for (const JsonValue& item : list.items()) {
      int32_t id = 0;
      WEFT_API_TRY(parse_token_id(item, policy_, path, &id));
      ids.push_back(id);
    }
    out_->prompts.emplace_back(std::move(ids));
    return std::nullopt;
  }

  const ApiPolicy& policy_;
  CompletionRequest* out_;
  size_t tokens_ = 0;
};

Check parse_limits(const Fields& fields, const ApiPolicy& policy, CompletionRequest* out) {
  WEFT_API_TRY(fields.boolean("echo", &out->echo));
  int64_t max_tokens = policy.completion_max_tokens_default;
  WEFT_API_TRY(fields.integer("max_tokens", out->echo ? 0 : 1, INT64_MAX, &max_tokens));
  out->sampling.max_tokens = std::min(max_tokens, policy.max_tokens_limit);
  int64_t logprobs = -1, prompt_logprobs = -1;
  WEFT_API_TRY(fields.integer("logprobs", 0, policy.logprobs_max, &logprobs));
  WEFT_API_TRY(fields.integer("prompt_logprobs", 0, policy.logprobs_max, &prompt_logprobs));
  if (prompt_logprobs >= 0)
    return unsupported("prompt_logprobs", "prompt_logprobs is not answered here; use echo with logprobs");
  out->sampling.logprobs = static_cast<int32_t>(logprobs);
  if (out->echo) prompt_logprobs = std::max(prompt_logprobs, logprobs);
  out->sampling.prompt_logprobs = static_cast<int32_t>(prompt_logprobs);
  return std::nullopt;
}

Check refuse_foreign_fields(const Fields& fields, const CompletionRequest& request) {
  std::string suffix;
  WEFT_API_TRY(fields.string("suffix", SIZE_MAX, &suffix));
  if (!suffix.empty()) return bad_request("suffix", "suffix is not supported; leave it out");
  std::optional<int64_t> best_of;
  WEFT_API_TRY(fields.integer("best_of", 1, INT64_MAX, &best_of));
  if (best_of && *best_of != request.sampling.n)
    return bad_request("best_of",
                       fmt::format("best_of must equal n, which is {}", request.sampling.n));
  for (const char* key : {"prompt_embeds", "structured_outputs", "response_format"})
    if (fields.get(key) != nullptr)
      return unsupported(key, fmt::format("{} is not supported on this endpoint", key));
  return std::nullopt;
}

Check parse_into(const JsonValue& body, const ApiPolicy& policy, CompletionRequest* out) {
  if (!body.is_object())
    return bad_request("", fmt::format("the body must be a JSON object, not {}", kind_name(body)));
  const Fields fields(body);
  WEFT_API_TRY(parse_model(body, policy, &out->model));
  WEFT_API_TRY(PromptReader(policy, out).read(fields.get("prompt")));
  WEFT_API_TRY(parse_sampling(body, policy, &out->sampling));
  WEFT_API_TRY(parse_limits(fields, policy, out));
  WEFT_API_TRY(parse_stop(body, policy, &out->stop, &out->include_stop_in_output));
  WEFT_API_TRY(fields.boolean("skip_special_tokens", &out->skip_special_tokens));
  WEFT_API_TRY(parse_stream(body, &out->stream));
  WEFT_API_TRY(parse_extras(body, out));
  return refuse_foreign_fields(fields, *out);
}

}  // namespace

Parsed<CompletionRequest> parse_completion_request(const JsonValue& body, const ApiPolicy& policy) {
  CompletionRequest request;
  WEFT_API_TRY(parse_into(body, policy, &request));
  return request;
}

std::optional<ApiError> unsupported_reason(const CompletionRequest& request,
                                           const EngineFeatures& features) {
  if (!features.n_choices && request.sampling.n > 1)
    return unsupported("n",
                       "this server generates one choice per prompt; send n = 1 or leave it out");
  return std::nullopt;
}

}  // namespace weft::api
