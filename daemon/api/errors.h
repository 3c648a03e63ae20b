// Errors as clients see them: constructors for every kind in use, and their JSON in OpenAI's and
// Anthropic's shape.
//
// Messages that agent clients match on (context length, body size, images) are made here and
// nowhere else. Internal errors never show details to a client; the caller logs them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "api/api_error.h"
#include "base/result.h"

namespace weft::api {

ApiError bad_request(std::string param, std::string message);
ApiError unsupported(std::string param, std::string message);  // 400, code "unsupported"
ApiError context_length_exceeded(int64_t limit, int64_t requested);
ApiError unauthorized();
ApiError forbidden(std::string message);
ApiError model_not_found(std::string_view model);
ApiError route_not_found(std::string_view method, std::string_view path);
ApiError method_not_allowed(std::string_view method, std::string_view path);
ApiError body_too_large(size_t limit_bytes);
ApiError overloaded();
ApiError rate_limited();
ApiError internal_error(std::string message = "the engine failed; retrying may help");
ApiError unavailable(std::string message);
// 504. No retry-after: how long to wait is what the client has just decided.
ApiError deadline_exceeded(std::string message = "the request did not finish before its deadline");

// kInvalid, kNotFound and kUnsupported keep their message; all internal kinds become a general
// sentence.
ApiError from_error(const Error& error);

// {"error":{message,type,param,code}}
std::string error_json(const ApiError& error);
// {"type":"error","error":{type,message},"request_id"}; the status may differ from OpenAI's (529
// for overload).
std::string anthropic_error_json(const ApiError& error, std::string_view request_id);
int anthropic_status(const ApiError& error);
// The `retry-after` header of 429 and 503 answers, in seconds.
std::optional<int> retry_after_s(const ApiError& error);

}  // namespace weft::api
