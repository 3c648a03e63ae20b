// kda_step and kda_chunk: variants against ref, step against chunk, splits, slots, snapshots, the
// decay bound.
#include "kda_fixture.h"

namespace kit {
namespace {

// Outputs are normalised to size one, so absolute and relative error mean the same. A decayed state
// keeps rounding errors of the last few dozen tokens (each 2^-24 of its size times a dot product
// over head_k); the norm divides by the size of an output that may be a tenth of its terms. 3e-5
// leaves a factor of ten over what random inputs show; the chunk form adds the triangular solve and
// exponents up to e^40 on both sides of a product.
constexpr double kStepTolerance = 3e-5;
constexpr double kChunkTolerance = 2e-4;

double tolerance(const weft_kernel& k) {
  return std::string(k.op) == "kda_step" ? kStepTolerance : kChunkTolerance;
}

KdaShape random_shape(Rng& rng) {
  constexpr uint32_t kDims[] = {1, 5, 8, 16, 17, 24, 40, 65, 72};
  KdaShape s;
  s.heads = 1 + rng.below(3);
  s.head_k = kDims[rng.below(9)];
  s.head_v = kDims[rng.below(9)];
  s.taps = 1 + rng.below(5);
  s.gate = rng.below(2) == 0 ? WEFT_KDA_GATE_BOUNDED : WEFT_KDA_GATE_SOFTPLUS;
  return s;
}

void compare(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const KdaShape s = random_shape(rng);
  INFO("heads " << s.heads << " k " << s.head_k << " v " << s.head_v << " taps " << s.taps
                << " gate " << s.gate);
  const KdaInputs in = KdaInputs::random(rng, s, 110);
  const uint32_t chunk = rng.below(129);
  // Fresh, with a snapshot, no rows at all (the state moves from slot 4 to 2), and nothing stored.
  const std::vector<KdaSeq> seqs = {{0, 1, -1, 0, 0, -1},
                                    {1, 70, 1, 1, 1 + rng.below(70), 3},
                                    {71, 0, 4, 2, 0, -1},
                                    {71, 39, -1, -1, 0, -1}};
  const auto filled = [&] {
    KdaSlots slots(s, 5);
    for (const uint64_t slot : {0u, 1u, 4u}) {
      for (uint64_t c = 0; c < slots.state().cols(); ++c) slots.state().at(slot, c) = 0.25f;
      for (uint64_t c = 0; c < slots.conv().cols(); ++c) slots.conv().at(slot, c) = 0.5f;
    }
    return slots;
  };
  KdaSlots got_slots = filled(), want_slots = filled(), again = filled();
  const Grid got = run_kda(k, in, seqs, got_slots, chunk);
  const Grid want = run_kda(find(k.op, "ref", 0), in, seqs, want_slots, chunk);
  CHECK(distance(got, want) < tolerance(k));
  CHECK(distance(got_slots.state(), want_slots.state()) < tolerance(k));
  CHECK(distance(got_slots.conv(), want_slots.conv()) == 0);
  CHECK(same_bits(got_slots.state().slice(2, 1), filled().state().slice(4, 1)));
  CHECK(same_bits(got_slots.state().slice(4, 1), filled().state().slice(4, 1)));
  CHECK(same_bits(run_kda(k, in, seqs, again, chunk, 3), got));
  CHECK(same_bits(again.state(), got_slots.state()));
}

}  // namespace

std::vector<OpCase> kda_cases() { return {{"kda_step", compare}, {"kda_chunk", compare}}; }

TEST_CASE(
    "kda: chunked equals token by token for chunk sizes 1 to 128, both gates, also at the bound") {
  const weft_kernel step = find("kda_step", "ref", 0);
  for (const uint32_t mode : {0u, 1u, 2u}) {
    KdaShape s;
    s.gate = mode == 1 ? WEFT_KDA_GATE_SOFTPLUS : WEFT_KDA_GATE_BOUNDED;
    Rng rng(20 + mode);
    KdaInputs in = KdaInputs::random(rng, s, 140);
    if (mode == 2)  // strongest decay there is: z so large that the sigmoid is 1 to the last digit
      for (float& x : in.dt_bias) x = 60;
    KdaSlots want_slots(s, 1);
    const Grid want = run_kda(step, in, {{0, 140, -1, 0, 0, -1}}, want_slots);
    for (const weft_kernel& k : runnable("kda_chunk")) {
      for (uint32_t chunk = 1; chunk <= 128; chunk += chunk < 20 ? 1 : 9) {
        INFO(k.variant << " chunk " << chunk << " mode " << mode);
        KdaSlots slots(s, 1);
        const Grid got = run_kda(k, in, {{0, 140, -1, 0, 0, -1}}, slots, chunk);
        CHECK(distance(got, want) < kChunkTolerance);
        CHECK(distance(slots.state(), want_slots.state()) < kChunkTolerance);
      }
    }
  }
}

TEST_CASE("kda: a bound far below -5 does not overflow the tiles") {
  KdaShape s;
  s.bound = -50;
  Rng rng(31);
  const KdaInputs in = KdaInputs::random(rng, s, 40);
  KdaSlots a(s, 1), b(s, 1);
  const Grid want = run_kda(find("kda_step", "ref", 0), in, {{0, 40, -1, 0, 0, -1}}, a);
  for (const weft_kernel& k : runnable("kda_chunk"))
    CHECK(distance(run_kda(k, in, {{0, 40, -1, 0, 0, -1}}, b), want) < kChunkTolerance);
}

TEST_CASE("kda: splitting a sequence anywhere changes nothing") {
  KdaShape s;
  s.head_k = 24, s.head_v = 17;
  Rng rng(32);
  const KdaInputs in = KdaInputs::random(rng, s, 33);
  for (const char* name : {"kda_step", "kda_chunk"})
    for (const weft_kernel& k : runnable(name)) {
      INFO(k.op << " " << k.variant);
      const bool exact = std::string(name) == "kda_step";
      KdaSlots whole_slots(s, 1);
      const Grid whole = run_kda(k, in, {{0, 33, -1, 0, 0, -1}}, whole_slots);
      for (uint32_t cut = 0; cut <= 33; ++cut) {
        KdaSlots slots(s, 2);  // first half into slot 1, second half reads 1 and writes 0
        const Grid head = run_kda(k, in, {{0, cut, -1, 1, 0, -1}}, slots);
        const Grid tail = run_kda(k, in, {{cut, 33 - cut, 1, 0, 0, -1}}, slots);
        const double limit = exact ? 1e-30 : kChunkTolerance;
        CHECK(distance(head, whole.slice(0, cut)) < limit);
        CHECK(distance(tail, whole.slice(cut, 33 - cut)) < limit);
        CHECK(distance(slots.state().slice(0, 1), whole_slots.state()) < limit);
        CHECK(distance(slots.conv().slice(0, 1), whole_slots.conv()) == 0);
      }
    }
}

TEST_CASE(
    "kda: a snapshot is the state after that many rows, and slots may be read and written in "
    "place") {
  KdaShape s;
  Rng rng(33);
  const KdaInputs in = KdaInputs::random(rng, s, 50);
  for (const char* name : {"kda_step", "kda_chunk"})
    for (const weft_kernel& k : runnable(name)) {
      INFO(k.op << " " << k.variant);
      for (const uint32_t at : {1u, 2u, 3u, 16u, 37u, 50u}) {
        KdaSlots snap(s, 2), cut(s, 2);
        run_kda(k, in, {{0, 50, -1, 0, at, 1}}, snap);
        run_kda(k, in, {{0, at, -1, 1, 0, -1}}, cut);
        CHECK(distance(snap.state().slice(1, 1), cut.state().slice(1, 1)) < kChunkTolerance);
        CHECK(distance(snap.conv().slice(1, 1), cut.conv().slice(1, 1)) == 0);
        // Continue from the snapshot, in place, with the snapshot slot overwritten on the way.
        const Grid rest = run_kda(k, in, {{at, 50 - at, 1, 1, at < 50 ? 1u : 0u, 1}}, snap);
        CHECK(distance(snap.state().slice(1, 1), snap.state().slice(0, 1)) < kChunkTolerance);
        CHECK(rest.rows() == 50 - at);
      }
    }
}

TEST_CASE("kda: the head size of real models agrees with ref, step by step in place to the bit") {
  KdaShape s;
  s.heads = 3, s.head_k = s.head_v = 128;
  for (const uint32_t gate : {uint32_t{WEFT_KDA_GATE_BOUNDED}, uint32_t{WEFT_KDA_GATE_SOFTPLUS}}) {
    s.gate = gate;
    Rng rng(36 + gate);
    const KdaInputs in = KdaInputs::random(rng, s, 53);
    for (const char* name : {"kda_step", "kda_chunk"})
      for (const weft_kernel& k : runnable(name)) {
        INFO(k.op << " " << k.variant << " gate " << gate);
        KdaSlots whole_slots(s, 1), want_slots(s, 1);
        const Grid whole = run_kda(k, in, {{0, 53, -1, 0, 0, -1}}, whole_slots);
        const Grid want = run_kda(ref_of(k), in, {{0, 53, -1, 0, 0, -1}}, want_slots);
        CHECK(distance(whole, want) < tolerance(k));
        CHECK(distance(whole_slots.state(), want_slots.state()) < tolerance(k));
        if (std::string(name) != "kda_step") continue;
        KdaSlots slots(s, 2);
        for (uint32_t t = 0; t < 53; ++t) {  // in one slot, now and then from one to the other
          const int32_t from = t == 0 ? -1 : static_cast<int32_t>((t - 1) / 10 % 2);
          const Grid y =
              run_kda(k, in, {{t, 1, from, static_cast<int32_t>(t / 10 % 2), 0, -1}}, slots, 0, 3);
          CHECK(same_bits(y, whole.slice(t, 1)));
        }
        CHECK(same_bits(slots.state().slice(1, 1), whole_slots.state()));
        CHECK(same_bits(slots.conv().slice(1, 1), whole_slots.conv()));
      }
  }
}

TEST_CASE("kda: a sequence's bits do not depend on its neighbours or on the threads") {
  KdaShape s;
  s.heads = 5, s.head_k = 32, s.head_v = 40;
  Rng rng(34);
  const KdaInputs in = KdaInputs::random(rng, s, 96);
  for (const char* name : {"kda_step", "kda_chunk"})
    for (const weft_kernel& k : runnable(name)) {
      std::vector<KdaSeq> seqs;
      for (int32_t i = 0; i < 32; ++i)
        seqs.push_back({static_cast<uint32_t>(3 * i), 3, -1, i, 0, -1});
      KdaSlots slots(s, 32);
      const Grid all = run_kda(k, in, seqs, slots);
      for (const uint32_t threads : {2u, 3u}) {
        KdaSlots other(s, 32);
        CHECK(same_bits(run_kda(k, in, seqs, other, 0, threads), all));
        CHECK(same_bits(other.state(), slots.state()));
      }
      for (const uint32_t i : {0u, 31u}) {
        KdaSlots alone(s, 32);
        CHECK(same_bits(run_kda(k, in, {seqs[i]}, alone), all.slice(3 * i, 3)));
        CHECK(same_bits(alone.state().slice(i, 1), slots.state().slice(i, 1)));
      }
    }
}

TEST_CASE("kda: NaN stays in its head and sequence") {
  KdaShape s;
  Rng rng(35);
  KdaInputs in = KdaInputs::random(rng, s, 20);
  in.q.at(3, 2) = NAN;  // head 0 of the first sequence
  for (const char* name : {"kda_step", "kda_chunk"})
    for (const weft_kernel& k : runnable(name)) {
      KdaSlots slots(s, 2);
      const Grid y = run_kda(k, in, {{0, 10, -1, 0, 0, -1}, {10, 10, -1, 1, 0, -1}}, slots);
      CHECK(std::isnan(y.at(3, 0)));
      CHECK(std::isfinite(y.at(2, 0)));
      CHECK(std::isfinite(y.at(3, s.head_v)));
      CHECK(std::isfinite(y.at(13, 0)));
      CHECK(std::isfinite(slots.state().at(0, 0)));  // q only reads the state
    }
}

}  // namespace kit
