// Api: weftctl's view of the control socket: one HTTP exchange, its JSON, and the exit code that a
// failure means.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json_value.h"
#include "base/result.h"
#include "ctl/exit_code.h"
#include "http/client.h"

namespace weft::ctl {

struct ApiFailure {
  int exit_code = kFailure;
  std::string message;
};

struct ApiReply {
  std::string text;  // the JSON as sent
  JsonValue json;
};

// Either a reply (status 2xx) or a failure.
struct ApiOutcome {
  ApiReply reply;
  ApiFailure failure;
  bool ok = false;
};

ApiFailure failure_of(const Error& error);
// From an error answer: the message inside its JSON when there is one.
ApiFailure failure_of(int status, std::string_view body);

// "PATH", "unix:/PATH" or "ADDR:PORT" as --socket takes it.
std::string socket_address(std::string_view text);

class Api {
 public:
  using OnData = std::function<bool(std::string_view data, int64_t received_us)>;
  Api(std::string address, http::ClientOptions options)
      : address_(std::move(address)), options_(options) {}

  ApiOutcome call(std::string_view method, std::string_view target, std::string body = {}) const;
  // Streams an answer; `on_data` gets the data of each server-sent event with the time its bytes
  // were read (monotonic, microseconds) and says whether to go on.
  ApiOutcome stream(std::string_view target, std::string body, const OnData& on_data) const;
  const std::string& address() const { return address_; }

 private:
  Result<http::ClientResponse> exchange(std::string_view method, std::string_view target,
                                        std::string body, const http::BodyCallback& on_body) const;
  const std::string address_;
  const http::ClientOptions options_;
};

int64_t monotonic_us();

// Lenient reading of answers: what is missing or of another kind is empty or zero.
std::string text_at(const JsonValue& object, std::string_view key);
int64_t int_at(const JsonValue& object, std::string_view key);
bool bool_at(const JsonValue& object, std::string_view key);
const std::vector<JsonValue>& list_at(const JsonValue& object, std::string_view key);

}  // namespace weft::ctl
