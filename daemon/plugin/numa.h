// Where large blocks lie on machines with several memory nodes. Kernels split work by outputs, not
// by the node of a weight, so every thread reads from everywhere: pages dealt out over all nodes
// give each of them its share of the traffic. Free functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace weft::plugin {

// Numbers in a kernel list such as "0-3,8"; empty when it is not one.
std::vector<uint32_t> parse_node_list(std::string_view text);
// Nodes with memory on this machine, read once.
const std::vector<uint32_t>& memory_nodes();
// Asks for the pages of a fresh mapping to be dealt out over all memory nodes. Advice: a kernel
// that says no leaves them where they are first touched. Nothing on a machine with one node.
void spread_over_nodes(void* base, uint64_t bytes);

}  // namespace weft::plugin
