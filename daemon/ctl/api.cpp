#include "ctl/api.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "http/sse.h"

namespace weft::ctl {

ApiFailure failure_of(const Error& error) {
  int code = kFailure;
  if (error.code == ErrorCode::kUnavailable) code = kUnreachable;
  if (error.code == ErrorCode::kPermission) code = kDenied;
  std::string message = error.message;
  if (code == kUnreachable)
    message += "; is weftd running? (--socket PATH or WEFT_SOCKET choose another one)";
  if (code == kDenied)
    message += "; ask for membership in the group that owns the socket, or use sudo";
  return {code, std::move(message)};
}

ApiFailure failure_of(int status, std::string_view body) {
  ApiFailure out;
  if (status == 401 || status == 403) out.exit_code = kDenied;
  if (status == 404 || status == 503) out.exit_code = kNotReady;
  const auto json = parse_json(body);
  if (json.ok()) {
    if (const JsonValue* error = json->find("error"); error != nullptr)
      out.message = text_at(*error, "message");
  }
  if (out.message.empty()) out.message = fmt::format("weftd answered with status {}", status);
  return out;
}

std::string socket_address(std::string_view text) {
  if (text.substr(0, 5) == "unix:") return std::string(text);
  const bool is_path = text.find('/') != std::string_view::npos;
  if (!is_path && text.find(':') != std::string_view::npos) return std::string(text);
  std::error_code failed;
  const std::filesystem::path absolute = std::filesystem::absolute(text, failed);
  return "unix:" + (failed ? std::string(text) : absolute.string());
}

Result<http::ClientResponse> Api::exchange(std::string_view method, std::string_view target,
                                           std::string body,
                                           const http::BodyCallback& on_body) const {
  WEFT_ASSIGN(const http::Client client, http::Client::make(address_, options_));
  http::ClientRequest request{std::string(method), std::string(target), {}, std::move(body)};
  if (!request.body.empty()) request.headers.set("Content-Type", "application/json");
  return client.request(request, on_body);
}

ApiOutcome Api::call(std::string_view method, std::string_view target, std::string body) const {
  ApiOutcome out;
  auto response = exchange(method, target, std::move(body), {});
  if (!response.ok()) {
    out.failure = failure_of(response.error());
    return out;
  }
  if (response->status < 200 || response->status > 299) {
    out.failure = failure_of(response->status, response->body);
    return out;
  }
  if (!response->body.empty()) {
    auto json = parse_json(response->body);
    if (!json.ok()) {
      out.failure.message =
          "the answer is not JSON: " + json.error().message + "; is this the socket of weftd?";
      return out;
    }
    out.reply.json = std::move(json).value();
  }
  out.reply.text = std::move(response->body);
  out.ok = true;
  return out;
}

ApiOutcome Api::stream(std::string_view target, std::string body, const OnData& on_data) const {
  ApiOutcome out;
  std::string error_body;
  bool go_on = true;
  int64_t received_us = 0;  // of one read: events that came together have one time
  http::SseParser events(
      [&](const http::SseEvent& event) { go_on = go_on && on_data(event.data, received_us); });
  bool too_large = false;
  auto response = exchange("POST", target, std::move(body),
                           [&](const http::ClientResponse& head, std::string_view bytes) {
                             if (head.status != 200) {
                               error_body.append(bytes.substr(
                                   0, (1u << 20) - std::min<size_t>(error_body.size(), 1u << 20)));
                               return true;
                             }
                             received_us = monotonic_us();
                             too_large = !events.feed(bytes);
                             return go_on && !too_large;
                           });
  if (!response.ok()) {
    out.failure = failure_of(response.error());
  } else if (response->status != 200) {
    out.failure = failure_of(response->status, error_body);
  } else if (too_large) {
    out.failure.message = "an event of the stream is too large";
  } else {
    out.ok = true;
  }
  return out;
}

int64_t monotonic_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

std::string text_at(const JsonValue& object, std::string_view key) {
  const JsonValue* v = object.find(key);
  return v != nullptr && v->is_string() ? v->as_string() : std::string();
}

int64_t int_at(const JsonValue& object, std::string_view key) {
  const JsonValue* v = object.find(key);
  if (v == nullptr || !v->is_number()) return 0;
  return v->as_int().value_or(0);
}

bool bool_at(const JsonValue& object, std::string_view key) {
  const JsonValue* v = object.find(key);
  return v != nullptr && v->is_bool() && v->as_bool();
}

const std::vector<JsonValue>& list_at(const JsonValue& object, std::string_view key) {
  static const std::vector<JsonValue> kEmpty;
  const JsonValue* v = object.find(key);
  return v != nullptr && v->is_array() ? v->items() : kEmpty;
}

}  // namespace weft::ctl
