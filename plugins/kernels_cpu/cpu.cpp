#include "cpu.h"

#include "weft/kernels.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace weft::kernels_cpu {

namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
// Every CPU with bf16 dot products has those of bytes.
bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vnni");
}
// The kernel hands out tile registers on request, once for the whole process.
bool has_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl
  return has_avx512_bf16() && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool has_amx() { return false; }
bool has_avx512_bf16() { return false; }
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

}  // namespace

bool cpu_runs(uint32_t isa) {
  switch (isa) {
    case WEFT_ISA_ANY:
      return true;
    case WEFT_ISA_X86_AVX2:
      return has_avx2();
    case WEFT_ISA_X86_AVX512:
      return has_avx512();
    case WEFT_ISA_X86_AVX512_BF16:
      return has_avx512_bf16();
    case WEFT_ISA_X86_AMX:
      return has_amx();
    default:
      return false;
  }
}

const char* cpu_isa_name() {
  if (cpu_runs(WEFT_ISA_X86_AMX)) return "amx";
  if (cpu_runs(WEFT_ISA_X86_AVX512_BF16)) return "avx512_bf16";
  if (cpu_runs(WEFT_ISA_X86_AVX512)) return "avx512";
  if (cpu_runs(WEFT_ISA_X86_AVX2)) return "avx2";
  return "any";
}

}  // namespace weft::kernels_cpu
