#include "text/special_matcher.h"

#include <algorithm>

namespace weft::text {

void SpecialMatcher::add(std::string_view token, int32_t id) {
  if (token.empty()) return;
  auto& group = by_first_[static_cast<uint8_t>(token.front())];
  if (group.empty()) first_bytes_ += token.front();
  const auto at = std::find_if(group.begin(), group.end(),
                               [&](const Entry& e) { return e.token.size() < token.size(); });
  group.insert(at, Entry{std::string(token), id});
  ++count_;
}

bool SpecialMatcher::find(std::string_view text, size_t from, Match* match) const {
  if (empty()) return false;
  for (size_t i = text.find_first_of(first_bytes_, from); i != std::string_view::npos;
       i = text.find_first_of(first_bytes_, i + 1)) {
    for (const Entry& entry : by_first_[static_cast<uint8_t>(text[i])]) {
      if (text.compare(i, entry.token.size(), entry.token) == 0) {
        *match = {i, i + entry.token.size(), entry.id};
        return true;
      }
    }
  }
  return false;
}

}  // namespace weft::text
