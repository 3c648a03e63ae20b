#include "plugin/host_kernels.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "plugin/status.h"

namespace weft::plugin {
namespace {

struct IsaName {
  std::string_view name;
  uint32_t isa_max;
};
constexpr IsaName kIsaNames[] = {
    {"ref", WEFT_ISA_ANY},           {"avx2", WEFT_ISA_X86_AVX2},
    {"avx512", WEFT_ISA_X86_AVX512}, {"avx512_bf16", WEFT_ISA_X86_AVX512_BF16},
    {"amx", WEFT_ISA_X86_AMX},       {"", std::numeric_limits<uint32_t>::max()},
};

Status check_kernel(const weft_kernel& kernel, uint32_t i) {
  const char* missing = kernel.op == nullptr        ? "op"
                        : kernel.variant == nullptr ? "variant"
                        : kernel.plan == nullptr    ? "plan"
                        : kernel.launch == nullptr  ? "launch"
                                                    : nullptr;
  if (missing != nullptr) {
    return make_error(ErrorCode::kInvalid,
                      "kernel {}: {} must be set, came NULL; the kernel plugin must be repaired", i,
                      missing);
  }
  return {};
}

using Key = std::tuple<std::string_view, uint32_t, uint32_t>;
Key key_of(const weft_kernel& k) { return {k.op, k.dtype_w, k.dtype_act}; }

}  // namespace

Result<std::unique_ptr<HostKernels>> HostKernels::make(const weft_kernels_v1* table,
                                                       weft_plugin* plugin,
                                                       std::string_view isa_max) {
  const auto* limit = std::find_if(std::begin(kIsaNames), std::end(kIsaNames),
                                   [&](auto& n) { return n.name == isa_max; });
  if (limit == std::end(kIsaNames)) {
    return make_error(
        ErrorCode::kInvalid,
        "isa_max: expected ref, avx2, avx512, avx512_bf16, amx or nothing, came \"{}\"", isa_max);
  }
  std::unique_ptr<HostKernels> out(new HostKernels(table, plugin));
  out->isa_max_ = limit->isa_max;
  out->info_.struct_size = sizeof out->info_;
  weft_err err = make_err();
  if (const weft_status status = table->info(plugin, &out->info_, &err); status != WEFT_OK) {
    return plugin_error(status, err, "weft.kernels/1 info");
  }
  std::vector<Key> with_ref;
  for (uint32_t i = 0;; ++i) {
    weft_kernel kernel{};
    const weft_status status = table->get(plugin, i, &kernel);
    if (status == WEFT_END) break;
    if (status != WEFT_OK)
      return plugin_error(status, make_err(), fmt::format("weft.kernels/1 get({})", i));
    if (i >= kKernelsMax) {
      return make_error(ErrorCode::kInvalid,
                        "weft.kernels/1: expected at most {} kernels, more came", kKernelsMax);
    }
    WEFT_TRY(check_kernel(kernel, i));
    const bool is_ref = std::strcmp(kernel.variant, "ref") == 0;
    if (is_ref) with_ref.push_back(key_of(kernel));
    if (kernel.score < 0 || kernel.isa > limit->isa_max || (isa_max == "ref" && !is_ref)) continue;
    out->kernels_.push_back(kernel);
  }
  for (const weft_kernel& kernel : out->kernels_) {
    if (std::find(with_ref.begin(), with_ref.end(), key_of(kernel)) == with_ref.end()) {
      return make_error(
          ErrorCode::kInvalid,
          "kernel \"{}\" variant \"{}\" (dtype_w {}): expected a variant \"ref\" with the "
          "same dtypes beside it, came none; the kernel plugin must be repaired",
          kernel.op, kernel.variant, kernel.dtype_w);
    }
  }
  std::stable_sort(out->kernels_.begin(), out->kernels_.end(),
                   [](const weft_kernel& a, const weft_kernel& b) {
                     const int by_op = std::strcmp(a.op, b.op);
                     return by_op != 0 ? by_op < 0 : a.score > b.score;
                   });
  return out;
}

const weft_kernel* HostKernels::find(std::string_view op, uint32_t dtype_w,
                                     uint32_t dtype_act) const {
  for (const weft_kernel& kernel : kernels_) {
    if (op == kernel.op && kernel.dtype_w == dtype_w && kernel.dtype_act == dtype_act)
      return &kernel;
  }
  return nullptr;
}

weft_status HostKernels::pack_plan(const weft_weight* w, uint32_t* layout, uint64_t* bytes,
                                   uint64_t* scale_bytes) const {
  return table_->pack_plan(plugin_, isa_max_, w, layout, bytes, scale_bytes);
}

weft_status HostKernels::pack(const weft_weight* src, const weft_weight* dst, weft_err* err) const {
  return table_->pack(plugin_, src, dst, err);
}

}  // namespace weft::plugin
