// Every variant against numbers that an independent float64 program computed
// (tests/data/kernels/make_vectors.py).
#include <fstream>
#include <sstream>

#include "base/json_value.h"
#include "kda_fixture.h"
#include "kit.h"
#include "mla_fixture.h"

namespace kit {
namespace {

class Case {
 public:
  explicit Case(const weft::JsonValue& value) : value_(value) {}

  const weft::JsonValue& member(const char* name) const {
    const weft::JsonValue* found = value_.find(name);
    REQUIRE(found != nullptr);
    return *found;
  }
  uint32_t number(const char* name) const { return static_cast<uint32_t>(*member(name).as_int()); }
  std::vector<float> list(const char* name) const {
    std::vector<float> out;
    for (const weft::JsonValue& v : member(name).items())
      out.push_back(static_cast<float>(*v.as_double()));
    return out;
  }
  Grid grid(const char* name, uint64_t rows, uint64_t cols) const {
    const std::vector<float> values = list(name);
    REQUIRE(values.size() == rows * cols);
    Grid out(rows, cols);
    for (uint64_t i = 0; i < values.size(); ++i) out.at(i / cols, i % cols) = values[i];
    return out;
  }

 private:
  const weft::JsonValue& value_;
};

const weft::JsonValue& vectors() {
  static const weft::JsonValue document = [] {
    std::ifstream file(std::string(WEFT_TEST_DATA) + "/kernels/vectors.json");
    std::stringstream text;
    text << file.rdbuf();
    auto parsed = weft::parse_json(text.str());
    REQUIRE(parsed.ok());
    return std::move(parsed).value();
  }();
  return document;
}

std::vector<Case> cases(const char* group) {
  std::vector<Case> out;
  for (const weft::JsonValue& v : vectors().find(group)->items()) out.emplace_back(v);
  REQUIRE(!out.empty());
  return out;
}

// ref works in double on float inputs and rounds results once (the KDA state once per token); the
// vector variants stay in float with fewer than 20 terms per sum.
double tolerance(const weft_kernel& k) { return std::string(k.variant) == "ref" ? 1e-6 : 1e-5; }

}  // namespace

TEST_CASE("vectors: kda") {
  for (const Case& c : cases("kda")) {
    KdaShape s;
    s.heads = c.number("heads"), s.head_k = c.number("head_k"), s.head_v = c.number("head_v"),
    s.taps = c.number("taps");
    s.gate =
        c.member("gate").as_string() == "bounded" ? WEFT_KDA_GATE_BOUNDED : WEFT_KDA_GATE_SOFTPLUS;
    const uint32_t n = c.number("tokens"), keys = s.heads * s.head_k, values = s.heads * s.head_v;
    KdaInputs in;
    in.shape = s;
    in.q = c.grid("q", n, keys), in.k = c.grid("k", n, keys), in.v = c.grid("v", n, values);
    in.f = c.grid("f", n, keys), in.u = c.grid("u", n, values), in.b = c.grid("b", n, s.heads);
    in.conv_q = c.list("conv_q"), in.conv_k = c.list("conv_k"), in.conv_v = c.list("conv_v");
    in.a_log = c.list("a_log"), in.dt_bias = c.list("dt_bias"), in.o_norm = c.list("o_norm");
    for (const char* name : {"kda_step", "kda_chunk"})
      for (const weft_kernel& k : runnable(name)) {
        INFO(k.op << " " << k.variant << " " << c.member("gate").as_string());
        KdaSlots slots(s, 1);
        const Grid y = run_kda(k, in, {{0, n, -1, 0, 0, -1}}, slots, 4);
        CHECK(distance(y, c.grid("y", n, values)) < tolerance(k));
        CHECK(distance(slots.state(), c.grid("state", 1, keys * s.head_v)) < tolerance(k));
        CHECK(distance(slots.conv(), c.grid("conv_state", 1, (2 * keys + values) * (s.taps - 1))) ==
              0);
      }
  }
}

TEST_CASE("vectors: mla") {
  for (const Case& c : cases("mla")) {
    MlaShape s;
    s.heads = c.number("heads"), s.nope = c.number("nope"), s.v_dim = c.number("v_dim");
    s.latent = c.number("latent"), s.tail = c.number("tail"), s.page_tokens = 3;
    const uint32_t n = c.number("tokens");
    Rng rng(1);
    MlaCache cache(rng, s, WEFT_F32, 1, n);
    MlaBatch batch;
    batch.add(0, n);
    mla_store(find("mla_store", "ref", WEFT_F32), c.grid("x", n, s.latent + s.tail), c.list("w"),
              batch, cache);
    Weight kv_b;
    kv_b.n = s.heads * (s.nope + s.v_dim), kv_b.k = s.latent, kv_b.dtype = WEFT_F32;
    kv_b.value = c.list("kv_b");
    kv_b.data.resize(kv_b.value.size() * 4);
    memcpy(kv_b.data.data(), kv_b.value.data(), kv_b.data.size());
    const Grid q = c.grid("q", n, s.heads * (s.nope + s.tail)),
               u = c.grid("u", n, s.heads * s.v_dim);
    for (const char* name : {"mla_decode", "mla_prefill"})
      for (const weft_kernel& k : runnable(name)) {
        if (k.dtype_w != WEFT_F32) continue;
        INFO(k.op << " " << k.variant);
        CHECK(distance(mla_attend(k, q, kv_b, &u, batch, cache),
                       c.grid("y", n, s.heads * s.v_dim)) < tolerance(k));
      }
  }
}

TEST_CASE("vectors: attnres") {
  for (const Case& c : cases("attnres"))
    for (const weft_kernel& k : runnable("attnres")) {
      INFO(k.variant << " blocks " << c.number("n_blocks"));
      const uint32_t rows = c.number("rows"), width = c.number("width");
      const auto blocks = c.list("blocks"), prefix = c.list("prefix"), q = c.list("q"),
                 norm_w = c.list("norm_w");
      Host host(1);
      Grid y(rows, width);
      auto op = make_op<weft_op_attnres>(host);
      op.n_rows = rows, op.n_cols = width, op.n_blocks = c.number("n_blocks");
      op.blocks = blocks.data();
      op.block_stride = uint64_t{rows} * width, op.row_stride = width;
      op.prefix = prefix.data(), op.prefix_stride = width;
      op.q = q.data();
      op.eps = op.norm_eps = 1e-5f;
      op.norm_w = c.number("normed") != 0 ? norm_w.data() : nullptr;
      op.y = y.data(), op.y_stride = y.stride();
      must_launch(k, op);
      CHECK(distance(y, c.grid("y", rows, width)) < tolerance(k));
    }
}

}  // namespace kit
