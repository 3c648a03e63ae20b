// HostKernels: one kernel set under an instruction-set limit, behind the host table
// "weft.host.kernels/1".
//
// Built once at [init] by asking the plugin for all its kernels; find() then only searches an
// array. The limit exists so that tests and operators can run "ref" or an older instruction set on
// a newer machine and compare.
#pragma once

#include <weft/kernels.h>

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::plugin {

class HostKernels {
 public:
  static constexpr uint32_t kKernelsMax = 4096;

  static Result<std::unique_ptr<HostKernels>> make(const weft_kernels_v1* table,
                                                   weft_plugin* plugin, std::string_view isa_max);

  const weft_kernels_info& info() const { return info_; }
  // The best allowed variant, or NULL. The pointer lives as long as this object.
  const weft_kernel* find(std::string_view op, uint32_t dtype_w, uint32_t dtype_act) const;
  // Every allowed kernel, best first within an op.
  const std::vector<weft_kernel>& kernels() const { return kernels_; }

  weft_status pack_plan(const weft_weight* w, uint32_t* layout, uint64_t* bytes,
                        uint64_t* scale_bytes) const;
  weft_status pack(const weft_weight* src, const weft_weight* dst, weft_err* err) const;

 private:
  HostKernels(const weft_kernels_v1* table, weft_plugin* plugin) : table_(table), plugin_(plugin) {}

  const weft_kernels_v1* table_;
  weft_plugin* plugin_;
  uint32_t isa_max_ = 0;  // WEFT_ISA_*, the highest allowed
  weft_kernels_info info_{};
  std::vector<weft_kernel> kernels_;
};

}  // namespace weft::plugin
