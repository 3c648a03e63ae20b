// Client: a small blocking HTTP/1.1 client for weftctl and tests. One connection per request, no
// redirects, no TLS.
//
// Any thread, one request at a time. Nothing is retried. Memory is bounded by the limits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/types.h"

namespace weft::http {

struct ClientOptions {
  uint64_t connect_timeout_ms = 5'000;
  uint64_t idle_timeout_ms =
      0;  // longest silence while waiting for the answer or inside it; 0 = wait for ever
  size_t head_max = 64 << 10;
  size_t body_max = 64 << 20;  // of a buffered body; a streamed one has no limit
  // When it becomes true the request ends with kCancelled (set from a signal handler or another
  // thread).
  const std::atomic<bool>* cancel = nullptr;
};

struct ClientRequest {
  std::string method = "GET";
  std::string target = "/";
  Headers headers;  // Host, Content-Length and Connection are added
  std::string body;
};

struct ClientResponse {
  int status = 0;
  Headers headers;
  std::string body;      // what was not streamed
  bool stopped = false;  // the body callback said stop
};

// Gets the body in pieces as they come, after the head was read; false closes the connection and
// ends the request.
using BodyCallback = std::function<bool(const ClientResponse& head, std::string_view bytes)>;

class Client {
 public:
  // Addresses as for a listener. Nothing is connected yet.
  static Result<Client> make(std::string_view address, const ClientOptions& options = {});

  // kUnavailable: nobody listens there. kPermission: the socket file does not let us. kTimeout,
  // kPeer: as they say.
  Result<ClientResponse> request(const ClientRequest& request,
                                 const BodyCallback& on_body = {}) const;

 private:
  Client(Address address, ClientOptions options)
      : address_(std::move(address)), options_(options) {}
  Result<UniqueFd> connect_socket() const;
  Status send_all(int fd, std::string_view bytes) const;
  Status wait_for(int fd, short events, uint64_t timeout_ms, std::string_view what) const;

  Address address_;
  ClientOptions options_;
};

}  // namespace weft::http
