#include "http/responder.h"

namespace weft::http {

void Exchange::disconnect() {
  sink = nullptr;
  disconnected = true;
  on_drain = nullptr;
  const auto fn = std::exchange(on_disconnect, nullptr);
  if (fn) fn();
}

StreamWriter& StreamWriter::operator=(StreamWriter&& other) noexcept {
  if (this != &other) {
    abort();
    exchange_ = std::move(other.exchange_);
  }
  return *this;
}

bool StreamWriter::write(std::string_view bytes) {
  return alive() && exchange_->sink->write_stream(bytes);
}

size_t StreamWriter::buffered() const { return alive() ? exchange_->sink->stream_buffered() : 0; }

void StreamWriter::end() {
  const auto exchange = std::move(exchange_);
  if (exchange == nullptr) return;
  exchange->on_disconnect = nullptr;
  exchange->on_drain = nullptr;
  if (exchange->sink != nullptr) std::exchange(exchange->sink, nullptr)->end_stream();
}

void StreamWriter::abort() {
  const auto exchange = std::move(exchange_);
  if (exchange == nullptr) return;
  exchange->on_disconnect = nullptr;
  exchange->on_drain = nullptr;
  if (exchange->sink != nullptr) std::exchange(exchange->sink, nullptr)->abort_exchange();
}

void StreamWriter::on_drain(std::function<void()> fn) {
  if (alive()) exchange_->on_drain = std::move(fn);
}

void StreamWriter::on_disconnect(std::function<void()> fn) {
  if (alive()) exchange_->on_disconnect = std::move(fn);
}

Responder& Responder::operator=(Responder&& other) noexcept {
  if (this != &other) {
    const Responder old(std::move(exchange_));  // answers 500 if it had not been
    exchange_ = std::move(other.exchange_);
  }
  return *this;
}

Responder::~Responder() {
  if (alive()) send_error({500, "internal_error", "the request was dropped without an answer"});
}

void Responder::send(int status, Headers headers, std::string body) {
  const auto exchange = std::move(exchange_);
  if (exchange == nullptr) return;
  exchange->on_disconnect = nullptr;
  if (exchange->sink == nullptr) return;
  std::exchange(exchange->sink, nullptr)
      ->send_response(status, std::move(headers), std::move(body));
}

void Responder::send_json(int status, std::string body) {
  send(status, {{"Content-Type", "application/json"}}, std::move(body));
}

void Responder::send_error(const HttpError& error, Headers extra) {
  const auto exchange = std::move(exchange_);
  if (exchange == nullptr) return;
  exchange->on_disconnect = nullptr;
  if (exchange->sink == nullptr) return;
  std::exchange(exchange->sink, nullptr)->send_error(error, std::move(extra));
}

StreamWriter Responder::begin_stream(int status, Headers headers) {
  auto exchange = std::move(exchange_);
  if (exchange != nullptr && exchange->sink != nullptr) {
    exchange->sink->begin_stream(status, std::move(headers));
  }
  return StreamWriter(std::move(exchange));
}

void Responder::on_disconnect(std::function<void()> fn) {
  if (alive()) exchange_->on_disconnect = std::move(fn);
}

}  // namespace weft::http
