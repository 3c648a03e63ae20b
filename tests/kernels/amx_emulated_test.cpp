// Lets the AMX kernels over software tiles take part in every test of the table, as variant
// "amx_emulated", where the CPU has the AVX-512 instructions around the tiles.
#include "amx_emulated.h"

#include "bind.h"
#include "cpu.h"
#include "kit.h"

namespace kit {

std::vector<weft_kernel> emulated_kernels() {
  std::vector<weft_kernel> out;
#if defined(__x86_64__)
  namespace k = weft::kernels_cpu;
  namespace e = weft::kernels_cpu::amx_emulated;
  if (!k::cpu_runs(WEFT_ISA_X86_AVX512_BF16)) return out;
  for (const uint32_t dtype : {uint32_t{WEFT_BF16}, uint32_t{WEFT_MXFP4}}) {
    const auto add = [&](const weft_kernel& row) { out.push_back(row); };
    add(k::kernel<weft_op_gemm, e::gemm, e::gemm_need, 99, &k::scan, k::kWeightsNarrow>(
        "gemm", "amx_emulated", WEFT_ISA_X86_AVX512_BF16, dtype, 1));
    add(k::kernel<weft_op_gemm_group, e::gemm_group, e::gemm_group_need, 99, &k::scan,
                  k::kWeightsNarrow>("gemm_group", "amx_emulated", WEFT_ISA_X86_AVX512_BF16, dtype,
                                     1));
    add(k::kernel<weft_op_moe, e::moe, e::moe_need, 99, &k::scan, k::kWeightsNarrow>(
        "moe", "amx_emulated", WEFT_ISA_X86_AVX512_BF16, dtype, 1));
  }
#endif
  return out;
}

TEST_CASE("amx: the kernels over software tiles are among those compared") {
  if (!weft::kernels_cpu::cpu_runs(WEFT_ISA_X86_AVX512_BF16)) return;
  CHECK((find("moe", "amx_emulated", WEFT_MXFP4).launch != nullptr));
}

}  // namespace kit
