#include "gateway/token_logprobs.h"

#include <limits>

namespace weft::gateway {
namespace {

std::string bytes_of(const text::Tokenizer* tokenizer, int32_t id) {
  return tokenizer == nullptr ? std::string() : std::string(tokenizer->token_bytes(id));
}

api::TokenLogprob entry(int32_t id, double logprob, const wire::Alternatives* alternatives,
                        const text::Tokenizer* tokenizer) {
  api::TokenLogprob e;
  e.id = id;
  e.bytes = bytes_of(tokenizer, id);
  e.logprob = logprob;
  if (alternatives == nullptr) return e;
  for (int i = 0; i < alternatives->ids_size() && i < alternatives->logprobs_size(); ++i)
    e.top.push_back({alternatives->ids(i), bytes_of(tokenizer, alternatives->ids(i)),
                     alternatives->logprobs(i)});
  return e;
}

}  // namespace

std::vector<api::TokenLogprob> token_logprobs(const wire::SequenceTokens& update,
                                              const text::Tokenizer* tokenizer) {
  std::vector<api::TokenLogprob> out;
  if (update.logprobs_size() != update.tokens_size()) return out;
  for (int i = 0; i < update.tokens_size(); ++i) {
    const wire::Alternatives* alternatives =
        i < update.alternatives_size() ? &update.alternatives(i) : nullptr;
    out.push_back(entry(update.tokens(i), update.logprobs(i), alternatives, tokenizer));
  }
  return out;
}

std::vector<api::TokenLogprob> prompt_logprobs(const std::vector<int32_t>& prompt,
                                               const wire::SequenceTokens& update,
                                               const text::Tokenizer* tokenizer) {
  std::vector<api::TokenLogprob> out;
  for (size_t i = 0; i < prompt.size(); ++i) {
    const int at = static_cast<int>(i) - 1;
    const bool known = at >= 0 && at < update.prompt_logprobs_size();
    const wire::Alternatives* alternatives =
        known && at < update.prompt_alternatives_size() ? &update.prompt_alternatives(at) : nullptr;
    out.push_back(entry(
        prompt[i], known ? update.prompt_logprobs(at) : std::numeric_limits<double>::quiet_NaN(),
        alternatives, tokenizer));
  }
  return out;
}

}  // namespace weft::gateway
