// RequestParser: bytes in, requests out. One parser per connection, one request at a time; it knows
// no sockets and no clock, so it can be tested and fuzzed alone.
//
// A scanner of our own walks the head (request line and headers) first: it finds the end of the
// head, counts against the limits and refuses bare LF, bare CR, NUL and folded lines, whatever the
// parser library would make of them. llhttp then reads exactly those bytes, and after them the
// body. Memory is bounded by the limits, not by what the client sends.
#pragma once

#include <llhttp.h>

#include <memory>
#include <string>
#include <string_view>

#include "http/types.h"

namespace weft::http {

class RequestParser {
 public:
  enum class State {
    kIdle,      // no byte of the next request yet
    kHead,      // in the request line or the headers
    kBody,      // headers done, body wanted
    kComplete,  // take() the request
    kError,     // error() says what; the connection must close
  };

  RequestParser(const Limits& limits, std::shared_ptr<BodyBudget> budget);
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Consumes bytes up to the end of one request and says how many. After kComplete or kError it
  // consumes nothing.
  size_t feed(std::string_view bytes);
  State state() const { return state_; }
  const HttpError& error() const { return error_; }
  // True once per request: the client waits for "100 Continue" before it sends the body.
  bool wants_continue();
  size_t body_bytes() const { return request_.body.size(); }
  int version_minor() const { return request_.version_minor; }

  Request take();  // kComplete only; the parser is then ready for the next request

 private:
  struct Callbacks;  // llhttp's callbacks
  void begin();
  size_t scan_head(std::string_view bytes, bool* head_done);
  bool scan_byte(char c);
  bool run_llhttp(std::string_view bytes, size_t* consumed);
  size_t feed_body(std::string_view bytes);
  void fail(int status, std::string code, std::string message);
  void fail_from_llhttp();
  void end_field();
  int headers_complete();
  bool check_headers();
  int append_body(std::string_view data);

  const Limits limits_;
  std::shared_ptr<BodyBudget> budget_;  // shared with the requests that were taken
  llhttp_settings_t settings_{};
  llhttp_t parser_{};
  State state_ = State::kIdle;
  HttpError error_;
  Request request_;
  bool headers_done_ = false;
  bool wants_continue_ = false;
  bool field_open_ = false;  // llhttp is inside a header name or value
  // Scanner.
  size_t line_bytes_ = 0;    // request line
  size_t header_bytes_ = 0;  // all after it
  size_t header_count_ = 0;
  size_t line_length_ = 0;  // of the current line, without its end
  bool in_first_line_ = true;
  int empty_lines_ = 0;  // before the request line
  char previous_ = 0;
  // Body.
  size_t body_raw_bytes_ = 0;  // with chunk framing
};

}  // namespace weft::http
