// Stop strings over a stream of text. Text that could still become a stop string is held back, so
// the client never sees a part of one; which match is found does not depend on how the text was
// cut: the one that ends first wins, of those the one that starts first.
//
// One per choice, used by the one thread that owns the choice.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::text {

class StopMatcher {
 public:
  StopMatcher() = default;
  // Empty strings are ignored. With `include` the stop string itself is let through.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);

  bool active() const { return !stops_.empty(); }
  // Returns the text that is now certain; nothing after a match.
  std::string feed(std::string_view text);
  // Returns what was held back (the end of the text, or of a stretch that a stop string may not
  // cross).
  std::string flush();

  bool matched() const { return matched_ >= 0; }
  std::string_view match() const {
    return matched() ? std::string_view(stops_[static_cast<size_t>(matched_)]) : "";
  }

 private:
  size_t held_length() const;

  std::vector<std::string> stops_;
  bool include_ = false;
  std::string buffer_;
  size_t longest_ = 0;
  int matched_ = -1;
};

}  // namespace weft::text
