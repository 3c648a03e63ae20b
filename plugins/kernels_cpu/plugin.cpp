// The plugin's face: descriptor, note and the "weft.kernels/1" table. It has no state; every call
// may come on any thread that the ABI names.
#include <cstdio>
#include <cstring>

#include "check.h"
#include "cpu.h"
#include "numeric.h"
#include "panels.h"
#include "registry.h"
#include "weft/kernels.h"
#include "weft/note.h"

namespace weft::kernels_cpu {
namespace {

int32_t probe(weft_plugin*) { return 100; }

weft_status info(weft_plugin*, weft_kernels_info* out, weft_err* err) {
  if (out == nullptr || out->struct_size < sizeof(weft_kernels_info))
    return fail(err, WEFT_E_ARG,
                "kernels_cpu: info.struct_size: expected at least %zu, got %u; fix the caller",
                sizeof(weft_kernels_info), out == nullptr ? 0 : out->struct_size);
  out->act_dtype = WEFT_F32;
  out->mem = WEFT_MEM_HOST;
  out->n_devices = 1;
  snprintf(out->isa, sizeof out->isa, "%s", cpu_isa_name());
  return WEFT_OK;
}

weft_status get(weft_plugin*, uint32_t i, weft_kernel* out) {
  if (i >= kernel_count()) return WEFT_END;
  if (out == nullptr) return WEFT_E_ARG;
  *out = kernel_at(i);
  return WEFT_OK;
}

struct Sizes {
  uint64_t data = 0, scale = 0;
};

weft_status sizes_of(const weft_weight* w, Sizes* out, weft_err* err) {
  if (w == nullptr)
    return fail(err, WEFT_E_ARG,
                "kernels_cpu: pack.w: expected a pointer, got NULL; fix the caller");
  Check c("pack", false, err, kWeightsAny);
  c.weight(*w, true, "w");
  if (!c.ok()) return c.status();
  if (w->layout == kLayoutPanels)
    *out = {panel_count(w->n) * panel_bytes(*w), panel_count(w->n) * panel_scale_bytes(*w)};
  else if (w->dtype == WEFT_MXFP4)
    *out = {w->n * (w->k / 2), w->n * (w->k / 32)};
  else
    *out = {w->n * w->k * dtype_bytes(w->dtype), 0};
  return WEFT_OK;
}

// Panels where the best matrix kernels want them; everything else reads checkpoint order, so that
// the loader may read files straight into place.
uint32_t layout_for(const weft_weight& w, uint32_t isa_max) {
  const bool dots = isa_max >= WEFT_ISA_X86_AVX512_BF16 && cpu_runs(WEFT_ISA_X86_AVX512_BF16);
  return dots && w.dtype != WEFT_F32 ? kLayoutPanels : kLayoutRows;
}

weft_status pack_plan(weft_plugin*, uint32_t isa_max, const weft_weight* w, uint32_t* layout,
                      uint64_t* bytes, uint64_t* scale_bytes) {
  if (w == nullptr || layout == nullptr || bytes == nullptr || scale_bytes == nullptr)
    return WEFT_E_ARG;
  weft_weight packed = *w;
  packed.layout = layout_for(*w, isa_max);
  packed.data = packed.scale = nullptr;
  Sizes sizes;
  const weft_status status = sizes_of(&packed, &sizes, nullptr);
  if (status != WEFT_OK) return status;
  *layout = packed.layout;
  *bytes = sizes.data;
  *scale_bytes = sizes.scale;
  return WEFT_OK;
}

void copy_packed(const weft_weight& src, const weft_weight& dst) {
  auto* data = static_cast<uint8_t*>(const_cast<void*>(dst.data));
  auto* scale = static_cast<uint8_t*>(const_cast<void*>(dst.scale));
  for (uint64_t p = 0; p < panel_count(src.n); ++p)
    pack_panel(src, p, data + p * panel_bytes(src),
               scale == nullptr ? nullptr : scale + p * panel_scale_bytes(src));
}

weft_status pack(weft_plugin*, const weft_weight* src, const weft_weight* dst, weft_err* err) {
  Sizes from, to;
  weft_status status = sizes_of(src, &from, err);
  if (status == WEFT_OK) status = sizes_of(dst, &to, err);
  if (status != WEFT_OK) return status;
  if (src->layout != kLayoutRows)
    return fail(err, WEFT_E_ARG, "kernels_cpu: pack.src: expected layout 0 (row-major), got %u",
                src->layout);
  if (src->dtype != dst->dtype || src->n != dst->n || src->k != dst->k)
    return fail(
        err, WEFT_E_ARG,
        "kernels_cpu: pack.dst: expected dtype and shape of src, got dtype %u, n %llu, k %llu",
        dst->dtype, static_cast<unsigned long long>(dst->n),
        static_cast<unsigned long long>(dst->k));
  const bool scales = from.scale == 0 || (src->scale != nullptr && dst->scale != nullptr);
  if (src->data == nullptr || dst->data == nullptr || !scales)
    return fail(err, WEFT_E_ARG,
                "kernels_cpu: pack: expected data (and scale for mxfp4) on both sides, got NULL");
  if (dst->layout == kLayoutPanels) {
    copy_packed(*src, *dst);
    return WEFT_OK;
  }
  if (src->data != dst->data) memcpy(const_cast<void*>(dst->data), src->data, from.data);
  if (from.scale != 0 && src->scale != dst->scale)
    memcpy(const_cast<void*>(dst->scale), src->scale, from.scale);
  return WEFT_OK;
}

constexpr weft_kernels_v1 kTable = {
    {sizeof(weft_kernels_v1), 1, 0}, probe, info, get, pack_plan, pack};
constexpr weft_interface kInterfaces[] = {{WEFT_KERNELS_ID, &kTable.head, nullptr, nullptr},
                                          {nullptr, nullptr, nullptr, nullptr}};

// There is nothing to keep per opening; the handle only has to be something other than NULL.
char plugin_handle;

weft_status open_plugin(const weft_host*, weft_plugin** out, weft_err* err) {
  if (out == nullptr)
    return fail(err, WEFT_E_ARG,
                "kernels_cpu: open.out: expected a pointer, got NULL; fix the caller");
  *out = reinterpret_cast<weft_plugin*>(&plugin_handle);
  return WEFT_OK;
}

void close_plugin(weft_plugin*) {}

const weft_desc kDesc = {sizeof(weft_desc), WEFT_MAGIC,   WEFT_ABI_MAJOR, WEFT_ABI_MINOR,
                         "kernels_cpu",     WEFT_VERSION, "weft",         "Apache-2.0",
                         kInterfaces,       open_plugin,  close_plugin};

}  // namespace
}  // namespace weft::kernels_cpu

WEFT_PLUGIN(kernels_cpu, WEFT_VERSION, &weft::kernels_cpu::kDesc);
