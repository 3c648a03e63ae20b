// Sizes ("64MiB", "2G"), durations ("250ms", "1m") and listen addresses, as operators write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::config {

std::optional<uint64_t> parse_size(
    std::string_view text);  // bytes; K/M/G/T and KiB.. are powers of 1024, KB.. of 1000
std::optional<int64_t> parse_duration_ms(
    std::string_view text);  // ms, s, m, h; a bare number is refused

// "127.0.0.1:8000", "[::1]:8000", "localhost:0", "unix:/run/x.sock".
Status check_listen_address(std::string_view text);

// Closest of `candidates` by edit distance, or empty when nothing is near.
template <class Range>
std::string nearest(std::string_view word, const Range& candidates);
size_t edit_distance(std::string_view a, std::string_view b);

template <class Range>
std::string nearest(std::string_view word, const Range& candidates) {
  std::string best;
  size_t best_distance = word.size() / 2 + 1;  // farther than half the word is noise
  for (const auto& candidate : candidates) {
    const size_t d = edit_distance(word, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace weft::config
