#include "gateway/chat_generation.h"

#include <sys/random.h>

#include <algorithm>

#include "gateway/token_logprobs.h"

namespace weft::gateway {
namespace {

text::K3ParserOptions parser_options(const PreparedChat& p, bool promote_orphan) {
  text::K3ParserOptions o;
  o.start = p.model->format->start_state(p.prompt);
  const bool has_tools = !p.request.tools.empty() ||
                         std::any_of(p.request.messages.begin(), p.request.messages.end(),
                                     [](const api::Message& m) { return !m.tools.empty(); });
  o.suppress_tools = p.request.tool_choice == api::ToolChoice::kNone || !has_tools;
  if (!p.request.parallel_tool_calls) o.max_calls = 1;
  o.promote_orphan_response = promote_orphan;
  o.include_reasoning = p.request.include_reasoning;
  o.call_id_seed = random_seed();
  return o;
}

}  // namespace

uint64_t random_seed() {
  uint64_t seed = 0;
  WEFT_CHECK(::getrandom(&seed, sizeof(seed), 0) == static_cast<ssize_t>(sizeof(seed)));
  return seed;
}

ChatGeneration::ChatGeneration(GenerationContext context, http::Responder responder,
                               PreparedChat prepared, bool promote_orphan)
    : Generation(std::move(context), std::move(responder), prepared.request.stream.stream),
      prepared_(std::move(prepared)),
      fallback_seed_(random_seed()),
      options_(api::ChatWriterOptions::from(
          prepared_.request, *this->context().policy,
          {this->context().id, this->context().created, prepared_.request.model})),
      writer_(options_) {
  for (int32_t i = 0; i < prepared_.request.sampling.n; ++i) {
    add_choice(prepared_.prompt);
    Output o;
    o.parser = std::make_unique<text::K3OutputParser>(
        *prepared_.model->tokenizer, *prepared_.model->format,
        parser_options(prepared_, promote_orphan),
        text::StopOptions{prepared_.request.stop, prepared_.request.include_stop_in_output});
    outputs_.push_back(std::move(o));
  }
}

wire::Generate ChatGeneration::build(const Choice& c) {
  wire::Generate g;
  g.mutable_prompt()->Add(c.prompt.begin(), c.prompt.end());
  *g.mutable_sampling() = to_wire(prepared_.request.sampling, prepared_.model->stop_ids,
                                  prepared_.max_tokens, c.index, fallback_seed_);
  for (const wire::Media& m : prepared_.media) *g.add_media() = m;
  g.mutable_boundaries()->Add(prepared_.boundaries.begin(), prepared_.boundaries.end());
  g.set_priority(prepared_.request.priority);
  g.set_cache_salt(prepared_.request.cache_salt);
  return g;
}

void ChatGeneration::write_open(std::string* out) { writer_.start(prepared_.prompt, usage(), out); }

bool ChatGeneration::write_tokens(Choice& c, const wire::SequenceTokens& update, std::string* out) {
  Output& o = outputs_[static_cast<size_t>(c.index)];
  if (update.tokens_size() == 0) return false;
  const std::vector<int32_t> ids(update.tokens().begin(), update.tokens().end());
  o.last_id = ids.back();
  if (options_.return_token_ids) {
    writer_.add_tokens(c.index, ids);
    o.message.token_ids.insert(o.message.token_ids.end(), ids.begin(), ids.end());
  }
  std::vector<api::TokenLogprob> logprobs;
  if (options_.logprobs) logprobs = token_logprobs(update, prepared_.model->tokenizer.get());
  emit(c, o.parser->feed(ids, logprobs), out);
  return o.parser->stopped();
}

void ChatGeneration::emit(Choice& c, const std::vector<api::Delta>& deltas, std::string* out) {
  for (const api::Delta& delta : deltas) {
    if (prepared_.request.stream.stream)
      writer_.delta(c.index, delta, usage_of(c), out);
    else
      outputs_[static_cast<size_t>(c.index)].message.add(delta);
  }
}

api::StopReason ChatGeneration::stop_reason(const Output& o, wire::Finish finish,
                                            bool stop_string) const {
  if (stop_string) return std::string(o.parser->stop_string());
  const auto& asked = prepared_.request.sampling.stop_token_ids;
  if (finish == wire::FINISH_STOP &&
      std::find(asked.begin(), asked.end(), o.last_id) != asked.end())
    return o.last_id;
  return {};
}

void ChatGeneration::write_finish(Choice& c, wire::Finish finish, bool stop_string,
                                  std::string* out) {
  Output& o = outputs_[static_cast<size_t>(c.index)];
  const api::StopReason stop = stop_reason(o, finish, stop_string);
  const text::EndReason end = stop_string                     ? text::EndReason::kStopString
                              : finish == wire::FINISH_LENGTH ? text::EndReason::kLength
                                                              : text::EndReason::kStop;
  emit(c, o.parser->finish(end, &o.reason), out);
  if (prepared_.request.stream.stream)
    writer_.finish(c.index, o.reason, stop, usage_of(c), out);
  else
    o.message.finish(o.reason, stop);
}

void ChatGeneration::write_end(std::string* out) { writer_.end(usage(), out); }

void ChatGeneration::write_error(const api::ApiError& error, std::string* out) {
  writer_.error(error, out);
}

std::string ChatGeneration::whole_body() {
  std::vector<api::ChatChoice> messages;
  for (Output& o : outputs_) messages.push_back(std::move(o.message));
  return api::chat_response_json(options_, messages, prepared_.prompt, usage());
}

api::FinishReason ChatGeneration::finish_reason(int32_t choice) const {
  return outputs_[static_cast<size_t>(choice)].reason;
}

int64_t ChatGeneration::reasoning_tokens(int32_t choice) const {
  return outputs_[static_cast<size_t>(choice)].parser->reasoning_tokens();
}

}  // namespace weft::gateway
