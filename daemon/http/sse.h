// Server-sent events: SseWriter frames them onto a StreamWriter, SseParser reads them back
// (weftctl, tests).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "http/responder.h"

namespace weft::http {

Headers sse_headers();  // for begin_stream

class SseWriter {
 public:
  SseWriter() = default;
  explicit SseWriter(StreamWriter stream) : stream_(std::move(stream)) {}

  // One event; data with newlines becomes several data lines. False as StreamWriter::write.
  bool event(std::string_view data, std::string_view name = {});
  bool comment(
      std::string_view text);  // ignored by clients; keeps proxies from closing an idle stream
  void end() { stream_.end(); }
  StreamWriter& stream() { return stream_; }

 private:
  StreamWriter stream_;
};

std::string sse_frame(std::string_view data, std::string_view name);

struct SseEvent {
  std::string name;  // empty when there was no event line
  std::string data;
};

// Any cut of the input gives the same events. Lines end in LF, CRLF or CR.
class SseParser {
 public:
  using OnEvent = std::function<void(const SseEvent&)>;
  explicit SseParser(OnEvent on_event, size_t event_max = 16 << 20)
      : on_event_(std::move(on_event)), event_max_(event_max) {}
  [[nodiscard]] bool feed(std::string_view bytes);  // false: an event is larger than event_max

 private:
  void line(std::string_view text);
  OnEvent on_event_;
  const size_t event_max_;
  std::string line_;
  SseEvent event_;
  bool has_data_ = false;
  bool after_cr_ = false;
};

}  // namespace weft::http
