#include "vision.h"

#include <algorithm>

namespace weft_kimi {
namespace {

constexpr uint32_t kMaxGridSide = 512;  // the rotary table of the released tower ends there

}  // namespace

Fault VisionKernels::find(const KernelSet& set) {
  KIMI_TRY(set.find("norm", 0, &norm));
  KIMI_TRY(set.find("gemm", WEFT_BF16, &gemm_bf16));
  KIMI_TRY(set.find("gemm", WEFT_F32, &gemm_f32));
  KIMI_TRY(set.find("gelu", 0, &gelu));
  KIMI_TRY(set.find("vit_pos", 0, &positions));
  KIMI_TRY(set.find("vit_attend", 0, &attend));
  return set.find("vit_merge", 0, &merge);
}

VisionBuffers VisionBuffers::carve(const VisionConfig& v, uint64_t patches, Carver& carver) {
  VisionBuffers b;
  b.x = carver.take<float>(patches * v.hidden);
  b.normed = carver.take<float>(patches * v.hidden);
  const uint64_t tower = carver.mark();
  b.wide = carver.take<float>(patches * std::max(3 * v.qkv_width, v.inner));
  b.attended = carver.take<float>(patches * v.qkv_width);
  carver.rewind(tower);  // the projector runs when the tower is done
  const uint64_t rows = patches / (uint64_t{v.merge} * v.merge);
  b.merged = carver.take<float>(rows * v.merged_width());
  b.projected = carver.take<float>(rows * v.merged_width());
  carver.seek_end();
  return b;
}

Fault check_media(const VisionConfig& v, const weft_media& m, uint32_t max_patches) {
  if (m.struct_size < sizeof(weft_media)) {
    return fault(WEFT_E_ARG, "media.struct_size: expected {}, got {}", sizeof(weft_media),
                 m.struct_size);
  }
  const auto side = [&](const char* name, uint32_t n) -> Fault {
    if (n != 0 && n <= kMaxGridSide && n % v.merge == 0) return {};
    return fault(WEFT_E_ARG, "media.{}: expected a multiple of {} up to {}, got {}", name, v.merge,
                 kMaxGridSide, n);
  };
  KIMI_TRY(side("grid_h", m.grid_h));
  KIMI_TRY(side("grid_w", m.grid_w));
  if (m.grid_t == 0 || m.grid_t > v.table_t) {
    return fault(WEFT_E_ARG, "media.grid_t: expected 1 to {} frames, got {}", v.table_t, m.grid_t);
  }
  const uint64_t patches = uint64_t{m.grid_t} * m.grid_h * m.grid_w;
  if (patches > max_patches) {
    return fault(WEFT_E_ARG,
                 "media: {} x {} x {} patches exceed the limit of {}; raise max_media_patches",
                 m.grid_t, m.grid_h, m.grid_w, max_patches);
  }
  if (m.patches == nullptr) return fault(WEFT_E_ARG, "media.patches: expected a pointer, got NULL");
  return {};
}

Fault VisionForward::run(const weft_media& media, float* rows) {
  media_ = media;
  n_ = media.grid_t * media.grid_h * media.grid_w;
  KIMI_TRY(gemm(media.patches, w_.patch, buf_.x));
  auto positions = run_.args<weft_op_vit_pos>();
  positions.grid_t = media.grid_t;
  positions.grid_h = media.grid_h;
  positions.grid_w = media.grid_w;
  positions.n_cols = v_.hidden;
  positions.table_h = v_.table_h;
  positions.table_w = v_.table_w;
  positions.table = w_.positions;
  positions.x = buf_.x;
  positions.x_stride = v_.hidden;
  KIMI_TRY(run_.run(k_.positions, positions));
  for (const VisionBlock& w : w_.blocks) KIMI_TRY(block(w));
  KIMI_TRY(norm(buf_.x, v_.hidden, w_.final_norm, eps_, buf_.normed));

  auto merge = run_.args<weft_op_vit_merge>();
  merge.grid_t = media.grid_t;
  merge.grid_h = media.grid_h;
  merge.grid_w = media.grid_w;
  merge.n_cols = v_.hidden;
  merge.merge = v_.merge;
  merge.x = buf_.normed;
  merge.x_stride = v_.hidden;
  merge.y = buf_.merged;
  merge.y_stride = v_.merged_width();
  KIMI_TRY(run_.run(k_.merge, merge));
  n_ = media.grid_h * media.grid_w / (v_.merge * v_.merge);
  KIMI_TRY(gemm(buf_.merged, w_.proj0, buf_.projected));
  KIMI_TRY(gelu(buf_.projected, v_.merged_width(), false));
  KIMI_TRY(gemm(buf_.projected, w_.proj2, rows));
  return norm(rows, c_.hidden, w_.post_norm, v_.projector_eps, rows);
}

Fault VisionForward::block(const VisionBlock& w) {
  KIMI_TRY(norm(buf_.x, v_.hidden, w.norm0, eps_, buf_.normed));
  KIMI_TRY(gemm(buf_.normed, w.qkv, buf_.wide));
  auto attend = run_.args<weft_op_vit_attend>();
  attend.grid_t = media_.grid_t;
  attend.grid_h = media_.grid_h;
  attend.grid_w = media_.grid_w;
  attend.heads = v_.heads;
  attend.head_dim = v_.head_dim();
  attend.qkv = buf_.wide;
  attend.qkv_stride = 3 * uint64_t{v_.qkv_width};
  attend.y = buf_.attended;
  attend.y_stride = v_.qkv_width;
  KIMI_TRY(run_.run(k_.attend, attend));
  KIMI_TRY(gemm(buf_.attended, w.out, buf_.x, true));
  KIMI_TRY(norm(buf_.x, v_.hidden, w.norm1, eps_, buf_.normed));
  KIMI_TRY(gemm(buf_.normed, w.fc0, buf_.wide));
  KIMI_TRY(gelu(buf_.wide, v_.inner, true));
  return gemm(buf_.wide, w.fc1, buf_.x, true);
}

Fault VisionForward::norm(const float* x, uint32_t cols, const float* w, float eps, float* y) {
  auto op = run_.args<weft_op_norm>();
  op.n_rows = n_;
  op.n_cols = cols;
  op.x = x;
  op.w = w;
  op.eps = eps;
  op.y = y;
  op.x_stride = op.y_stride = cols;
  return run_.run(k_.norm, op);
}

Fault VisionForward::gemm(const float* x, const weft_weight& w, float* y, bool add) {
  auto op = run_.args<weft_op_gemm>();
  op.n_rows = n_;
  op.mode = add ? WEFT_GEMM_ADD : 0;
  op.x = x;
  op.x_stride = w.k;
  op.w = w;
  op.y = y;
  op.y_stride = w.n;
  op.y_dtype = WEFT_F32;
  return run_.run(k_.gemm(w), op);
}

Fault VisionForward::gelu(float* x, uint32_t cols, bool tanh_form) {
  auto op = run_.args<weft_op_gelu>();
  op.n_rows = n_;
  op.n_cols = cols;
  op.tanh_form = tanh_form ? 1 : 0;
  op.x = op.y = x;
  op.x_stride = op.y_stride = cols;
  return run_.run(k_.gelu, op);
}

}  // namespace weft_kimi
