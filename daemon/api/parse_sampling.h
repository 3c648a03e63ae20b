// Fields that chat and completion requests share: sampling parameters, stop conditions, streaming,
// scheduling.
#pragma once

#include <string>
#include <vector>

#include "api/chat_request.h"
#include "api/parsed.h"
#include "api/policy.h"
#include "base/json_value.h"

namespace weft::api {

// Temperature to min_tokens. Not logprobs and max_tokens, whose forms differ between the protocols.
Check parse_sampling(const JsonValue& body, const ApiPolicy& policy, SamplingParams* out);
Check parse_stop(const JsonValue& body, const ApiPolicy& policy, std::vector<std::string>* stop,
                 bool* include_stop);
Check parse_stream(const JsonValue& body, StreamOptions* out);

// priority, cache_salt, deadline_ms, request_id, return_token_ids, return_tokens_as_token_ids.
// Reads nvext too.
template <class Request>
Check parse_extras(const JsonValue& body, Request* out);
extern template Check parse_extras<ChatRequest>(const JsonValue&, ChatRequest*);
extern template Check parse_extras<CompletionRequest>(const JsonValue&, CompletionRequest*);

// The served model, or 400/404.
Check parse_model(const JsonValue& body, const ApiPolicy& policy, std::string* out);
// A token id below the vocabulary's size (when that is known).
Check parse_token_id(const JsonValue& value, const ApiPolicy& policy, const std::string& param,
                     int32_t* out);

}  // namespace weft::api
