#include <iostream>

#include "sim/sim_command.h"

int main(int argc, char** argv) {
  return weft::sim::run_weft_sim(std::vector<std::string>(argv + 1, argv + argc),
                                 {std::cout, std::cerr});
}
