// One head of one sequence of a "kda" call: where its inputs, its state and its convolution history
// lie. Shared by every variant, because slot layout is the one thing they must agree on to the
// byte. Internal linkage: see numeric.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "team.h"
#include "weft/kernels.h"

namespace weft::kernels_cpu {
namespace {

class KdaHead {
 public:
  enum Stream { kQ = 0, kK = 1, kV = 2 };

  // `history` and `state` are workspace: private copies, so that slots may be read and written in
  // any combination.
  KdaHead(const weft_op_kda& op, uint32_t seq, uint32_t head, float* history, float* state)
      : KdaHead(op, seq, head) {
    history_ = history;
    state_ = state;
    load(read_slot_);
  }
  // Without copies: for code that reads and writes the slots itself.
  KdaHead(const weft_op_kda& op, uint32_t seq, uint32_t head)
      : op_(op), head_(head), keep_(op.taps - 1), history_(nullptr), state_(nullptr) {
    first_ = op.rows.seq_start[seq];
    n_ = op.rows.seq_start[seq + 1] - first_;
    snap_at_ = op.snap_at != nullptr ? op.snap_at[seq] : 0;
    snap_slot_ = snap_at_ != 0 ? op.snap_slot[seq] : -1;
    write_slot_ = op.write_slot[seq];
    read_slot_ = op.read_slot[seq];
  }

  static uint64_t history_floats(const weft_op_kda& op) {
    return (2 * uint64_t{op.head_k} + op.head_v) * (op.taps - 1);
  }
  static uint64_t state_floats(const weft_op_kda& op) { return uint64_t{op.head_k} * op.head_v; }

  uint32_t n() const { return n_; }
  uint32_t snap_at() const { return snap_at_; }
  int32_t snap_slot() const { return snap_slot_; }
  int32_t read_slot() const { return read_slot_; }
  int32_t write_slot() const { return write_slot_; }
  float* state() const { return state_; }
  uint64_t row(uint32_t t) const { return uint64_t{first_} + t; }
  uint32_t dim(int stream) const { return stream == kV ? op_.head_v : op_.head_k; }

  uint64_t input_stride(int stream) const {
    return stream == kQ ? op_.q_stride : stream == kK ? op_.k_stride : op_.v_stride;
  }
  const float* input(int stream, uint32_t t) const {
    const void* base = stream == kQ ? op_.q : stream == kK ? op_.k : op_.v;
    return static_cast<const float*>(base) + row(t) * input_stride(stream) +
           uint64_t{head_} * dim(stream);
  }
  const float* taps(int stream) const {
    const float* base = stream == kQ ? op_.conv_q : stream == kK ? op_.conv_k : op_.conv_v;
    return base + uint64_t{head_} * dim(stream) * op_.taps;
  }
  // Raw projection of channel c at token t, t >= -(taps - 1) relative to the call.
  float raw(int stream, int64_t t, uint32_t c) const {
    if (t >= 0) return input(stream, static_cast<uint32_t>(t))[c];
    return past(stream)[uint64_t{c} * keep_ + static_cast<uint64_t>(keep_ + t)];
  }
  const float* past(int stream) const { return history_ + uint64_t(stream) * op_.head_k * keep_; }

  const float* decay_input(uint32_t t) const {
    return static_cast<const float*>(op_.f) + row(t) * op_.f_stride + uint64_t{head_} * op_.head_k;
  }
  const float* gate_input(uint32_t t) const {
    return static_cast<const float*>(op_.u) + row(t) * op_.u_stride + uint64_t{head_} * op_.head_v;
  }
  float beta_input(uint32_t t) const {
    return static_cast<const float*>(op_.b)[row(t) * op_.b_stride + head_];
  }
  float* output(uint32_t t) const {
    return static_cast<float*>(op_.y) + row(t) * op_.y_stride + uint64_t{head_} * op_.head_v;
  }

  // Called when `done` tokens are in the state.
  void snapshot_if_due(uint32_t done) const {
    if (snap_at_ != 0 && done == snap_at_) store(snap_slot_, done);
  }
  void finish() const { store(write_slot_, n_); }

  float* slot_state(int32_t slot) const {
    return reinterpret_cast<float*>(static_cast<uint8_t*>(op_.state) +
                                    static_cast<uint64_t>(slot) * op_.state_stride) +
           head_ * state_floats(op_);
  }
  float* slot_history(int32_t slot, int stream) const {
    uint8_t* base =
        static_cast<uint8_t*>(op_.conv_state) + static_cast<uint64_t>(slot) * op_.conv_stride;
    const uint64_t before =
        uint64_t(stream) * op_.heads * op_.head_k;  // q and k share head_k, v comes last
    return reinterpret_cast<float*>(base) + (before + uint64_t{head_} * dim(stream)) * keep_;
  }

 private:
  void load(int32_t slot) {
    if (slot < 0) {
      memset(state_, 0, state_floats(op_) * sizeof(float));
      if (keep_ > 0) memset(history_, 0, history_floats(op_) * sizeof(float));
      return;
    }
    memcpy(state_, slot_state(slot), state_floats(op_) * sizeof(float));
    for (int s = kQ; s <= kV && keep_ > 0; ++s)
      memcpy(history_ + uint64_t(s) * op_.head_k * keep_, slot_history(slot, s),
             dim(s) * keep_ * sizeof(float));
  }
  void store(int32_t slot, uint32_t done) const {
    if (slot < 0) return;
    memcpy(slot_state(slot), state_, state_floats(op_) * sizeof(float));
    for (int s = kQ; s <= kV && keep_ > 0; ++s) {
      float* out = slot_history(slot, s);
      for (uint32_t c = 0; c < dim(s); ++c)
        for (uint32_t j = 0; j < keep_; ++j)
          out[c * keep_ + j] = raw(s, int64_t{done} - keep_ + j, c);
    }
  }

  const weft_op_kda& op_;
  uint32_t head_, keep_;
  uint32_t first_ = 0, n_ = 0, snap_at_ = 0;
  int32_t snap_slot_ = -1, read_slot_ = -1, write_slot_ = -1;
  float* history_;
  float* state_;
};

}  // namespace
}  // namespace weft::kernels_cpu
