// weft-sim as a function: arguments and streams in, exit code out, so that tests run it inside
// their process. One thread.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace weft::sim {

struct SimStreams {
  std::ostream& out;
  std::ostream& err;
};

// 0 ok, 1 failure or a difference found, 2 unknown option or command.
int run_weft_sim(const std::vector<std::string>& arguments, const SimStreams& streams);

}  // namespace weft::sim
