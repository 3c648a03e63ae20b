#include "kernel_set.h"

#include <weft/tensor.h>

namespace weft_kimi {
namespace {

const char* dtype_name(uint32_t dtype) {
  switch (dtype) {
    case WEFT_DTYPE_NONE:
      return "none";
    case WEFT_F32:
      return "f32";
    case WEFT_BF16:
      return "bf16";
    case WEFT_MXFP4:
      return "mxfp4";
    default:
      return "other";
  }
}

weft_err empty_err() {
  weft_err err{};
  err.struct_size = sizeof(err);
  return err;
}

Fault from(weft_status status, const weft_err& err, const char* what) {
  if (status == WEFT_OK) return {};
  return fault(status, "{}: {}", what, err.msg[0] != '\0' ? err.msg : "failed without a message");
}

}  // namespace

Fault KernelSet::open(const weft_host* host) {
  host_ = host;
  table_ = static_cast<const weft_host_kernels_v1*>(host->extension(host, WEFT_HOST_KERNELS_ID));
  if (table_ == nullptr) {
    return fault(WEFT_E_UNSUPPORTED, "the host offers no \"{}\"; load a kernels plugin first",
                 WEFT_HOST_KERNELS_ID);
  }
  weft_kernels_info info{};
  info.struct_size = sizeof(info);
  weft_err err = empty_err();
  KIMI_TRY(from(table_->info(host, &info, &err), err, "kernels"));
  if (info.act_dtype != WEFT_F32 || info.mem != WEFT_MEM_HOST) {
    return fault(
        WEFT_E_UNSUPPORTED,
        "model_kimi runs on kernels with f32 activations in host memory; the chosen kernels "
        "have {} activations in memory kind {}; choose kernels_cpu",
        dtype_name(info.act_dtype), info.mem);
  }
  return {};
}

Fault KernelSet::find(const char* op, uint32_t dtype_w, const weft_kernel** out) const {
  const weft_kernel* kernel = table_->find(host_, op, dtype_w, WEFT_F32);
  if (kernel == nullptr) {
    return fault(WEFT_E_UNSUPPORTED,
                 "the kernels lack operation \"{}\" for weights {} and activations f32", op,
                 dtype_name(dtype_w));
  }
  *out = kernel;
  return {};
}

Fault KernelSet::pack_plan(const weft_weight& w, uint32_t* layout, uint64_t* bytes,
                           uint64_t* scale_bytes) const {
  const weft_status status = table_->pack_plan(host_, &w, layout, bytes, scale_bytes);
  if (status == WEFT_OK) return {};
  return fault(status, "the kernels cannot lay out a {} matrix of {} x {}", dtype_name(w.dtype),
               w.n, w.k);
}

Fault KernelSet::pack(const weft_weight& src, const weft_weight& dst) const {
  weft_err err = empty_err();
  return from(table_->pack(host_, &src, &dst, &err), err, "packing a matrix");
}

Fault Runner::call(const weft_kernel* kernel, const void* args) {
  weft_err err = empty_err();
  if (!dry_) return from(kernel->launch(args, &err), err, kernel->op);
  weft_plan plan{};
  plan.struct_size = sizeof(plan);
  KIMI_TRY(from(kernel->plan(args, &plan, &err), err, kernel->op));
  if (plan.workspace_bytes > needed_) needed_ = plan.workspace_bytes;
  return {};
}

Fault Runner::finish() const {
  if (bad_ == 0) return {};
  return fault(WEFT_E_INTERNAL,
               "a kernel reported error bits {:#x} on a batch that had been checked", bad_);
}

}  // namespace weft_kimi
