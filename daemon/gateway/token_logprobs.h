// Log-probabilities as the engine sends them -> as the protocol writers take them.
#pragma once

#include <vector>

#include "api/delta.h"
#include "text/tokenizer.h"
#include "wire/weft.pb.h"

namespace weft::gateway {

// One entry per token of the update; empty when it carries none. `tokenizer` may be null: bytes
// stay empty.
std::vector<api::TokenLogprob> token_logprobs(const wire::SequenceTokens& update,
                                              const text::Tokenizer* tokenizer);

// One entry per prompt token; the first has no log-probability (NaN). Without recorded values all
// are NaN.
std::vector<api::TokenLogprob> prompt_logprobs(const std::vector<int32_t>& prompt,
                                               const wire::SequenceTokens& update,
                                               const text::Tokenizer* tokenizer);

}  // namespace weft::gateway
