// The contract of a step: whatever a batch claims, nothing outside its caches is touched, and the
// caller learns why.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "model_fixture.h"

namespace weft_test {
namespace {

// A sound batch of three sequences: a decode, a fresh prompt piece, a continued one. Tests break
// one thing at a time.
struct Draft {
  std::vector<int32_t> token = {3, 4, 5, 6, 7, 8};
  std::vector<uint32_t> start = {0, 1, 4, 6};
  std::vector<uint32_t> context = {17, 0, 16};
  std::vector<int32_t> table = {10, 11, -1, 12, -1, -1, 13, 14, -1};
  uint64_t stride = 3;
  std::vector<int32_t> read = {5, -1, 6};
  std::vector<int32_t> write = {5, 7, 8};
  std::vector<uint32_t> logit = {0, 3, 5};
  std::vector<uint32_t> media_row = {1};
  std::vector<float> media = std::vector<float>(128, 0.5f);
  std::vector<float> logits = std::vector<float>(3 * 256);
  std::vector<weft_cache_map> maps;
  weft_batch b{};

  Draft() { fill(); }
  void fill() {
    maps = {{table.data(), stride, nullptr, nullptr}, {nullptr, 0, read.data(), write.data()}};
    b.struct_size = sizeof(b);
    b.n_seqs = static_cast<uint32_t>(context.size());
    b.n_rows = static_cast<uint32_t>(token.size());
    b.n_logit_rows = static_cast<uint32_t>(logit.size());
    b.n_media_rows = static_cast<uint32_t>(media_row.size());
    b.token = token.data();
    b.seq_start = start.data();
    b.context = context.data();
    b.maps = maps.data();
    b.logit_row = logit.data();
    b.logits = logits.data();
    b.media_row = media_row.data();
    b.media = media.data();
  }
};

struct Fixture {
  Fixture() : bench("ref"), model(bench, setup()) {
    checkpoint.add_weights(TensorList(read_json("tiny_k3").at("config")), 7);
    REQUIRE_MESSAGE(model.bring_up(checkpoint), model.last_error());
  }
  static ModelSetup setup() {
    ModelSetup s;
    s.config = read_json("tiny_k3").at("config").dump();
    s.max_rows = 8;
    s.max_seqs = 4;
    s.max_context = 40;
    s.pages = 20;
    s.slots = 10;
    return s;
  }
  Bench bench;
  MemoryCheckpoint checkpoint;
  TestModel model;
};

}  // namespace

TEST_CASE("every broken batch is refused with a reason") {
  Fixture f;
  using Change = std::function<void(Draft&)>;
  const std::pair<Change, const char*> cases[] = {
      {[](Draft& d) { d.b.struct_size = 8; }, "batch.struct_size: expected"},
      {[](Draft& d) { d.b.n_seqs = 0; }, "batch.n_seqs: expected 1 to 4, got 0"},
      {[](Draft& d) { d.b.n_seqs = 5; }, "batch.n_seqs: expected 1 to 4, got 5"},
      {[](Draft& d) { d.b.n_rows = 9; }, "batch.n_rows: expected 3 to 8, got 9"},
      {[](Draft& d) { d.b.n_rows = 2; }, "batch.n_rows: expected 3 to 8, got 2"},
      {[](Draft& d) { d.b.n_logit_rows = 7; }, "batch.n_logit_rows: expected 0 to 6, got 7"},
      {[](Draft& d) { d.b.n_media_rows = 7; }, "batch.n_media_rows: expected 0 to 6, got 7"},
      {[](Draft& d) { d.b.token = nullptr; }, "batch.token: expected a pointer, got NULL"},
      {[](Draft& d) { d.b.seq_start = nullptr; }, "batch.seq_start: expected a pointer"},
      {[](Draft& d) { d.b.context = nullptr; }, "batch.context: expected a pointer"},
      {[](Draft& d) { d.b.maps = nullptr; }, "batch.maps: expected a pointer"},
      {[](Draft& d) { d.b.logits = nullptr; }, "batch.logits: expected a pointer"},
      {[](Draft& d) { d.b.logit_row = nullptr; }, "batch.logit_row: expected a pointer"},
      {[](Draft& d) { d.b.media = nullptr; }, "batch.media: expected a pointer"},
      {[](Draft& d) { d.start[0] = 1; }, "batch.seq_start[0]: expected 0, got 1"},
      {[](Draft& d) { d.start[2] = 1; },
       "batch.seq_start[2]: expected 2 to 6 (every sequence has rows), got 1"},
      {[](Draft& d) { d.start[1] = 0xffffffff; }, "batch.seq_start[1]"},
      {[](Draft& d) { d.start[3] = 5; }, "batch.seq_start[3]: expected n_rows (6), got 5"},
      {[](Draft& d) { d.context[2] = 39; },
       "sequence 2: 39 cached tokens and 2 new ones exceed the context limit of 40"},
      {[](Draft& d) { d.context[2] = 0xffffffff; }, "exceed the context limit"},
      {[](Draft& d) { d.token[4] = 256; }, "batch.token[4]: expected 0 to 255, got 256"},
      {[](Draft& d) { d.token[0] = -1; }, "batch.token[0]: expected 0 to 255, got -1"},
      {[](Draft& d) { d.maps[0].table = nullptr; }, "maps[mla].table: expected a pointer"},
      {[](Draft& d) { d.maps[0].table_stride = 1; },
       "maps[mla].table_stride: sequence 0 needs 2 pages, got room for 1"},
      {[](Draft& d) { d.table[1] = 20; },
       "sequence 0, entry 1: expected a page from 0 to 19, got 20"},
      {[](Draft& d) { d.table[3] = -1; },
       "sequence 1, entry 0: expected a page from 0 to 19, got -1"},
      {[](Draft& d) { d.table[7] = 11; }, "page 11 is written by sequence 0 and by sequence 2"},
      {[](Draft& d) { d.table[6] = 12; },
       "page 12 is read by sequence 2 while sequence 1 writes it"},
      {[](Draft& d) { d.maps[1].read_slot = nullptr; },
       "maps[kda].read_slot and write_slot: expected pointers"},
      {[](Draft& d) { d.write[1] = 10; }, "maps[kda].write_slot[1]: expected 0 to 9, got 10"},
      {[](Draft& d) { d.write[1] = -1; }, "maps[kda].write_slot[1]: expected 0 to 9, got -1"},
      {[](Draft& d) { d.read[2] = 10; }, "maps[kda].read_slot[2]: expected at most 9, got 10"},
      {[](Draft& d) { d.read[0] = -1; },
       "maps[kda].read_slot[0]: expected a negative number exactly for"},
      {[](Draft& d) { d.read[1] = 2; },
       "maps[kda].read_slot[1]: expected a negative number exactly for"},
      {[](Draft& d) { d.write[2] = 5; }, "slot 5 is written by sequence 0 and by sequence 2"},
      {[](Draft& d) { d.read[2] = 7; }, "slot 7 is read by sequence 2 while sequence 1 writes it"},
      {[](Draft& d) { d.logit[1] = 0; },
       "batch.logit_row[1]: expected ascending rows below 6, got 0"},
      {[](Draft& d) { d.logit[2] = 6; },
       "batch.logit_row[2]: expected ascending rows below 6, got 6"},
      {[](Draft& d) { d.media_row[0] = 6; },
       "batch.media_row[0]: expected ascending rows below 6, got 6"},
  };
  for (const auto& [change, said] : cases) {
    CAPTURE(said);
    Draft d;
    change(d);
    CHECK(f.model.step(d.b) == WEFT_E_ARG);
    CAPTURE(f.model.last_error());
    CHECK(f.model.last_error().find(said) != std::string::npos);
  }
  // The draft itself is fine; its cached rows are poison, so only the fresh sequence has meaning.
  Draft d;
  CHECK_MESSAGE(f.model.step(d.b) == WEFT_OK, f.model.last_error());
  CHECK(std::isfinite(d.logits[256]));
  // No logits asked for, no media.
  d.logit.clear();
  d.media_row.clear();
  d.fill();
  CHECK_MESSAGE(f.model.step(d.b) == WEFT_OK, f.model.last_error());
}

TEST_CASE("a shared prefix may be read by several sequences") {
  Fixture f;
  Draft d;
  d.table[6] = d.table[0];  // both have the page of tokens 0..15 behind them
  d.media_row.clear();
  d.fill();
  CHECK_MESSAGE(f.model.step(d.b) == WEFT_OK, f.model.last_error());
}

TEST_CASE("only the units of the step are written") {
  Fixture f;
  Draft d;
  const auto copy = [&](const char* name, int32_t unit) {
    const uint32_t g = f.model.group(name);
    const std::byte* at = f.model.unit(g, unit);
    return std::vector<std::byte>(at, at + f.model.memory().groups[g].unit_bytes);
  };
  std::vector<std::vector<std::byte>> pages, slots;
  for (int32_t u = 0; u < 20; ++u) pages.push_back(copy("mla", u));
  for (int32_t u = 0; u < 10; ++u) slots.push_back(copy("kda", u));
  REQUIRE_MESSAGE(f.model.step(d.b) == WEFT_OK, f.model.last_error());
  for (int32_t u = 0; u < 20; ++u) {
    CAPTURE(u);
    const bool written = u == 11 || u == 12 || u == 14;
    CHECK((copy("mla", u) != pages[static_cast<size_t>(u)]) == written);
  }
  for (int32_t u = 0; u < 10; ++u) {
    CAPTURE(u);
    const bool written = u == 5 || u == 7 || u == 8;
    CHECK((copy("kda", u) != slots[static_cast<size_t>(u)]) == written);
  }
}

TEST_CASE("media that does not fit the tower is refused") {
  Fixture f;
  std::vector<float> patches(48 * 64), rows(128 * 64);
  weft_media m{};
  m.struct_size = sizeof(m);
  m.grid_t = 1;
  m.grid_h = 4;
  m.grid_w = 4;
  m.patches = patches.data();
  REQUIRE_MESSAGE(f.model.encode(m, rows.data()) == WEFT_OK, f.model.last_error());
  using Change = std::function<void(weft_media&)>;
  const std::pair<Change, const char*> cases[] = {
      {[](weft_media& x) { x.struct_size = 4; }, "media.struct_size"},
      {[](weft_media& x) { x.grid_h = 3; },
       "media.grid_h: expected a multiple of 2 up to 512, got 3"},
      {[](weft_media& x) { x.grid_w = 0; }, "media.grid_w: expected a multiple of 2"},
      {[](weft_media& x) { x.grid_w = 514; }, "media.grid_w"},
      {[](weft_media& x) { x.grid_t = 5; }, "media.grid_t: expected 1 to 4 frames, got 5"},
      {[](weft_media& x) { x.grid_h = x.grid_w = 400; },
       "exceed the limit of 69632; raise max_media_patches"},
      {[](weft_media& x) { x.patches = nullptr; }, "media.patches: expected a pointer"},
  };
  for (const auto& [change, said] : cases) {
    CAPTURE(said);
    weft_media broken = m;
    change(broken);
    CHECK(f.model.encode(broken, rows.data()) == WEFT_E_ARG);
    CHECK(f.model.last_error().find(said) != std::string::npos);
  }
  CHECK(f.model.encode(m, nullptr) == WEFT_E_ARG);
}

}  // namespace weft_test
