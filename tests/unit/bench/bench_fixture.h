// The program under test as a function, for all tests of weft-bench.
#pragma once

#include <string>
#include <vector>

namespace bench_test {

struct Ran {
  int code = -1;
  std::string out, err;
};
Ran run_bench(std::vector<std::string> arguments, const std::string& input = "");

}  // namespace bench_test
