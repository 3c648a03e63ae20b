// weft-bench as a function: arguments and streams in, exit code out, so that tests run it inside
// their process. One thread, blocking; measures on as many kernel threads as asked.
#pragma once

#include <istream>
#include <ostream>
#include <string>
#include <vector>

namespace weft::bench {

struct Streams {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
};

enum ExitCode : int { kOk = 0, kFailure = 1, kUsage = 2 };

int run_weft_bench(const std::vector<std::string>& arguments, const Streams& streams);

}  // namespace weft::bench
