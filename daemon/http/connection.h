// Connection: one client of the HTTP server: reads requests, hands them to the handler one at a
// time, writes answers.
//
// Loop thread. Owned by the server's table; a shared_ptr because its own callbacks may remove it
// from there while they run. After close() nothing of it is called any more.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "http/request_parser.h"
#include "http/responder.h"
#include "http/types.h"
#include "loop/loop.h"
#include "loop/stream.h"

namespace weft::http {

class Connection;

struct ServerStats {
  size_t connections = 0;
  size_t requests_in_flight = 0;
  uint64_t connections_total = 0;
  uint64_t requests_total = 0;
  uint64_t rejected_total = 0;         // over connections_max
  uint64_t protocol_errors_total = 0;  // 4xx and 503 of this layer
  uint64_t stalled_total = 0;          // aborted slow readers
  size_t body_bytes = 0;
};

// What all connections of a server share. Outlives the server while a connection is on the stack,
// hence shared_ptr.
struct ServerContext {
  ServerContext(Loop& l, Limits lim) : loop(l), limits(lim) {}
  Loop& loop;
  const Limits limits;
  std::shared_ptr<BodyBudget> budget;
  Handler handler;
  ErrorFormatter format_error;
  std::unordered_map<uint64_t, std::shared_ptr<Connection>> connections;
  uint64_t next_connection_id = 1;
  uint64_t next_request_id = 1;
  size_t rejects = 0;  // connections being told that there are too many
  bool draining = false;
  ServerStats stats;
};

class Connection final : public ExchangeSink, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<ServerContext> context, uint64_t id, std::unique_ptr<Stream> stream);
  ~Connection() override;

  void start();
  void reject();  // answers 503 without reading
  void close_if_idle();
  void close();  // at once; a running exchange is told of the disconnect

  void send_response(int status, Headers headers, std::string body) override;
  void send_error(const HttpError& error, Headers extra) override;
  void begin_stream(int status, Headers headers) override;
  bool write_stream(std::string_view bytes) override;
  void end_stream() override;
  void abort_exchange() override;
  size_t stream_buffered() const override;

 private:
  enum class Phase { kFresh, kIdle, kHead, kBody, kExchange, kFlush, kLinger, kClosed };

  void wire_callbacks();
  void on_data(std::string_view bytes);
  void on_eof();
  void on_flushed();
  void process(std::string_view bytes);
  void continue_pending();
  void dispatch();
  void finish_exchange();
  void answer_error(const HttpError& error);
  void enter(Phase phase);
  void on_phase_timeout();
  void on_body_timeout();
  void flush_and_close();
  void linger();
  void write_bytes(std::string bytes);
  void watch_stall();
  void check_stall();
  void close_later();
  bool stays_open() const;

  std::shared_ptr<ServerContext> context_;
  const uint64_t id_;
  std::unique_ptr<Stream> stream_;
  RequestParser parser_;
  Timer phase_timer_;
  Timer stall_timer_;
  Phase phase_ = Phase::kFresh;
  Peer peer_;
  std::shared_ptr<Exchange> exchange_;  // the running request, shared with its responder
  std::string pending_;                 // pipelined bytes behind it
  bool processing_ = false;
  bool eof_seen_ = false;
  bool rejected_ = false;
  // Of the running request.
  bool request_keep_alive_ = false;
  bool request_is_head_ = false;
  int request_minor_ = 1;
  bool chunked_ = false;
  bool close_delimited_ = false;
  // Progress marks.
  size_t body_mark_ = 0;
  uint64_t written_mark_ = 0;
  uint64_t progress_ms_ = 0;
  size_t discarded_ = 0;
};

}  // namespace weft::http
