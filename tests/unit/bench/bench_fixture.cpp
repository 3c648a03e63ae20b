#include "bench_fixture.h"

#include <sstream>

#include "bench/bench.h"

namespace bench_test {

Ran run_bench(std::vector<std::string> arguments, const std::string& input) {
  std::istringstream in(input);
  std::ostringstream out, err;
  Ran ran;
  ran.code = weft::bench::run_weft_bench(arguments, {in, out, err});
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

}  // namespace bench_test
