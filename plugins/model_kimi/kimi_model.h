// One model instance: owns configuration, weights and workspace, and walks the life cycle of
// weft/model.h. Calls in the wrong order get WEFT_E_STATE. Loading may use several threads for
// different tensors; the rest belongs to one thread at a time, stepping to the engine thread.
#pragma once

#include <weft/model.h>

#include <memory>

#include "batch_plan.h"
#include "fault.h"
#include "forward.h"
#include "kernel_set.h"
#include "kimi_config.h"
#include "options.h"
#include "vision.h"
#include "weight_book.h"
#include "weights.h"

namespace weft_kimi {

class KimiModel {
 public:
  static Fault create(const weft_host* host, const Options& options,
                      std::unique_ptr<KimiModel>* out);
  ~KimiModel();
  KimiModel(const KimiModel&) = delete;
  KimiModel& operator=(const KimiModel&) = delete;

  Fault declare(const weft_catalog* catalog);
  Fault info(weft_model_info* out) const;
  Fault plan(const weft_limits& limits, weft_mem_plan* out);
  weft_status want(uint64_t i, weft_want* out) const;
  Fault place(uint64_t i, void** dst);
  Fault placed(uint64_t i);
  Fault ready(const weft_arena* arenas, uint32_t n);
  Fault step(const weft_batch& batch);
  Fault encode_media(const weft_media& media, float* rows);
  void stop() { stage_ = Stage::kStopped; }

 private:
  enum class Stage { kCreated, kDeclared, kPlanned, kReady, kStopped };

  explicit KimiModel(const weft_host* host) : host_(host) {}
  Fault expect(Stage stage, const char* call) const;
  Fault check_limits(const weft_limits& limits);
  Fault natural_cache_dtype(uint32_t* out) const;
  Fault measure();
  Fault measure_step(uint32_t n_seqs, uint32_t n_rows, uint32_t context, bool recurrent);
  Fault measure_media();
  Fault take_arenas(const weft_arena* arenas, uint32_t n);
  TextForward text(Runner& runner) const {
    return TextForward(config_, weights_, text_kernels_, settings_, layout_, arenas_, text_buffers_,
                       runner);
  }
  bool media() const { return weights_.has_vision; }

  const weft_host* host_;
  Options options_;
  Config config_;
  KernelSet kernels_;
  std::unique_ptr<WeightBook> book_;
  Weights weights_;
  Stage stage_ = Stage::kCreated;

  BatchShape shape_;
  CacheLayout layout_;
  CacheArenas arenas_;
  TextSettings settings_;
  TextKernels text_kernels_;
  VisionKernels vision_kernels_;
  TextBuffers text_buffers_;
  VisionBuffers vision_buffers_;
  BatchPlan batch_plan_;
  uint64_t buffer_bytes_ = 0, scratch_bytes_ = 0;
  void* workspace_ = nullptr;  // buffers, then kernel scratch
};

}  // namespace weft_kimi
