#include <iostream>

#include "bench/bench.h"

int main(int argc, char** argv) {
  const weft::bench::Streams streams{std::cin, std::cout, std::cerr};
  return weft::bench::run_weft_bench(std::vector<std::string>(argv + 1, argv + argc), streams);
}
