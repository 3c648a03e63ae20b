#include "text/stop_matcher.h"

#include <algorithm>

namespace weft::text {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include) : include_(include) {
  for (std::string& stop : stops)
    if (!stop.empty()) stops_.push_back(std::move(stop));
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

std::string StopMatcher::feed(std::string_view text) {
  if (matched()) return {};
  if (!active()) return std::string(text);
  buffer_ += text;
  size_t best_begin = std::string::npos, best_end = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t begin = buffer_.find(stops_[i]);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stops_[i].size();
    if (end < best_end || (end == best_end && begin < best_begin)) {
      best_begin = begin;
      best_end = end;
      matched_ = static_cast<int>(i);
    }
  }
  std::string out;
  if (matched()) {
    out = buffer_.substr(0, include_ ? best_end : best_begin);
    buffer_.clear();
    return out;
  }
  const size_t keep = held_length();
  out = buffer_.substr(0, buffer_.size() - keep);
  buffer_.erase(0, buffer_.size() - keep);
  return out;
}

// Length of the longest suffix that is a proper prefix of a stop string. What came before it can
// take part in no match, so the buffer never grows beyond one feed plus the longest stop string.
size_t StopMatcher::held_length() const {
  const size_t limit = std::min(buffer_.size(), longest_ - 1);
  for (size_t length = limit; length > 0; --length) {
    const std::string_view suffix = std::string_view(buffer_).substr(buffer_.size() - length);
    for (const std::string& stop : stops_)
      if (stop.size() > length && std::string_view(stop).substr(0, length) == suffix) return length;
  }
  return 0;
}

std::string StopMatcher::flush() {
  std::string out;
  if (!matched()) out.swap(buffer_);
  buffer_.clear();
  return out;
}

}  // namespace weft::text
