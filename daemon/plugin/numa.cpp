#include "plugin/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string>

namespace weft::plugin {
namespace {

constexpr uint32_t kNodesMax = 1024;  // as in the kernel

bool take_number(std::string_view* text, uint32_t* out) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *out);
  if (error != std::errc() || *out >= kNodesMax) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

}  // namespace

std::vector<uint32_t> parse_node_list(std::string_view text) {
  std::vector<uint32_t> nodes;
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  while (!text.empty()) {
    uint32_t first = 0;
    if (!take_number(&text, &first)) return {};
    uint32_t last = first;
    if (!text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      if (!take_number(&text, &last) || last < first) return {};
    }
    for (uint32_t n = first; n <= last; ++n) nodes.push_back(n);
    if (text.empty()) return nodes;
    if (text.front() != ',' || text.size() == 1) return {};
    text.remove_prefix(1);
  }
  return nodes;
}

const std::vector<uint32_t>& memory_nodes() {
  static const std::vector<uint32_t> nodes = [] {
    std::ifstream in("/sys/devices/system/node/has_memory");
    std::string line;
    std::getline(in, line);
    return parse_node_list(line);
  }();
  return nodes;
}

void spread_over_nodes(void* base, uint64_t bytes) {
  const std::vector<uint32_t>& nodes = memory_nodes();
  if (nodes.size() < 2) return;
  constexpr uint32_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kNodesMax / kBits> mask{};
  for (const uint32_t n : nodes) mask[n / kBits] |= 1ul << (n % kBits);
  syscall(SYS_mbind, base, bytes, MPOL_INTERLEAVE, mask.data(), kNodesMax + 1, 0);
}

}  // namespace weft::plugin
