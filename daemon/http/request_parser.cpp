#include "http/request_parser.h"

#include <algorithm>

#include "http/target.h"

namespace weft::http {
namespace {

// Framing bytes (chunk sizes, extensions, trailers) allowed beside a body: a client that sends
// single bytes as chunks needs 5 per byte; the rest is slack for extensions and trailers, which are
// read and ignored.
constexpr size_t kFramingPerByte = 8;
constexpr size_t kFramingSlack = 64 << 10;
// RFC 9112 2.2 lets a server skip an empty line before a request.
constexpr int kEmptyLinesMax = 2;

}  // namespace

struct RequestParser::Callbacks {
  static RequestParser* self(llhttp_t* p) { return static_cast<RequestParser*>(p->data); }
  static int url(llhttp_t* p, const char* at, size_t n) {
    self(p)->request_.target.append(at, n);
    return 0;
  }
  static int field(llhttp_t* p, const char* at, size_t n) {
    RequestParser* s = self(p);
    if (s->headers_done_) return 0;  // a trailer
    // llhttp cuts names and values at buffer ends; "complete" callbacks close them.
    auto& fields = s->request_.headers.fields();
    if (!s->field_open_) {
      fields.emplace_back();
      s->field_open_ = true;
    }
    fields.back().first.append(at, n);
    return 0;
  }
  static int value(llhttp_t* p, const char* at, size_t n) {
    RequestParser* s = self(p);
    if (s->headers_done_ || s->request_.headers.fields().empty()) return 0;
    s->request_.headers.fields().back().second.append(at, n);
    return 0;
  }
  static int value_complete(llhttp_t* p) {
    self(p)->end_field();
    return 0;
  }
  static int headers_complete(llhttp_t* p) { return self(p)->headers_complete(); }
  static int body(llhttp_t* p, const char* at, size_t n) {
    return self(p)->append_body(std::string_view(at, n));
  }
  static int message_complete(llhttp_t* p) {
    self(p)->state_ = State::kComplete;
    return HPE_PAUSED;
  }
};

RequestParser::RequestParser(const Limits& limits, std::shared_ptr<BodyBudget> budget)
    : limits_(limits), budget_(std::move(budget)) {
  llhttp_settings_init(&settings_);
  settings_.on_url = Callbacks::url;
  settings_.on_header_field = Callbacks::field;
  settings_.on_header_value = Callbacks::value;
  settings_.on_header_value_complete = Callbacks::value_complete;
  settings_.on_headers_complete = Callbacks::headers_complete;
  settings_.on_body = Callbacks::body;
  settings_.on_message_complete = Callbacks::message_complete;
  begin();
}

void RequestParser::begin() {
  llhttp_init(&parser_, HTTP_REQUEST, &settings_);
  parser_.data = this;
  state_ = State::kIdle;
  error_ = HttpError();
  request_ = Request();
  request_.lease = BodyLease(budget_);
  headers_done_ = wants_continue_ = field_open_ = false;
  line_bytes_ = header_bytes_ = header_count_ = line_length_ = body_raw_bytes_ = 0;
  in_first_line_ = true;
  empty_lines_ = 0;
  previous_ = 0;
}

Request RequestParser::take() {
  WEFT_CHECK(state_ == State::kComplete);
  Request out = std::move(request_);
  begin();
  return out;
}

bool RequestParser::wants_continue() { return std::exchange(wants_continue_, false); }

void RequestParser::fail(int status, std::string code, std::string message) {
  if (state_ == State::kError) return;
  state_ = State::kError;
  error_ = {status, std::move(code), std::move(message)};
  // What was read so far is of no use: give the memory back now, the connection may linger.
  request_ = Request();
}

size_t RequestParser::feed(std::string_view bytes) {
  if (state_ == State::kComplete || state_ == State::kError || bytes.empty()) return 0;
  if (state_ == State::kBody) return feed_body(bytes);
  state_ = State::kHead;
  size_t done = 0;
  while (empty_lines_ >= 0 && done < bytes.size()) {  // lines before the request line
    const char c = bytes[done];
    if (c == '\r' && previous_ != '\r' && empty_lines_ < kEmptyLinesMax) {
      previous_ = c;
    } else if (c == '\n' && previous_ == '\r') {
      previous_ = 0;
      ++empty_lines_;
    } else if (previous_ == '\r' || c == '\r' || c == '\n') {
      fail(400, "bad_request", "expected a request line");
      return done;
    } else {
      empty_lines_ = -1;  // the request line begins
      break;
    }
    ++done;
  }
  if (done == bytes.size()) return done;
  bool head_done = false;
  const std::string_view head = bytes.substr(done);
  const size_t head_bytes = scan_head(head, &head_done);
  if (state_ == State::kError) return done + head_bytes;
  size_t consumed = 0;
  if (!run_llhttp(head.substr(0, head_bytes), &consumed)) return done + head_bytes;
  done += head_bytes;
  if (!head_done) return done;
  if (!headers_done_ && parser_.method == HTTP_PRI) {
    fail(505, "unsupported_version", "this server speaks HTTP/1.0 and HTTP/1.1, not HTTP/2");
    return done;
  }
  if (!headers_done_ || consumed != head_bytes) {
    // The scanner and llhttp disagree about where the head ends: never guess.
    fail(400, "bad_request", "the headers are not well formed");
    return done;
  }
  if (state_ != State::kHead) return done;
  state_ = State::kBody;
  return done + feed_body(bytes.substr(done));
}

size_t RequestParser::scan_head(std::string_view bytes, bool* head_done) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool line_end = bytes[i] == '\n' && previous_ == '\r';
    const bool blank = line_end && line_length_ == 0 && !in_first_line_;
    if (!scan_byte(bytes[i])) return i;
    if (blank) {
      *head_done = true;
      return i + 1;
    }
  }
  return bytes.size();
}

bool RequestParser::scan_byte(char c) {
  if (previous_ == '\r' && c != '\n') {
    fail(400, "bad_request", "carriage return without line feed in the headers");
    return false;
  }
  if (c == '\0') {
    fail(400, "bad_request", "NUL byte in the headers");
    return false;
  }
  if (in_first_line_ && ++line_bytes_ > limits_.request_line_max) {
    fail(414, "uri_too_long",
         fmt::format("the request line is longer than {} bytes", limits_.request_line_max));
    return false;
  }
  if (!in_first_line_ && ++header_bytes_ > limits_.header_bytes_max) {
    fail(431, "headers_too_large",
         fmt::format("the headers are larger than {} bytes", limits_.header_bytes_max));
    return false;
  }
  if (c == '\n') {
    if (previous_ != '\r') {
      fail(400, "bad_request", "line feed without carriage return in the headers");
      return false;
    }
    in_first_line_ = false;
    line_length_ = 0;
  } else if (c != '\r') {
    if (!in_first_line_ && line_length_ == 0) {
      if (c == ' ' || c == '\t') {
        fail(400, "bad_request", "folded header lines are not allowed");
        return false;
      }
      if (c == ':') {
        fail(400, "bad_request", "a header has no name");
        return false;
      }
      if (++header_count_ > limits_.header_count_max) {
        fail(431, "too_many_headers",
             fmt::format("there are more than {} headers", limits_.header_count_max));
        return false;
      }
    }
    ++line_length_;
  }
  previous_ = c;
  return true;
}

bool RequestParser::run_llhttp(std::string_view bytes, size_t* consumed) {
  const llhttp_errno_t rc = llhttp_execute(&parser_, bytes.data(), bytes.size());
  if (rc == HPE_OK) {
    *consumed = bytes.size();
    return state_ != State::kError;
  }
  if (rc == HPE_PAUSED && state_ == State::kComplete) {
    *consumed = static_cast<size_t>(llhttp_get_error_pos(&parser_) - bytes.data());
    return true;
  }
  fail_from_llhttp();
  return false;
}

size_t RequestParser::feed_body(std::string_view bytes) {
  if (bytes.empty()) return 0;
  size_t consumed = 0;
  if (!run_llhttp(bytes, &consumed)) return bytes.size();
  body_raw_bytes_ += consumed;
  const size_t body = request_.body.size();
  if (body_raw_bytes_ - std::min(body_raw_bytes_, body) > kFramingSlack + kFramingPerByte * body) {
    fail(400, "bad_request", "chunk extensions and trailers are out of proportion to the body");
  }
  return consumed;
}

void RequestParser::fail_from_llhttp() {
  const llhttp_errno_t rc = llhttp_get_errno(&parser_);
  switch (rc) {
    case HPE_INVALID_METHOD:
      return fail(400, "invalid_method", "the request line does not begin with an HTTP method");
    case HPE_INVALID_URL:
      return fail(400, "invalid_target", "the request target is not well formed");
    case HPE_INVALID_VERSION:
    case HPE_PAUSED_H2_UPGRADE:
      return fail(505, "unsupported_version", "this server speaks HTTP/1.0 and HTTP/1.1");
    case HPE_UNEXPECTED_CONTENT_LENGTH:
    case HPE_INVALID_CONTENT_LENGTH:
      return fail(400, "invalid_content_length",
                  "Content-Length is not one number, or conflicts with Transfer-Encoding");
    case HPE_INVALID_TRANSFER_ENCODING:
      return fail(400, "invalid_transfer_encoding", "the last transfer coding must be chunked");
    case HPE_INVALID_CHUNK_SIZE:
      return fail(400, "invalid_chunk", "a chunk size is not a hexadecimal number");
    default:
      break;
  }
  if (headers_done_) return fail(400, "invalid_chunk", "the chunked body is not well formed");
  fail(400, "bad_request",
       fmt::format("the request is not HTTP/1.1: {}", llhttp_get_error_reason(&parser_)));
}

void RequestParser::end_field() {
  field_open_ = false;
  if (headers_done_ || request_.headers.fields().empty()) return;
  // llhttp leaves the whitespace behind a value to us.
  std::string& value = request_.headers.fields().back().second;
  value = std::string(trim_whitespace(value));
}

int RequestParser::headers_complete() {
  headers_done_ = true;
  request_.version_minor = parser_.http_minor;
  request_.method = llhttp_method_name(static_cast<llhttp_method_t>(parser_.method));
  request_.keep_alive = llhttp_should_keep_alive(&parser_) != 0;
  if (!check_headers()) return -1;
  parser_.upgrade = 0;  // an Upgrade header may be ignored, and is
  return 0;
}

bool RequestParser::check_headers() {
  const Headers& h = request_.headers;
  if (parser_.http_major != 1 || parser_.http_minor > 1) {
    return fail(505, "unsupported_version", "this server speaks HTTP/1.0 and HTTP/1.1"), false;
  }
  if (request_.method == "CONNECT") {
    return fail(405, "method_not_allowed", "this server is not a proxy"), false;
  }
  const size_t hosts = h.count("Host");
  if (hosts > 1 || (hosts == 0 && request_.version_minor == 1)) {
    return fail(400, "invalid_host", "exactly one Host header is needed"), false;
  }
  auto target = parse_target(request_.target);
  if (!target || (target->path == "*" && request_.method != "OPTIONS")) {
    return fail(400, "invalid_target", "the request target is not well formed"), false;
  }
  request_.path = std::move(target->path);
  request_.query = std::move(target->query);
  const bool chunked = (parser_.flags & F_CHUNKED) != 0;
  const std::string* coding = h.get("Transfer-Encoding");
  if (coding != nullptr) {
    if (request_.version_minor == 0 || h.get("Content-Length") != nullptr) {
      return fail(400, "invalid_transfer_encoding",
                  "Transfer-Encoding needs HTTP/1.1 and no Content-Length"),
             false;
    }
    if (h.count("Transfer-Encoding") > 1 || !equals_ignoring_case(*coding, "chunked")) {
      return fail(chunked ? 501 : 400, "invalid_transfer_encoding",
                  "the only transfer coding here is chunked"),
             false;
    }
  }
  const bool has_body = chunked || parser_.content_length > 0;
  if (!chunked && parser_.content_length > limits_.body_max) {
    return fail(413, "body_too_large",
                fmt::format("the body has {} bytes, the limit is {}", parser_.content_length,
                            limits_.body_max)),
           false;
  }
  const std::string* content_coding = h.get("Content-Encoding");
  if (has_body && content_coding != nullptr && !equals_ignoring_case(*content_coding, "identity")) {
    return fail(415, "unsupported_encoding", "compressed bodies are not accepted"), false;
  }
  if (const std::string* expect = h.get("Expect");
      expect != nullptr && request_.version_minor == 1) {
    if (!equals_ignoring_case(*expect, "100-continue")) {
      return fail(417, "expectation_failed", "the only expectation met here is 100-continue"),
             false;
    }
    wants_continue_ = has_body;
  }
  return true;
}

int RequestParser::append_body(std::string_view data) {
  if (data.size() > limits_.body_max - request_.body.size()) {
    fail(413, "body_too_large", fmt::format("the body is larger than {} bytes", limits_.body_max));
    return -1;
  }
  if (!request_.lease.grow(data.size())) {
    fail(503, "overloaded", "too many large requests are being received; try again later");
    return -1;
  }
  request_.body.append(data);
  return 0;
}

}  // namespace weft::http
