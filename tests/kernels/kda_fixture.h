// A "kda" call with its own slots: inputs for some sequences, runnable in pieces.
#pragma once

#include "kit.h"

namespace kit {

struct KdaShape {
  uint32_t heads = 2, head_k = 16, head_v = 16, taps = 4;
  uint32_t gate = WEFT_KDA_GATE_BOUNDED;
  float bound = -5;
};

struct KdaInputs {
  KdaShape shape;
  Grid q, k, v, f, u, b;
  std::vector<float> conv_q, conv_k, conv_v, a_log, dt_bias, o_norm;

  static KdaInputs random(Rng& rng, const KdaShape& s, uint64_t rows) {
    const uint64_t keys = uint64_t{s.heads} * s.head_k, values = uint64_t{s.heads} * s.head_v;
    KdaInputs in;
    in.shape = s;
    in.q = Grid::random(rng, rows, keys, -2, 2);
    in.k = Grid::random(rng, rows, keys, -2, 2, 1);
    in.v = Grid::random(rng, rows, values, -2, 2, 4);
    in.f = Grid::random(rng, rows, keys, -2, 2);
    in.u = Grid::random(rng, rows, values, -2, 2);
    in.b = Grid::random(rng, rows, s.heads, -2, 2, 7);
    in.conv_q = rng.vector(keys * s.taps);
    in.conv_k = rng.vector(keys * s.taps);
    in.conv_v = rng.vector(values * s.taps);
    in.a_log = rng.vector(s.heads, -0.4f, 0.9f);
    in.dt_bias = rng.vector(keys, -4, 1);
    in.o_norm = rng.vector(s.head_v, 0.75f, 1.25f);
    return in;
  }
};

// State slots with guards between them.
class KdaSlots {
 public:
  KdaSlots(const KdaShape& s, uint32_t n)
      : state_(n, uint64_t{s.heads} * s.head_k * s.head_v, 5),
        conv_(n, uint64_t{s.heads} * (2 * s.head_k + s.head_v) * (s.taps - 1), 3) {}
  Grid& state() { return state_; }
  Grid& conv() { return conv_; }
  const Grid& state() const { return state_; }
  const Grid& conv() const { return conv_; }

 private:
  Grid state_, conv_;
};

struct KdaSeq {
  uint32_t first = 0, n = 0;  // rows of KdaInputs
  int32_t read = -1, write = -1;
  uint32_t snap_at = 0;
  int32_t snap_slot = -1;
};

// Runs the sequences in one call and returns their rows one after another.
inline Grid run_kda(const weft_kernel& kernel, const KdaInputs& in, const std::vector<KdaSeq>& seqs,
                    KdaSlots& slots, uint32_t chunk = 0, uint32_t threads = 1) {
  Host host(threads);
  const KdaShape& s = in.shape;
  std::vector<uint32_t> start = {0}, context, snap_at;
  std::vector<int32_t> read, write, snap_slot;
  for (const KdaSeq& seq : seqs) {
    start.push_back(start.back() + seq.n);
    context.push_back(seq.first);
    read.push_back(seq.read);
    write.push_back(seq.write);
    snap_at.push_back(seq.snap_at);
    snap_slot.push_back(seq.snap_slot);
  }
  const auto packed = [&](const Grid& all) {
    Grid out(start.back(), all.cols(), all.stride() - all.cols());
    for (size_t i = 0; i < seqs.size(); ++i)
      for (uint32_t t = 0; t < seqs[i].n; ++t)
        for (uint64_t c = 0; c < all.cols(); ++c)
          out.at(start[i] + t, c) = all.at(seqs[i].first + t, c);
    return out;
  };
  const Grid q = packed(in.q), k = packed(in.k), v = packed(in.v), f = packed(in.f),
             u = packed(in.u), b = packed(in.b);
  Grid y(start.back(), in.v.cols(), 6);
  auto op = make_op<weft_op_kda>(host);
  op.rows = {static_cast<uint32_t>(seqs.size()), start.back(), start.data(), context.data()};
  op.heads = s.heads;
  op.head_k = s.head_k;
  op.head_v = s.head_v;
  op.taps = s.taps;
  op.gate = s.gate;
  op.bound = s.gate == WEFT_KDA_GATE_BOUNDED ? s.bound : 0;
  op.chunk = chunk;
  op.norm_eps = 1e-5f;
  op.q = q.data(), op.k = k.data(), op.v = v.data(), op.f = f.data(), op.u = u.data(),
  op.b = b.data();
  op.q_stride = q.stride(), op.k_stride = k.stride(), op.v_stride = v.stride();
  op.f_stride = f.stride(), op.u_stride = u.stride(), op.b_stride = b.stride();
  op.conv_q = in.conv_q.data(), op.conv_k = in.conv_k.data(), op.conv_v = in.conv_v.data();
  op.a_log = in.a_log.data(), op.dt_bias = in.dt_bias.data(), op.o_norm = in.o_norm.data();
  op.state = slots.state().data();
  op.conv_state = slots.conv().data();
  op.state_stride = slots.state().stride() * 4;
  op.conv_stride = slots.conv().stride() * 4;
  op.read_slot = read.data();
  op.write_slot = write.data();
  op.snap_at = snap_at.data();
  op.snap_slot = snap_slot.data();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(kernel, op);
  CHECK(y.surroundings_intact());
  CHECK(slots.state().surroundings_intact());
  CHECK(slots.conv().surroundings_intact());
  return y;
}

}  // namespace kit
