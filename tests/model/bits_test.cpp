// The two promises about bits. By default a sequence whose prompt is cut into the same pieces gets
// the same bits in any company and on any number of threads. With WEFT_BATCH_RECURRENT (the engine
// setting "deterministic") the cuts do not matter either. Both on random models, so that a mixed-up
// state or row shows as a flipped bit.
#include <doctest/doctest.h>

#include <algorithm>

#include "model_fixture.h"

namespace weft_test {
namespace {

#ifdef WEFT_SANITIZED  // the slow ones add nothing there
const char* const kLevels[] = {"avx512_bf16"};
#else
const char* const kLevels[] = {"ref", "avx2", "avx512", "avx512_bf16"};
#endif
const char* const kModels[] = {"tiny_k3", "tiny_linear", "odd_k3"};
constexpr size_t kPrompt = 70;

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  size_t in(size_t low, size_t high) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return low + static_cast<size_t>(state_ >> 33) % (high - low + 1);
  }

 private:
  uint64_t state_;
};

std::vector<int32_t> random_ids(Dice& dice, size_t n, uint32_t vocab) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(dice.in(0, vocab - 1)));
  return ids;
}

// Piece lengths that add up to n: long ones take the prefill forms, short ones the decode forms.
std::vector<size_t> random_pieces(Dice& dice, size_t n) {
  std::vector<size_t> out;
  while (n > 0) {
    out.push_back(std::min(n, dice.in(0, 2) == 0 ? dice.in(1, 3) : dice.in(1, 40)));
    n -= out.back();
  }
  return out;
}

// A sequence being fed piece by piece.
struct Feeding {
  std::vector<int32_t> ids;
  std::vector<size_t> pieces;
  Sequence sequence{};
  size_t at = 0, piece = 0;
  std::vector<float> logits{};  // of the last row of every piece

  bool done() const { return piece == pieces.size(); }
  Piece next() {
    const size_t n = pieces[piece++];
    Piece p{&sequence,
            {ids.begin() + static_cast<std::ptrdiff_t>(at),
             ids.begin() + static_cast<std::ptrdiff_t>(at + n)},
            false,
            {}};
    at += n;
    return p;
  }
};

// Feeds all of them together, each starting `delay` steps after the one before.
void feed_all(TestModel& m, std::vector<Feeding*> list, size_t delay, uint32_t flags) {
  const size_t vocab = m.info().vocab;
  for (size_t step = 0; std::any_of(list.begin(), list.end(), [](auto* f) { return !f->done(); });
       ++step) {
    std::vector<Piece> pieces;
    std::vector<Feeding*> in;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i]->done() || step < i * delay) continue;
      pieces.push_back(list[i]->next());
      in.push_back(list[i]);
    }
    if (pieces.empty()) continue;
    const auto logits = m.feed(pieces, {}, flags);
    REQUIRE_MESSAGE(logits.size() == in.size() * vocab, m.last_error());
    for (size_t i = 0; i < in.size(); ++i)
      in[i]->logits.insert(in[i]->logits.end(),
                           logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                           logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
  }
  for (Feeding* f : list) m.release(f->sequence);
}

std::vector<float> alone(TestModel& m, const Feeding& like, uint32_t flags) {
  Feeding f{like.ids, like.pieces};
  feed_all(m, {&f}, 0, flags);
  return f.logits;
}

struct Loaded {
  Loaded(const std::string& level, uint32_t threads, const Json& vectors)
      : bench(level, threads), model(bench, setup(vectors)) {
    checkpoint.add_weights(TensorList(vectors.at("config")), vectors.at("seed"));
    REQUIRE_MESSAGE(model.bring_up(checkpoint), model.last_error());
  }
  static ModelSetup setup(const Json& vectors) {
    ModelSetup s;
    s.config = vectors.at("config").dump();
    s.settings = {{"prefill_min_rows", "8"}};
    return s;
  }
  Bench bench;
  MemoryCheckpoint checkpoint;
  TestModel model;
};

}  // namespace

TEST_CASE("bits: the same pieces give the same bits in any company, on any number of threads") {
  for (const char* name : kModels) {
    const Json vectors = read_json(name);
    for (const char* level : kLevels) {
      CAPTURE(name);
      CAPTURE(level);
      Loaded one(level, 1, vectors), three(level, 3, vectors);
      Dice dice(11);
      const uint32_t vocab = one.model.info().vocab;
      Feeding subject{random_ids(dice, kPrompt, vocab), random_pieces(dice, kPrompt)};
      const auto want = alone(one.model, subject, 0);
      std::vector<Feeding> others;
      for (int i = 0; i < 9; ++i)
        others.push_back({random_ids(dice, 40, vocab), random_pieces(dice, 40)});
      std::vector<Feeding*> all = {&others[0], &others[1], &subject};
      for (size_t i = 2; i < others.size(); ++i) all.push_back(&others[i]);
      feed_all(three.model, all, 1, 0);
      CHECK(subject.logits == want);
    }
  }
}

TEST_CASE("bits: with the recurrent flag no cut changes a bit, in any company, on any threads") {
  for (const char* name : kModels) {
    const Json vectors = read_json(name);
    for (const char* level : kLevels) {
      CAPTURE(name);
      CAPTURE(level);
      Loaded one(level, 1, vectors), two(level, 2, vectors);
      Dice dice(5);
      const uint32_t vocab = one.model.info().vocab;
      const auto ids = random_ids(dice, kPrompt, vocab);
      const auto want = alone(one.model, {ids, {kPrompt}}, WEFT_BATCH_RECURRENT);
      REQUIRE(want.size() == vocab);
      for (int round = 0; round < 4; ++round) {
        Feeding subject{ids, random_pieces(dice, kPrompt)};
        Feeding before{random_ids(dice, 33, vocab), random_pieces(dice, 33)};
        Feeding after{random_ids(dice, 50, vocab), random_pieces(dice, 50)};
        feed_all(two.model, {&before, &subject, &after}, 1, WEFT_BATCH_RECURRENT);
        const std::vector<float> last(subject.logits.end() - vocab, subject.logits.end());
        CHECK(last == want);
      }
    }
  }
}

}  // namespace weft_test
