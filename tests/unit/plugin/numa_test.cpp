#include "plugin/numa.h"

#include <doctest/doctest.h>

#include <vector>

namespace weft::plugin {

using Nodes = std::vector<uint32_t>;

TEST_CASE("lists of memory nodes as the kernel writes them") {
  CHECK(parse_node_list("0\n") == Nodes{0});
  CHECK(parse_node_list("0-1") == Nodes{0, 1});
  CHECK(parse_node_list("0-2,5,8-9\n") == Nodes{0, 1, 2, 5, 8, 9});
  CHECK(parse_node_list("1023") == Nodes{1023});
  for (const char* bad :
       {"", "\n", "a", "0-", "-1", "3-1", "0,", ",0", "0-1024", "99999999999", "0 1"})
    CHECK(parse_node_list(bad).empty());
}

TEST_CASE("spreading a mapping never hurts it") {
  std::vector<char> some(1 << 16, 'x');
  spread_over_nodes(some.data(), some.size());
  CHECK(some.front() == 'x');
  CHECK(some.back() == 'x');
}

}  // namespace weft::plugin
