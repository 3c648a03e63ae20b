// The vision tower and projector: patches of one image or clip to rows of the text model's width.
// Full attention inside the clip, 2 x 2 merge, two-layer projector. Same two-mode Runner as the
// text model. Engine thread.
#pragma once

#include <weft/model.h>

#include <cstdint>

#include "fault.h"
#include "kernel_set.h"
#include "kimi_config.h"
#include "weights.h"

namespace weft_kimi {

struct VisionKernels {
  const weft_kernel *norm = nullptr, *gemm_bf16 = nullptr, *gemm_f32 = nullptr, *gelu = nullptr;
  const weft_kernel *positions = nullptr, *attend = nullptr, *merge = nullptr;

  Fault find(const KernelSet& set);
  const weft_kernel* gemm(const weft_weight& w) const {
    return w.dtype == WEFT_F32 ? gemm_f32 : gemm_bf16;
  }
};

struct VisionBuffers {
  float *x = nullptr, *normed = nullptr;          // [patches, hidden]
  float* wide = nullptr;                          // [patches, max(3 * qkv_width, inner)]
  float* attended = nullptr;                      // [patches, qkv_width]
  float *merged = nullptr, *projected = nullptr;  // [patches / merge^2, merged_width]

  static VisionBuffers carve(const VisionConfig& v, uint64_t patches, Carver& carver);
};

class VisionForward {
 public:
  VisionForward(const Config& config, const VisionWeights& weights, const VisionKernels& kernels,
                float norm_eps, const VisionBuffers& buffers, Runner& runner)
      : c_(config),
        v_(*config.vision),
        w_(weights),
        k_(kernels),
        eps_(norm_eps),
        buf_(buffers),
        run_(runner) {}

  // rows: [grid_h * grid_w / merge^2, hidden]
  Fault run(const weft_media& media, float* rows);

 private:
  Fault block(const VisionBlock& w);
  Fault norm(const float* x, uint32_t cols, const float* w, float eps, float* y);
  Fault gemm(const float* x, const weft_weight& w, float* y, bool add = false);
  Fault gelu(float* x, uint32_t cols, bool tanh_form);

  const Config& c_;
  const VisionConfig& v_;
  const VisionWeights& w_;
  const VisionKernels& k_;
  float eps_;
  const VisionBuffers& buf_;
  Runner& run_;
  weft_media media_{};
  uint32_t n_ = 0;  // rows of the current stage
};

// WEFT_E_ARG unless the clip fits the tower and `max_patches`.
Fault check_media(const VisionConfig& v, const weft_media& media, uint32_t max_patches);

}  // namespace weft_kimi
