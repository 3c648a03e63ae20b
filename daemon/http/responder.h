// Responder and StreamWriter: how a handler answers one request, now or later.
//
// Both are move-only and belong to the loop thread: carry them to a lane and back inside closures,
// but call and destroy them on the loop. They may outlive the connection; calls then do nothing and
// alive() says so. Each answer ends: a Responder destroyed without one sends 500, a StreamWriter
// destroyed without end() cuts the connection, which is how a client can tell a broken stream from
// a finished one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "http/types.h"

namespace weft::http {

// The connection's side of an exchange. Tests of handlers implement it to see answers without
// sockets.
class ExchangeSink {
 public:
  virtual ~ExchangeSink() = default;
  virtual void send_response(int status, Headers headers, std::string body) = 0;
  virtual void send_error(const HttpError& error, Headers extra) = 0;
  virtual void begin_stream(int status, Headers headers) = 0;
  virtual bool write_stream(std::string_view bytes) = 0;  // false: above the high mark or gone
  virtual void end_stream() = 0;
  virtual void abort_exchange() = 0;
  virtual size_t stream_buffered() const = 0;
};

// Shared by the connection and the handler's object, because either may go first.
struct Exchange {
  ExchangeSink* sink = nullptr;  // null once answered, or once the client is gone
  bool disconnected = false;
  std::function<void()> on_disconnect;
  std::function<void()> on_drain;

  void
  disconnect();  // called by the sink's owner when the client goes away: runs on_disconnect once
};

class StreamWriter {
 public:
  StreamWriter() = default;
  explicit StreamWriter(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  StreamWriter(StreamWriter&&) = default;
  StreamWriter& operator=(StreamWriter&& other) noexcept;
  ~StreamWriter() { abort(); }

  // False: stop until on_drain (the bytes were taken), or the client is gone (alive() is false).
  bool write(std::string_view bytes);
  size_t buffered() const;  // bytes the kernel has not taken yet
  bool alive() const { return exchange_ != nullptr && exchange_->sink != nullptr; }
  void end();
  void abort();
  void on_drain(std::function<void()> fn);
  // Runs once when the client goes away before end(), never inside one of our calls.
  void on_disconnect(std::function<void()> fn);

 private:
  std::shared_ptr<Exchange> exchange_;
};

class Responder {
 public:
  Responder() = default;
  explicit Responder(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  Responder(Responder&&) = default;
  Responder& operator=(Responder&& other) noexcept;
  ~Responder();

  bool alive() const { return exchange_ != nullptr && exchange_->sink != nullptr; }
  void send(int status, Headers headers,
            std::string body);  // Content-Length and the like are added
  void send_json(int status, std::string body);
  void send_error(const HttpError& error, Headers extra = {});  // in the server's error format
  StreamWriter begin_stream(int status, Headers headers);
  void on_disconnect(std::function<void()> fn);  // kept by the StreamWriter

 private:
  std::shared_ptr<Exchange> exchange_;
};

using Handler = std::function<void(Request, Responder)>;

}  // namespace weft::http
