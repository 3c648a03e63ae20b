#include "gateway/completion_generation.h"

#include <algorithm>
#include <iterator>

#include "gateway/chat_generation.h"
#include "gateway/token_logprobs.h"

namespace weft::gateway {

CompletionGeneration::CompletionGeneration(GenerationContext context, http::Responder responder,
                                           PreparedCompletion prepared)
    : Generation(std::move(context), std::move(responder), prepared.request.stream.stream),
      prepared_(std::move(prepared)),
      fallback_seed_(random_seed()),
      options_(writer_options(prepared_, this->context())),
      writer_(options_) {
  const api::CompletionRequest& r = prepared_.request;
  const text::Tokenizer* tokenizer = prepared_.model->tokenizer.get();
  for (const std::vector<int32_t>& prompt : prepared_.prompts) {
    for (int32_t i = 0; i < r.sampling.n; ++i) {
      add_choice(prompt);
      Output o;
      if (tokenizer != nullptr)
        o.parser = std::make_unique<text::PlainParser>(
            *tokenizer, r.skip_special_tokens, text::StopOptions{r.stop, r.include_stop_in_output});
      if (options_.return_token_ids && !streams()) o.whole.prompt_ids = prompt;
      outputs_.push_back(std::move(o));
    }
  }
}

api::CompletionWriterOptions CompletionGeneration::writer_options(
    const PreparedCompletion& prepared, const GenerationContext& context) {
  auto options = api::CompletionWriterOptions::from(
      prepared.request, *context.policy, {context.id, context.created, prepared.request.model});
  // Without a tokenizer the ids are the answer.
  if (prepared.model->tokenizer == nullptr) options.return_token_ids = true;
  return options;
}

wire::Generate CompletionGeneration::build(const Choice& c) {
  const api::CompletionRequest& r = prepared_.request;
  const auto prompt_index = static_cast<size_t>(c.index / r.sampling.n);
  wire::Generate g;
  g.mutable_prompt()->Add(c.prompt.begin(), c.prompt.end());
  // To the engine 0 means no limit: let it make one token, which write_tokens drops.
  const uint32_t max_tokens = prompt_only() ? 1 : prepared_.max_tokens[prompt_index];
  *g.mutable_sampling() = to_wire(r.sampling, prepared_.model->stop_ids, max_tokens,
                                  c.index % r.sampling.n, fallback_seed_);
  // Log-probabilities of the prompt come from computing all of it.
  if (r.sampling.prompt_logprobs >= 0) g.set_no_cache(true);
  g.set_priority(r.priority);
  g.set_cache_salt(r.cache_salt);
  return g;
}

void CompletionGeneration::write_open(std::string*) {
  for (int32_t i = 0; i < choice_count(); ++i) writer_.set_prompt_ids(i, choice(i).prompt);
}

api::CompletionPiece CompletionGeneration::join(std::vector<api::Delta> deltas) {
  api::CompletionPiece piece;
  for (api::Delta& d : deltas) {
    piece.text += d.text;
    std::move(d.logprobs.begin(), d.logprobs.end(), std::back_inserter(piece.logprobs));
  }
  return piece;
}

// The prompt is the first piece of the output. It waits for the update that carries the prompt's
// log-probabilities.
void CompletionGeneration::echo(Choice& c, const wire::SequenceTokens& update, std::string* out) {
  Output& o = output(c);
  if (!prepared_.request.echo || o.echoed) return;
  const bool wants_logprobs = options_.logprobs >= 0;
  const bool last = update.finish() != wire::FINISH_NONE;
  if (wants_logprobs && update.prompt_logprobs_size() == 0 && update.tokens_size() == 0 && !last)
    return;
  o.echoed = true;
  api::CompletionPiece piece;
  const text::Tokenizer* tokenizer = prepared_.model->tokenizer.get();
  if (tokenizer != nullptr) piece.text = text::decode(*tokenizer, c.prompt, false);
  if (wants_logprobs) piece.logprobs = prompt_logprobs(c.prompt, update, tokenizer);
  emit(c, std::move(piece), out);
}

bool CompletionGeneration::write_tokens(Choice& c, const wire::SequenceTokens& update,
                                        std::string* out) {
  Output& o = output(c);
  echo(c, update, out);
  if (update.tokens_size() == 0 || prompt_only()) return false;
  std::vector<int32_t> ids(update.tokens().begin(), update.tokens().end());
  o.last_id = ids.back();
  std::vector<api::TokenLogprob> logprobs;
  if (options_.logprobs >= 0) logprobs = token_logprobs(update, prepared_.model->tokenizer.get());
  api::CompletionPiece piece;
  if (o.parser != nullptr)
    piece = join(o.parser->feed(ids, logprobs));
  else
    piece.logprobs = std::move(logprobs);
  piece.token_ids = std::move(ids);
  emit(c, std::move(piece), out);
  return o.parser != nullptr && o.parser->stopped();
}

void CompletionGeneration::emit(Choice& c, api::CompletionPiece piece, std::string* out) {
  if (streams()) {
    if (!piece.text.empty() || !piece.logprobs.empty() ||
        (options_.return_token_ids && !piece.token_ids.empty()))
      writer_.piece(c.index, piece, usage_of(c), out);
    return;
  }
  api::CompletionPiece& whole = output(c).whole.output;
  whole.text += piece.text;
  std::move(piece.logprobs.begin(), piece.logprobs.end(), std::back_inserter(whole.logprobs));
  whole.token_ids.insert(whole.token_ids.end(), piece.token_ids.begin(), piece.token_ids.end());
}

void CompletionGeneration::write_finish(Choice& c, wire::Finish finish, bool stop_string,
                                        std::string* out) {
  Output& o = output(c);
  api::StopReason stop;
  const auto& asked = prepared_.request.sampling.stop_token_ids;
  if (stop_string)
    stop = std::string(o.parser->stop_string());
  else if (finish == wire::FINISH_STOP &&
           std::find(asked.begin(), asked.end(), o.last_id) != asked.end())
    stop = o.last_id;

  o.reason = finish == wire::FINISH_LENGTH || prompt_only() ? api::FinishReason::kLength
                                                            : api::FinishReason::kStop;
  api::CompletionPiece rest;
  if (o.parser != nullptr) {
    api::FinishReason ignored =
        api::FinishReason::kNone;  // raw text: the engine's reason is the reason
    const text::EndReason end = stop_string                     ? text::EndReason::kStopString
                                : finish == wire::FINISH_LENGTH ? text::EndReason::kLength
                                                                : text::EndReason::kStop;
    rest = join(o.parser->finish(end, &ignored));
  }
  if (streams()) return writer_.finish(c.index, rest, o.reason, stop, usage_of(c), out);
  emit(c, std::move(rest), out);
  o.whole.finish_reason = o.reason;
  o.whole.stop_reason = stop;
}

void CompletionGeneration::write_end(std::string* out) { writer_.end(usage(), out); }

void CompletionGeneration::write_error(const api::ApiError& error, std::string* out) {
  writer_.error(error, out);
}

std::string CompletionGeneration::whole_body() {
  std::vector<api::CompletionChoice> choices;
  for (Output& o : outputs_) choices.push_back(std::move(o.whole));
  return api::completion_response_json(options_, choices, usage());
}

api::FinishReason CompletionGeneration::finish_reason(int32_t choice) const {
  return outputs_[static_cast<size_t>(choice)].reason;
}

}  // namespace weft::gateway
