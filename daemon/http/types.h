// What an HTTP exchange is made of: headers, requests, limits. Plain values, any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "loop/address.h"

namespace weft::http {

bool equals_ignoring_case(std::string_view a, std::string_view b);
std::string_view trim_whitespace(std::string_view text);  // spaces and tabs at both ends

class Headers {
 public:
  using Field = std::pair<std::string, std::string>;
  Headers() = default;
  Headers(std::initializer_list<Field> fields) : fields_(fields) {}

  void add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  void set(std::string_view name, std::string value);   // replaces all fields of that name
  const std::string* get(std::string_view name) const;  // first of that name, or null
  size_t count(std::string_view name) const;
  bool has_token(std::string_view name, std::string_view token) const;  // in a comma list, any case
  const std::vector<Field>& fields() const { return fields_; }
  std::vector<Field>& fields() { return fields_; }

 private:
  std::vector<Field> fields_;
};

// Every bound of the server, with what happens at it.
struct Limits {
  size_t request_line_max = 16 << 10;     // 414
  size_t header_bytes_max = 32 << 10;     // 431, without the request line
  size_t header_count_max = 128;          // 431
  size_t body_max = 64 << 20;             // 413
  size_t body_total_max = 512 << 20;      // 503, bodies held for all connections together
  size_t pipeline_buffer_max = 64 << 10;  // bytes behind the running request; then reading stops
  size_t connections_max = 4096;          // 503 and close
  size_t rejects_max = 64;        // refused connections being told so; more are closed silently
  size_t stream_high = 1 << 20;   // StreamWriter::write says false
  size_t stream_low = 256 << 10;  // on_drain
  size_t stream_hard = 16 << 20;  // aborted: the producer did not listen
  size_t linger_bytes_max =
      8 << 20;  // read and thrown away after an early error, so that the answer arrives
  uint64_t header_timeout_ms = 10'000;  // 408, from the first byte to the end of the headers
  uint64_t body_timeout_ms = 30'000;    // 408, per body_progress_min bytes
  size_t body_progress_min = 1024;
  uint64_t idle_timeout_ms = 75'000;  // keep-alive connection without a request: closed
  uint64_t write_stall_ms = 60'000;   // nothing taken by the client for so long: aborted
  uint64_t linger_ms = 2'000;
  // A client that shuts down its writing side looks like one that has gone. By default that ends
  // its running request at once, which is what frees an engine from answers nobody reads; true lets
  // such a client have its answer, and real disconnects are then noticed only by a failed write.
  bool allow_half_close = false;
};

// Memory that request bodies hold, shared by all connections of a server. Thread-safe: a request
// may die on a lane.
class BodyBudget {
 public:
  explicit BodyBudget(size_t max) : max_(max) {}
  bool take(size_t bytes) {
    if (used_.fetch_add(bytes) + bytes <= max_) return true;
    used_.fetch_sub(bytes);
    return false;
  }
  void give(size_t bytes) { used_.fetch_sub(bytes); }
  size_t used() const { return used_.load(); }

 private:
  const size_t max_;
  std::atomic<size_t> used_{0};
};

// The part of the budget that one body holds; returned when the request is destroyed.
class BodyLease {
 public:
  BodyLease() = default;
  explicit BodyLease(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  BodyLease(BodyLease&& other) noexcept { *this = std::move(other); }
  BodyLease& operator=(BodyLease&& other) noexcept {
    if (this != &other) {
      reset();
      budget_ = std::move(other.budget_);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~BodyLease() { reset(); }
  bool grow(size_t bytes) {
    if (budget_ == nullptr) return true;
    if (!budget_->take(bytes)) return false;
    bytes_ += bytes;
    return true;
  }

 private:
  void reset() {
    if (budget_ != nullptr) budget_->give(bytes_);
    bytes_ = 0;
  }
  std::shared_ptr<BodyBudget> budget_;  // shared: requests outlive the server on lanes
  size_t bytes_ = 0;
};

struct Request {
  uint64_t id = 0;     // unique within the server
  std::string method;  // "GET"
  std::string target;  // as sent
  std::string path;    // percent-decoded, without query; "*" for OPTIONS *
  std::string query;   // as sent, without '?'
  int version_minor = 1;
  Headers headers;
  std::string body;
  bool keep_alive = true;
  Peer peer;
  std::string tenant;  // set by whoever checked the client's key; empty: nobody in particular
  uint32_t tenant_weight = 1;
  std::map<std::string, std::string, std::less<>> params;  // filled by the router from its pattern
  BodyLease lease;

  // First value of a query parameter, decoded ('+' is a space). Null when absent.
  std::unique_ptr<std::string> query_value(std::string_view name) const;
};

// An error found by the HTTP layer itself. `code` is a short word for machines ("body_too_large").
struct HttpError {
  int status = 0;
  std::string code;
  std::string message;
};

// Makes the body of an error answer; the default is OpenAI's shape, application/json.
using ErrorFormatter = std::function<std::string(const HttpError&)>;
std::string format_openai_error(const HttpError& error);

const char* reason_phrase(int status);

}  // namespace weft::http
