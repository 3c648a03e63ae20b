// POST /v1/completions: raw prompts as text or token ids.
//
// Pure function, any thread. Choice index = prompt index * n + sample.
#pragma once

#include "api/chat_request.h"
#include "api/parsed.h"
#include "api/policy.h"
#include "base/json_value.h"

namespace weft::api {

// With echo, max_tokens may be 0: the answer is the prompt with its log probabilities,
// sampling.max_tokens is 0 and nothing is to be generated. echo with logprobs sets
// sampling.prompt_logprobs.
Parsed<CompletionRequest> parse_completion_request(const JsonValue& body, const ApiPolicy& policy);

// 400 for what the engine cannot do, like its chat counterpart.
std::optional<ApiError> unsupported_reason(const CompletionRequest& request,
                                           const EngineFeatures& features);

}  // namespace weft::api
