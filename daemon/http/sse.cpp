#include "http/sse.h"

namespace weft::http {

Headers sse_headers() {
  return {{"Content-Type", "text/event-stream; charset=utf-8"},
          {"Cache-Control", "no-cache"},
          {"X-Accel-Buffering", "no"}};
}

std::string sse_frame(std::string_view data, std::string_view name) {
  std::string out;
  out.reserve(data.size() + name.size() + 24);
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  while (true) {
    // CR ends a line for a reader too, so both break the data into lines.
    const size_t end = data.find_first_of("\r\n");
    out.append("data: ").append(data.substr(0, end)).append("\n");
    if (end == std::string_view::npos) break;
    const bool crlf = data[end] == '\r' && end + 1 < data.size() && data[end + 1] == '\n';
    data.remove_prefix(end + (crlf ? 2 : 1));
  }
  out += '\n';
  return out;
}

bool SseWriter::event(std::string_view data, std::string_view name) {
  return stream_.write(sse_frame(data, name));
}

bool SseWriter::comment(std::string_view text) {
  std::string out = ": ";
  for (const char c : text) out += c == '\r' || c == '\n' ? ' ' : c;
  out += "\n\n";
  return stream_.write(out);
}

bool SseParser::feed(std::string_view bytes) {
  for (const char c : bytes) {
    if (after_cr_) {
      after_cr_ = false;
      if (c == '\n') continue;
    }
    if (c == '\r' || c == '\n') {
      after_cr_ = c == '\r';
      line(line_);
      line_.clear();
      continue;
    }
    if (line_.size() + event_.data.size() >= event_max_) return false;
    line_ += c;
  }
  return true;
}

void SseParser::line(std::string_view text) {
  if (text.empty()) {
    if (has_data_) {
      event_.data.pop_back();  // the newline after the last data line
      on_event_(event_);
    }
    event_ = SseEvent();
    has_data_ = false;
    return;
  }
  const size_t colon = text.find(':');
  const std::string_view field = text.substr(0, colon);
  std::string_view value =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  if (field == "data") {
    event_.data.append(value).append("\n");
    has_data_ = true;
  } else if (field == "event") {
    event_.name = value;
  }
}

}  // namespace weft::http
