// The text model's forward pass over one checked batch. The residual stream lives in slots of one
// buffer: with attention residuals, slot n is the running prefix and slots 0..n-1 are its
// snapshots, so taking a snapshot is counting up. All buffers are carved from one workspace;
// running the same code with a dry Runner measures what the kernels need. Engine thread.
#pragma once

#include <weft/model.h>

#include <cstdint>

#include "batch_plan.h"
#include "fault.h"
#include "kernel_set.h"
#include "kimi_config.h"
#include "weights.h"

namespace weft_kimi {

// Where the layers' cache parts lie inside one unit of each cache group.
struct CacheLayout {
  uint32_t page_tokens = 0;
  uint32_t row_dtype = 0;
  uint64_t row_bytes = 0;    // one token, one layer
  uint64_t page_bytes = 0;   // all latent-attention layers
  uint64_t state_bytes = 0;  // one layer's S
  uint64_t conv_bytes = 0;   // one layer's convolution history
  uint64_t conv_offset = 0;  // of the first layer's history in a slot
  uint64_t slot_bytes = 0;   // all delta-attention layers

  static CacheLayout make(const Config& config, uint32_t page_tokens, uint32_t row_dtype);
};

struct CacheArenas {
  void* pages = nullptr;
  uint64_t page_stride = 0;
  void* slots = nullptr;
  uint64_t slot_stride = 0;
};

struct TextKernels {
  const weft_kernel *embed = nullptr, *norm = nullptr, *gemm_bf16 = nullptr, *gemm_f32 = nullptr;
  const weft_kernel *group_bf16 = nullptr, *group_f32 = nullptr;
  const weft_kernel *glu = nullptr, *add = nullptr, *gather = nullptr, *attnres = nullptr;
  const weft_kernel *kda_step = nullptr, *kda_chunk = nullptr;
  const weft_kernel *mla_store = nullptr, *mla_decode = nullptr, *mla_prefill = nullptr;
  const weft_kernel *route = nullptr, *moe_mxfp4 = nullptr, *moe_bf16 = nullptr, *moe_f32 = nullptr;

  // Looks up what this model needs, no more.
  Fault find(const KernelSet& set, const Config& config, const Weights& weights,
             uint32_t row_dtype);
  const weft_kernel* gemm(const weft_weight& w) const {
    return w.dtype == WEFT_F32 ? gemm_f32 : gemm_bf16;
  }
  const weft_kernel* gemm_group(uint32_t dtype) const {
    return dtype == WEFT_F32 ? group_f32 : group_bf16;
  }
};

struct TextSettings {
  uint32_t kda_chunk = 0;
  bool biased_router = false;
  float lora_eps = 0;
  uint32_t moe_mode = 0;  // WEFT_MOE_*
};

// Activations of the largest step.
struct TextBuffers {
  uint64_t max_rows = 0;
  float* stream = nullptr;  // [snapshots + 1, max_rows, hidden]
  float* x = nullptr;       // [max_rows, hidden] normalised input of a sublayer
  float *q = nullptr, *k = nullptr, *v = nullptr, *f = nullptr, *u = nullptr, *o = nullptr;  // kda
  float *b = nullptr, *low = nullptr, *gate_low = nullptr;
  float *mla_qa = nullptr, *mla_q = nullptr, *mla_c = nullptr, *mla_u = nullptr, *mla_o = nullptr;
  float *gate = nullptr, *up = nullptr;  // dense and shared
  float *logits = nullptr, *route_w = nullptr, *latent = nullptr, *expert = nullptr;
  uint16_t* route_id = nullptr;
  float* tail = nullptr;    // [snapshots + 1, max_logit_rows, hidden]
  float* tail_x = nullptr;  // [max_logit_rows, hidden]

  static TextBuffers carve(const Config& config, uint64_t rows, uint64_t logit_rows,
                           Carver& carver);
};

class TextForward {
 public:
  TextForward(const Config& config, const Weights& weights, const TextKernels& kernels,
              const TextSettings& settings, const CacheLayout& layout, const CacheArenas& arenas,
              const TextBuffers& buffers, Runner& runner)
      : c_(config),
        w_(weights),
        k_(kernels),
        s_(settings),
        layout_(layout),
        arenas_(arenas),
        buf_(buffers),
        run_(runner) {}

  // media: [plan.media_rows(), hidden]; logits: [plan.logit_rows(), vocab].
  Fault run(const BatchPlan& plan, const float* media, float* logits);

 private:
  Fault embed(const float* media);
  Fault layer(uint32_t i);
  Fault kda(const KdaWeights& w, uint32_t index);
  Fault kda_range(const KdaWeights& w, uint32_t index, const RowRange& range,
                  const weft_kernel* kernel);
  Fault mla(const MlaWeights& w, uint32_t index);
  Fault mla_range(const MlaWeights& w, uint32_t index, const RowRange& range,
                  const weft_kernel* kernel);
  weft_mla_pages pages(uint32_t index, const RowRange& range) const;
  Fault dense(const MlpWeights& w, uint32_t width);
  Fault gated_down(const MlpWeights& w, uint32_t width);  // from gate and up to the stream
  Fault moe(const MoeWeights& w);
  Fault experts(const MoeWeights& w, const float* x, float* y);
  void bias_weights(const MoeWeights& w);
  Fault head(float* logits);

  Fault mixed_norm(const float* mix, const float* norm);
  Fault norm(const float* x, uint32_t cols, const float* w, float eps, float* y);
  Fault gemm(const float* x, const weft_weight& w, float* y, bool add = false);
  struct Product {
    const weft_weight* w;
    float* y;
  };
  // Several products of the normalised input x, each dtype in one launch.
  Fault products(std::initializer_list<Product> list);
  Fault into_stream(const float* x, const weft_weight& w);  // stream += or = x W^T
  weft_op_attnres mix_op(const float* blocks, uint64_t block_stride, const float* q);
  float* stream_slot(uint64_t n) const { return shift(buf_.stream, n * buf_.max_rows * c_.hidden); }
  float* prefix() const { return stream_slot(snapshots_); }

  const Config& c_;
  const Weights& w_;
  const TextKernels& k_;
  const TextSettings& s_;
  const CacheLayout& layout_;
  const CacheArenas& arenas_;
  const TextBuffers& buf_;
  Runner& run_;
  const BatchPlan* plan_ = nullptr;
  uint32_t rows_ = 0;
  uint32_t snapshots_ = 0;
  bool fresh_ = false;  // the prefix was just snapshotted and holds nothing yet
};

}  // namespace weft_kimi
