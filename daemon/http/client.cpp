#include "http/client.h"

#include <llhttp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace weft::http {
namespace {

// Reads one answer; interim 1xx answers are skipped.
class ResponseReader {
 public:
  ResponseReader(const ClientOptions& options, bool head_request, const BodyCallback& on_body)
      : options_(options), head_request_(head_request), on_body_(on_body) {
    llhttp_settings_init(&settings_);
    settings_.on_message_begin = [](llhttp_t* p) {
      self(p)->response_ = ClientResponse();
      self(p)->in_head_ = true;
      return 0;
    };
    settings_.on_header_field = [](llhttp_t* p, const char* at, size_t n) {
      return self(p)->field(std::string_view(at, n));
    };
    settings_.on_header_value = [](llhttp_t* p, const char* at, size_t n) {
      return self(p)->value(std::string_view(at, n));
    };
    settings_.on_header_value_complete = [](llhttp_t* p) {
      self(p)->end_field();
      return 0;
    };
    settings_.on_headers_complete = [](llhttp_t* p) { return self(p)->headers_complete(); };
    settings_.on_body = [](llhttp_t* p, const char* at, size_t n) {
      return self(p)->body(std::string_view(at, n));
    };
    settings_.on_message_complete = [](llhttp_t* p) { return self(p)->message_complete(); };
    llhttp_init(&parser_, HTTP_RESPONSE, &settings_);
    parser_.data = this;
  }

  Status feed(std::string_view bytes) {
    const llhttp_errno_t rc = llhttp_execute(&parser_, bytes.data(), bytes.size());
    head_bytes_ += in_head_ ? bytes.size() : 0;
    return check(rc);
  }
  Status finish() {  // the server closed the connection
    const llhttp_errno_t rc = llhttp_finish(&parser_);
    if (done_) return {};
    if (rc != HPE_OK || !done_) {
      return make_error(ErrorCode::kPeer,
                        "the server closed the connection before its answer was complete");
    }
    return {};
  }
  bool done() const { return done_; }
  ClientResponse take() { return std::move(response_); }

 private:
  static ResponseReader* self(llhttp_t* p) { return static_cast<ResponseReader*>(p->data); }

  Status check(llhttp_errno_t rc) {
    if (done_) return {};
    if (!error_.empty()) return make_error(ErrorCode::kPeer, "{}", error_);
    if (head_bytes_ > options_.head_max + (64 << 10)) {
      return make_error(ErrorCode::kPeer, "the headers of the answer are larger than {} bytes",
                        options_.head_max);
    }
    if (rc != HPE_OK) {
      return make_error(ErrorCode::kPeer, "the answer is not HTTP/1.1: {}",
                        llhttp_get_error_reason(&parser_));
    }
    return {};
  }
  int grow_head(size_t n) {
    header_chars_ += n;
    if (header_chars_ <= options_.head_max) return 0;
    error_ = fmt::format("the headers of the answer are larger than {} bytes", options_.head_max);
    return -1;
  }
  int field(std::string_view text) {
    if (!in_head_) return 0;  // a trailer
    auto& fields = response_.headers.fields();
    if (!field_open_) fields.emplace_back();
    field_open_ = true;
    fields.back().first.append(text);
    return grow_head(text.size() + 1);
  }
  int value(std::string_view text) {
    if (!in_head_ || response_.headers.fields().empty()) return 0;
    response_.headers.fields().back().second.append(text);
    return grow_head(text.size());
  }
  void end_field() {
    field_open_ = false;
    if (!in_head_ || response_.headers.fields().empty()) return;
    std::string& value = response_.headers.fields().back().second;
    value = std::string(trim_whitespace(value));
  }
  int headers_complete() {
    in_head_ = false;
    response_.status = parser_.status_code;
    parser_.upgrade = 0;
    return head_request_ ? 1 : 0;
  }
  int body(std::string_view bytes) {
    if (parser_.status_code < 200) return 0;
    if (on_body_) {
      if (on_body_(response_, bytes)) return 0;
      response_.stopped = true;
      done_ = true;
      return HPE_USER;
    }
    if (bytes.size() > options_.body_max - response_.body.size()) {
      error_ = fmt::format("the answer is larger than {} bytes", options_.body_max);
      return -1;
    }
    response_.body.append(bytes);
    return 0;
  }
  int message_complete() {
    if (parser_.status_code < 200) return 0;
    done_ = true;
    return HPE_PAUSED;
  }

  const ClientOptions& options_;
  const bool head_request_;
  const BodyCallback& on_body_;
  llhttp_settings_t settings_{};
  llhttp_t parser_{};
  ClientResponse response_;
  std::string error_;
  size_t head_bytes_ = 0;
  size_t header_chars_ = 0;
  bool in_head_ = false;
  bool field_open_ = false;
  bool done_ = false;
};

Error connect_error(const Address& address, int error) {
  ErrorCode code = ErrorCode::kIo;
  if (error == ECONNREFUSED || error == ENOENT || error == EHOSTUNREACH || error == ENETUNREACH ||
      error == ENOTDIR) {
    code = ErrorCode::kUnavailable;
  } else if (error == EACCES || error == EPERM) {
    code = ErrorCode::kPermission;
  }
  return make_error(code, "cannot connect to {}: {}", to_string(address), strerror(error));
}

std::string serialize(const ClientRequest& request, const Address& address) {
  std::string out = request.method + " " + request.target + " HTTP/1.1\r\n";
  Headers headers = request.headers;
  if (headers.get("Host") == nullptr) {
    headers.add("Host", address.is_unix() ? "localhost" : to_string(address));
  }
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    headers.set("Content-Length", std::to_string(request.body.size()));
  }
  headers.set("Connection", "close");
  for (const auto& [name, value] : headers.fields()) out += name + ": " + value + "\r\n";
  return out + "\r\n" + request.body;
}

}  // namespace

Result<Client> Client::make(std::string_view address, const ClientOptions& options) {
  WEFT_ASSIGN(Address parsed, parse_address(address));
  return Client(std::move(parsed), options);
}

// 0 means no limit. The wait is cut into slices, so that a cancel that comes just before poll() is
// seen soon.
Status Client::wait_for(int fd, short events, uint64_t timeout_ms, std::string_view what) const {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSliceMs = 100;
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    if (options_.cancel != nullptr && options_.cancel->load()) {
      return make_error(ErrorCode::kCancelled, "{}: cancelled", what);
    }
    int64_t wait_ms = options_.cancel != nullptr ? kSliceMs : 3'600'000;
    if (timeout_ms > 0) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
      if (left <= 0) {
        return make_error(ErrorCode::kTimeout, "{}: nothing happened for {} ms", what, timeout_ms);
      }
      wait_ms = std::min<int64_t>(wait_ms, left);
    }
    pollfd p{fd, events, 0};
    const int rc = poll(&p, 1, static_cast<int>(wait_ms));
    if (rc > 0) return {};
    if (rc < 0 && errno != EINTR)
      return make_error(ErrorCode::kIo, "{}: {}", what, strerror(errno));
  }
}

Result<UniqueFd> Client::connect_socket() const {
  UniqueFd fd(socket(address_.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return make_error(ErrorCode::kIo, "cannot create a socket: {}", strerror(errno));
  if (connect(fd.get(), address_.raw(), address_.size) == 0) return fd;
  if (errno == EAGAIN) {  // a Unix socket whose backlog is full
    return make_error(ErrorCode::kUnavailable, "{} is busy; try again", to_string(address_));
  }
  if (errno != EINPROGRESS) return connect_error(address_, errno);
  WEFT_TRY(wait_for(fd.get(), POLLOUT, options_.connect_timeout_ms,
                    "connecting to " + to_string(address_)));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return connect_error(address_, error);
  return fd;
}

Status Client::send_all(int fd, std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    // The server may have answered early (413) and stopped reading: its answer says more than our
    // error.
    if (errno == EPIPE || errno == ECONNRESET) return {};
    if (errno != EAGAIN)
      return make_error(ErrorCode::kIo, "sending the request: {}", strerror(errno));
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, 0) > 0) return {};  // it answers before it has read all
    WEFT_TRY(wait_for(fd, POLLOUT | POLLIN, options_.idle_timeout_ms, "sending the request"));
  }
  return {};
}

Result<ClientResponse> Client::request(const ClientRequest& request,
                                       const BodyCallback& on_body) const {
  WEFT_ASSIGN(const UniqueFd fd, connect_socket());
  WEFT_TRY(send_all(fd.get(), serialize(request, address_)));
  ResponseReader reader(options_, request.method == "HEAD", on_body);
  char buffer[16 << 10];
  while (!reader.done()) {
    const ssize_t n = recv(fd.get(), buffer, sizeof(buffer), 0);
    if (n > 0) {
      WEFT_TRY(reader.feed(std::string_view(buffer, static_cast<size_t>(n))));
    } else if (n == 0) {
      WEFT_TRY(reader.finish());
    } else if (errno == EAGAIN) {
      WEFT_TRY(wait_for(fd.get(), POLLIN, options_.idle_timeout_ms, "waiting for the answer"));
    } else if (errno != EINTR) {
      return make_error(ErrorCode::kPeer, "reading the answer: {}", strerror(errno));
    }
  }
  return reader.take();
}

}  // namespace weft::http
