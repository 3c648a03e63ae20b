// POST /v1/chat/completions: from the body to a ChatRequest, or the first error in a fixed order:
// object, model, messages, tools, tool choice, response format, thinking, sampling, limits.
//
// Pure functions, any thread. Cost is linear in the body.
#pragma once

#include <optional>

#include "api/chat_request.h"
#include "api/parsed.h"
#include "api/policy.h"
#include "base/json_value.h"

namespace weft::api {

Parsed<ChatRequest> parse_chat_request(const JsonValue& body, const ApiPolicy& policy);

// Bytes of a body to its object: bad JSON, bad UTF-8, too deep, or not an object -> 400.
Parsed<JsonValue> parse_body(std::string_view bytes);

// The one place that knows what a valid request may ask for that the engine cannot do yet: 400,
// code "unsupported", with the parameter named. Nothing: the engine can do it.
std::optional<ApiError> unsupported_reason(const ChatRequest& request,
                                           const EngineFeatures& features);

}  // namespace weft::api
