#include "api/errors.h"

#include <fmt/format.h>

#include "api/wire_json.h"

namespace weft::api {
namespace {

constexpr int kOverloadRetryS = 1;
constexpr int kUnavailableRetryS = 5;

ApiError make(int status, std::string type, std::string message, std::string param = "",
              std::string code = "") {
  return ApiError{status, std::move(type), std::move(message), std::move(param), std::move(code)};
}
const char* const kInvalidRequest = "invalid_request_error";
const char* const kServerError = "server_error";
const char* const kOverloadedType = "engine_overloaded_error";

void append_string_or_null(std::string& out, const std::string& text) {
  if (text.empty())
    out += "null";
  else
    append_json_string(out, text);
}

const char* anthropic_type(const ApiError& error) {
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return error.type == kOverloadedType ? "overloaded_error" : "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return error.status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

ApiError bad_request(std::string param, std::string message) {
  return make(400, kInvalidRequest, std::move(message), std::move(param));
}
ApiError unsupported(std::string param, std::string message) {
  return make(400, kInvalidRequest, std::move(message), std::move(param), "unsupported");
}
ApiError context_length_exceeded(int64_t limit, int64_t requested) {
  return make(400, kInvalidRequest,
              fmt::format("Your request exceeded model token limit : {} (requested: {}). Shorten "
                          "the messages or lower "
                          "max_completion_tokens.",
                          limit, requested),
              "messages", "context_length_exceeded");
}
ApiError unauthorized() {
  return make(
      401, "invalid_authentication_error",
      "a valid API key is required: send it as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"",
      "", "invalid_api_key");
}
ApiError forbidden(std::string message) {
  return make(403, "permission_error", std::move(message));
}
ApiError model_not_found(std::string_view model) {
  return make(
      404, kInvalidRequest,
      fmt::format("the model \"{}\" is not served here; GET /v1/models lists the models", model),
      "model", "model_not_found");
}
ApiError route_not_found(std::string_view method, std::string_view path) {
  return make(404, kInvalidRequest, fmt::format("no such route: {} {}", method, path));
}
ApiError method_not_allowed(std::string_view method, std::string_view path) {
  return make(405, kInvalidRequest, fmt::format("{} does not accept {}", path, method));
}
ApiError body_too_large(size_t limit_bytes) {
  return make(413, kInvalidRequest,
              fmt::format("Request exceeds the maximum size of {} bytes", limit_bytes));
}
ApiError overloaded() {
  return make(429, kOverloadedType,
              "the queue is full; retry after the time in the retry-after header");
}
ApiError rate_limited() {
  return make(429, "rate_limit_reached_error",
              "this client has too many requests in flight; retry after the time in the "
              "retry-after header");
}
ApiError internal_error(std::string message) { return make(500, kServerError, std::move(message)); }
ApiError unavailable(std::string message) {
  return make(503, kServerError, std::move(message), "", "unavailable");
}
ApiError deadline_exceeded(std::string message) {
  return make(504, kServerError, std::move(message), "", "deadline_exceeded");
}

ApiError from_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalid:
      return bad_request("", error.message);
    case ErrorCode::kNotFound:
      return make(404, kInvalidRequest, error.message);
    case ErrorCode::kUnsupported:
      return unsupported("", error.message);
    case ErrorCode::kUnavailable:
      return unavailable("the model is not available now; retry later");
    case ErrorCode::kTimeout:
      return deadline_exceeded();
    case ErrorCode::kCancelled:
      return make(499, kServerError, "the request was cancelled");
    case ErrorCode::kPermission:
      return forbidden(error.message);
    case ErrorCode::kIo:
    case ErrorCode::kCorrupt:
    case ErrorCode::kPeer:
    case ErrorCode::kInternal:
      break;
  }
  return internal_error();
}

std::string error_json(const ApiError& error) {
  std::string out = "{\"error\":{\"message\":";
  append_json_string(out, error.message);
  out += ",\"type\":";
  append_json_string(out, error.type);
  out += ",\"param\":";
  append_string_or_null(out, error.param);
  out += ",\"code\":";
  append_string_or_null(out, error.code);
  out += "}}";
  return out;
}

std::string anthropic_error_json(const ApiError& error, std::string_view request_id) {
  std::string out = "{\"type\":\"error\",\"error\":{\"type\":";
  append_json_string(out, anthropic_type(error));
  out += ",\"message\":";
  append_json_string(out, error.message);
  out += "},\"request_id\":";
  append_json_string(out, request_id);
  out += '}';
  return out;
}

int anthropic_status(const ApiError& error) {
  const bool overload =
      error.status == 503 || (error.status == 429 && error.type == kOverloadedType);
  return overload ? 529 : error.status;
}

std::optional<int> retry_after_s(const ApiError& error) {
  if (error.status == 429) return kOverloadRetryS;
  if (error.status == 503) return kUnavailableRetryS;
  return std::nullopt;
}

}  // namespace weft::api
