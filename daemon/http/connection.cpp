#include "http/connection.h"

#include <algorithm>
#include <ctime>

#include "http/response_head.h"

namespace weft::http {

Connection::Connection(std::shared_ptr<ServerContext> context, uint64_t id,
                       std::unique_ptr<Stream> stream)
    : context_(std::move(context)),
      id_(id),
      stream_(std::move(stream)),
      parser_(context_->limits, context_->budget),
      phase_timer_(context_->loop),
      stall_timer_(context_->loop) {
  stream_->set_watermarks({context_->limits.stream_high, context_->limits.stream_low});
  peer_ = peer_of(stream_->fd());
}

Connection::~Connection() = default;

void Connection::wire_callbacks() {
  // The stream is ours and dies in close(), so `this` is safe; `self` keeps us alive while a
  // callback closes us.
  StreamCallbacks callbacks;
  callbacks.on_data = [this](std::string_view bytes) {
    const auto self = shared_from_this();
    on_data(bytes);
  };
  callbacks.on_eof = [this] {
    const auto self = shared_from_this();
    on_eof();
  };
  callbacks.on_error = [this](const Error&) {
    const auto self = shared_from_this();
    close();
  };
  callbacks.on_drain = [this] {
    const auto self = shared_from_this();
    if (exchange_ != nullptr && exchange_->on_drain) {
      const auto fn = exchange_->on_drain;  // it may replace itself
      fn();
    }
  };
  callbacks.on_flushed = [this] {
    const auto self = shared_from_this();
    on_flushed();
  };
  stream_->set_callbacks(std::move(callbacks));
}

void Connection::start() {
  wire_callbacks();
  enter(Phase::kFresh);
  stream_->resume_reading();
}

void Connection::reject() {
  rejected_ = true;
  ++context_->rejects;
  wire_callbacks();
  stream_->resume_reading();
  answer_error(
      {503, "too_many_connections", "the server has too many connections; try again later"});
}

void Connection::close_if_idle() {
  if (phase_ == Phase::kFresh || phase_ == Phase::kIdle) close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  phase_timer_.stop();
  stall_timer_.stop();
  stream_.reset();
  pending_.clear();
  if (rejected_) --context_->rejects;
  const auto self = shared_from_this();
  context_->connections.erase(id_);
  if (const auto exchange = std::exchange(exchange_, nullptr); exchange != nullptr) {
    --context_->stats.requests_in_flight;
    exchange->disconnect();
  }
}

void Connection::close_later() {
  context_->loop.post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->close();
  });
}

void Connection::on_data(std::string_view bytes) {
  if (phase_ == Phase::kFlush || phase_ == Phase::kLinger) {
    discarded_ += bytes.size();
    if (discarded_ > context_->limits.linger_bytes_max) close();
    return;
  }
  if (exchange_ != nullptr || !pending_.empty()) {
    pending_.append(bytes);
    if (pending_.size() >= context_->limits.pipeline_buffer_max) stream_->pause_reading();
    return;
  }
  process(bytes);
}

void Connection::on_eof() {
  eof_seen_ = true;
  switch (phase_) {
    case Phase::kExchange:
      if (!context_->limits.allow_half_close) close();
      return;
    case Phase::kFlush:
      return;  // the answer is on its way; a failed write or the stall timer ends this
    default:
      // Pipelined requests that wait for their turn count like the running one.
      if (pending_.empty() || !context_->limits.allow_half_close) close();
      return;
  }
}

void Connection::on_flushed() {
  if (phase_ == Phase::kFlush) linger();
}

void Connection::process(std::string_view bytes) {
  processing_ = true;
  while (phase_ != Phase::kClosed && phase_ != Phase::kFlush && phase_ != Phase::kLinger) {
    if (exchange_ != nullptr) {
      pending_.append(bytes);
      break;
    }
    bytes.remove_prefix(parser_.feed(bytes));
    if (parser_.wants_continue() && parser_.state() == RequestParser::State::kBody &&
        parser_.body_bytes() == 0) {
      write_bytes("HTTP/1.1 100 Continue\r\n\r\n");
    }
    if (parser_.state() == RequestParser::State::kComplete) {
      dispatch();
    } else if (parser_.state() == RequestParser::State::kError) {
      ++context_->stats.protocol_errors_total;
      answer_error(parser_.error());
    } else {
      switch (parser_.state()) {
        case RequestParser::State::kHead:
          enter(Phase::kHead);
          break;
        case RequestParser::State::kBody:
          enter(Phase::kBody);
          break;
        default:
          break;
      }
      break;  // all bytes are used
    }
  }
  processing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (pending_.size() >= context_->limits.pipeline_buffer_max) {
    stream_->pause_reading();
  } else {
    stream_->resume_reading();
  }
  if (eof_seen_ && exchange_ == nullptr && phase_ != Phase::kFlush && phase_ != Phase::kLinger) {
    flush_and_close();
  }
}

void Connection::dispatch() {
  Request request = parser_.take();
  enter(Phase::kExchange);
  request.id = context_->next_request_id++;
  request.peer = peer_;
  request_keep_alive_ = request.keep_alive;
  request_is_head_ = request.method == "HEAD";
  request_minor_ = request.version_minor;
  chunked_ = close_delimited_ = false;
  exchange_ = std::make_shared<Exchange>();
  exchange_->sink = this;
  ++context_->stats.requests_total;
  ++context_->stats.requests_in_flight;
  Responder responder(exchange_);
  context_->handler(std::move(request), std::move(responder));
}

void Connection::finish_exchange() {
  exchange_ = nullptr;
  --context_->stats.requests_in_flight;
  if (!stays_open() || close_delimited_) {
    flush_and_close();
    return;
  }
  enter(Phase::kIdle);
  // The next pipelined request starts from the loop, not inside the call that ended this one.
  if (!processing_ && (!pending_.empty() || eof_seen_)) {
    context_->loop.post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->continue_pending();
    });
  }
}

void Connection::continue_pending() {
  if (phase_ != Phase::kIdle) return;
  const std::string bytes = std::exchange(pending_, {});
  process(bytes);
}

bool Connection::stays_open() const { return request_keep_alive_ && !context_->draining; }

void Connection::answer_error(const HttpError& error) {
  request_keep_alive_ = false;
  request_is_head_ = false;
  request_minor_ = 1;
  Headers headers{{"Content-Type", "application/json"}};
  if (error.status == 503) headers.add("Retry-After", "1");
  const std::string body = context_->format_error(error);
  headers.add("Content-Length", std::to_string(body.size()));
  headers.add("Date", http_date(std::time(nullptr)));
  headers.add("Connection", "close");
  write_bytes(response_head(error.status, headers, 1) + body);
  flush_and_close();
}

void Connection::send_response(int status, Headers headers, std::string body) {
  const bool bodyless = status == 204 || status == 304 || status < 200;
  if (!bodyless) headers.set("Content-Length", std::to_string(body.size()));
  headers.set("Date", http_date(std::time(nullptr)));
  if (!stays_open()) {
    headers.set("Connection", "close");
  } else if (request_minor_ == 0) {
    headers.set("Connection", "keep-alive");
  }
  std::string bytes = response_head(status, headers, request_minor_);
  if (!bodyless && !request_is_head_) bytes += body;
  write_bytes(std::move(bytes));
  finish_exchange();
}

void Connection::send_error(const HttpError& error, Headers headers) {
  headers.set("Content-Type", "application/json");
  if (error.status == 503) headers.add("Retry-After", "1");
  send_response(error.status, std::move(headers), context_->format_error(error));
}

void Connection::begin_stream(int status, Headers headers) {
  headers.set("Date", http_date(std::time(nullptr)));
  chunked_ = request_minor_ == 1;
  close_delimited_ = !chunked_;
  if (chunked_) headers.set("Transfer-Encoding", "chunked");
  if (!stays_open() || close_delimited_) headers.set("Connection", "close");
  write_bytes(response_head(status, headers, request_minor_));
}

bool Connection::write_stream(std::string_view bytes) {
  if (request_is_head_ || bytes.empty()) return true;
  const Limits& limits = context_->limits;
  if (chunked_) {
    std::string chunk = fmt::format("{:x}\r\n", bytes.size());
    chunk.reserve(chunk.size() + bytes.size() + 2);
    chunk.append(bytes).append("\r\n");
    write_bytes(std::move(chunk));
  } else {
    write_bytes(std::string(bytes));
  }
  if (stream_->buffered() > limits.stream_hard) {
    // The producer went on after "false". Memory is bounded here; it hears of the disconnect from
    // the loop.
    exchange_->sink = nullptr;
    close_later();
    return false;
  }
  return stream_->buffered() < limits.stream_high;
}

void Connection::end_stream() {
  if (chunked_ && !request_is_head_) write_bytes("0\r\n\r\n");
  finish_exchange();
}

void Connection::abort_exchange() {
  exchange_ = nullptr;
  --context_->stats.requests_in_flight;
  close();
}

size_t Connection::stream_buffered() const { return stream_->buffered(); }

void Connection::write_bytes(std::string bytes) {
  stream_->write(std::move(bytes));
  watch_stall();
}

void Connection::watch_stall() {
  if (stream_->buffered() == 0 || stall_timer_.active()) return;
  written_mark_ = stream_->bytes_written();
  progress_ms_ = context_->loop.now_ms();
  const uint64_t step = std::max<uint64_t>(1, context_->limits.write_stall_ms / 4);
  stall_timer_.repeat(step, [this] {
    const auto self = shared_from_this();
    check_stall();
  });
}

void Connection::check_stall() {
  if (stream_->buffered() == 0) {
    stall_timer_.stop();
    return;
  }
  const uint64_t written = stream_->bytes_written();
  if (written != written_mark_) {
    written_mark_ = written;
    progress_ms_ = context_->loop.now_ms();
    return;
  }
  if (context_->loop.now_ms() - progress_ms_ < context_->limits.write_stall_ms) return;
  ++context_->stats.stalled_total;
  close();
}

void Connection::enter(Phase phase) {
  const Limits& limits = context_->limits;
  // The header time runs from the first byte and does not start again with each further one; the
  // same for a body.
  if (phase == phase_ && phase != Phase::kFresh) return;
  phase_ = phase;
  const auto arm = [this](uint64_t ms) {
    phase_timer_.start(ms, [this] {
      const auto self = shared_from_this();
      on_phase_timeout();
    });
  };
  switch (phase) {
    case Phase::kFresh:
      return arm(std::min(limits.header_timeout_ms, limits.idle_timeout_ms));
    case Phase::kIdle:
      return arm(limits.idle_timeout_ms);
    case Phase::kHead:
      return arm(limits.header_timeout_ms);
    case Phase::kBody:
      body_mark_ = parser_.body_bytes();
      return arm(limits.body_timeout_ms);
    case Phase::kLinger:
      return arm(limits.linger_ms);
    case Phase::kExchange:
    case Phase::kFlush:
    case Phase::kClosed:
      phase_timer_.stop();
      return;
  }
}

void Connection::on_phase_timeout() {
  switch (phase_) {
    case Phase::kHead:
      ++context_->stats.protocol_errors_total;
      return answer_error({408, "request_timeout", "the request headers did not arrive in time"});
    case Phase::kBody:
      return on_body_timeout();
    default:
      return close();
  }
}

void Connection::on_body_timeout() {
  if (parser_.body_bytes() - body_mark_ >= context_->limits.body_progress_min) {
    phase_ = Phase::kHead;  // so that enter() starts the next span
    return enter(Phase::kBody);
  }
  ++context_->stats.protocol_errors_total;
  answer_error({408, "request_timeout", "the request body did not arrive in time"});
}

void Connection::flush_and_close() {
  pending_.clear();
  enter(Phase::kFlush);
  stream_
      ->resume_reading();  // what comes now is thrown away, so that a reset does not eat the answer
  if (stream_->buffered() == 0) linger();
}

void Connection::linger() {
  if (eof_seen_) return close_later();
  stream_->shutdown_write();
  enter(Phase::kLinger);
}

}  // namespace weft::http
