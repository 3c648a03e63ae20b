// What this machine's CPU can run. Asked once per process.
#pragma once

#include <cstdint>

namespace weft::kernels_cpu {

// True when every feature behind a WEFT_ISA_* value is present and enabled by the operating system.
bool cpu_runs(uint32_t isa);
// Name of the best instruction set found, for people.
const char* cpu_isa_name();

}  // namespace weft::kernels_cpu
