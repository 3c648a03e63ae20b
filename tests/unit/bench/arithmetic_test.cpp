// Percentiles, limits, command lines, shapes and costs: the parts of weft-bench that are
// arithmetic.
#include <doctest/doctest.h>

#include <vector>

#include "bench/args.h"
#include "bench/cost.h"
#include "bench/line_commands.h"
#include "bench/model_shape.h"
#include "bench/op_cost.h"
#include "bench/stats.h"

namespace {

using namespace weft::bench;

ModelShape settled(const char* name) {
  ModelShape shape = preset(name).value();
  REQUIRE(settle(&shape).ok());
  return shape;
}

const WeightPart& part(const std::vector<WeightPart>& parts, const std::string& name) {
  for (const WeightPart& p : parts) {
    if (p.name == name) return p;
  }
  FAIL(name);
  return parts.front();
}

TEST_CASE("quantiles interpolate between neighbours") {
  const std::vector<double> values = {4, 1, 3, 2};
  CHECK(quantile(values, 0) == 1);
  CHECK(quantile(values, 1) == 4);
  CHECK(quantile(values, 0.5) == doctest::Approx(2.5));
  CHECK(quantile(values, 0.1) == doctest::Approx(1.3));
  CHECK(quantile({}, 0.5) == 0);
  const Summary s = summarize(values);
  CHECK(s.median == doctest::Approx(2.5));
  CHECK(s.best == 1);
  CHECK(s.total == 10);
  CHECK(s.count == 4);
}

TEST_CASE("the roofline is the longer of memory and arithmetic") {
  CHECK(roofline_seconds(100, 10, 10, 100) == doctest::Approx(10));
  CHECK(roofline_seconds(100, 5000, 10, 100) == doctest::Approx(50));
  CHECK(roofline_seconds(100, 5000, 0, 0) == 0);
  CHECK(Peaks{1, 2, 0, 0}.matmul_flops() == 2);
  CHECK(Peaks{1, 2, 4, 0}.matmul_flops() == 4);
}

TEST_CASE("counts, lists, shapes and settings") {
  CHECK(parse_count("512").value() == 512);
  CHECK(parse_count("16k").value() == 16384);
  CHECK(parse_count("1m").value() == 1048576);
  for (const char* bad : {"", "k", "-1", "1.5", "12q", "4294967296", "9999999m"}) {
    CHECK_FALSE(parse_count(bad).ok());
  }
  CHECK(parse_counts("1,2k").value() == std::vector<uint32_t>{1, 2048});
  CHECK(parse_counts("").value().empty());
  CHECK_FALSE(parse_counts("1,,2").ok());
  CHECK(parse_shape("n=4,k=1k", "n k").value().at("k") == 1024);
  for (const char* bad : {"n", "n=", "m=3", "n=0", "n=4,,k=2"}) {
    CHECK_FALSE(parse_shape(bad, "n k").ok());
  }
  CHECK(parse_setting("cache_dtype=bf16").value().second == "bf16");
  CHECK_FALSE(parse_setting("cache_dtype").ok());
  CHECK_FALSE(parse_setting("=x").ok());
}

TEST_CASE("lines of the protocol") {
  CHECK(std::get<PrefillCommand>(parse_line("prefill 2k").value()).tokens == 2048);
  const auto decode = std::get<DecodeCommand>(parse_line(" decode  8 64\r").value());
  CHECK(decode.batch == 8);
  CHECK(decode.tokens == 64);
  CHECK(decode.context == 32);
  CHECK_FALSE(decode.mixed);
  CHECK(std::get<DecodeCommand>(parse_line("mixed 2 3 1k").value()).context == 1024);
  const auto logits = std::get<LogitsCommand>(parse_line("logits-file /tmp/x 1 2 3").value());
  CHECK(logits.file == "/tmp/x");
  CHECK(logits.tokens == std::vector<int32_t>{1, 2, 3});
  CHECK(std::holds_alternative<QuitCommand>(parse_line("quit").value()));
  CHECK(std::holds_alternative<InfoCommand>(parse_line("info").value()));
  for (const char* bad : {"", "prefill", "prefill x", "decode 1", "decode 1 2 3 4", "logits",
                          "logits-file", "logits-file p", "quit now", "sing"}) {
    CHECK_FALSE(parse_line(bad).ok());
  }
  CHECK(std::get<PrefillCommand>(parse_once("prefill=512").value()).tokens == 512);
  CHECK(std::get<DecodeCommand>(parse_once("decode=8x64@16k").value()).context == 16384);
  CHECK(std::get<DecodeCommand>(parse_once("mixed=8x4").value()).mixed);
  CHECK_FALSE(parse_once("quit").ok());
  CHECK_FALSE(parse_once("decode=8").ok());
}

TEST_CASE("a config that was written is read back") {
  for (const std::string& name : preset_names()) {
    CAPTURE(name);
    const ModelShape shape = settled(name.c_str());
    const auto read = shape_from_config(config_json(shape).dump());
    REQUIRE(read.ok());
    for (const std::string& key : shape_keys()) {
      CAPTURE(key);
      ModelShape a = shape, b = *read;
      CHECK(*shape_field(&a, key) == *shape_field(&b, key));
    }
    CHECK(read->linear == shape.linear);
    CHECK(read->mxfp4 == shape.mxfp4);
    CHECK(read->full_rank_gate == shape.full_rank_gate);
    CHECK(read->mla_gate == shape.mla_gate);
    CHECK(read->full_attention == shape.full_attention);
  }
  CHECK_FALSE(shape_from_config("{").ok());
  CHECK_FALSE(shape_from_config("{}").ok());
}

TEST_CASE("shapes that contradict themselves are refused") {
  const auto refused = [](const char* key, uint32_t value, const char* name = "mini") {
    ModelShape shape = preset(name).value();
    *shape_field(&shape, key) = value;
    return !settle(&shape).ok();
  };
  CHECK(refused("layers", 0));
  CHECK(refused("topk", 17));
  CHECK(refused("latent", 48));
  CHECK(refused("vocab", 100));
  CHECK(refused("block", 4, "linear-mini"));
  CHECK_FALSE(refused("latent", 0));
  CHECK_FALSE(preset("huge").ok());
}

// mini: hidden 256, 9 layers of which 4, 8 and 9 have latent attention, layer 1 is dense; 4 x 64
// delta heads, 4 latent heads 32+16/32, lora 96 and 64; 16 experts, 4 chosen, 128 x 128, 2 shared.
TEST_CASE("parameters of mini by hand") {
  const ModelShape s = settled("mini");
  CHECK(s.full_attention == std::vector<uint32_t>{3, 7, 8});
  const auto parts = weight_parts(s);
  CHECK(part(parts, "embedding").parameters == 2048 * 256);
  CHECK(part(parts, "head").parameters == 2048 * 256);
  // q, k, v, g, o: 5 x 256 x 256; f: 64 x 256 + 256 x 64; b: 4 x 256.
  CHECK(part(parts, "delta attention").parameters == 6 * (327680 + 32768 + 1024));
  // q_a 96 x 256, q_b 192 x 96, kv_a 80 x 256, kv_b 256 x 64, g and o 128 x 256.
  CHECK(part(parts, "latent attention").parameters ==
        3 * (24576 + 18432 + 20480 + 16384 + 2 * 32768));
  CHECK(part(parts, "dense layers").parameters == 3 * 512 * 256);
  CHECK(part(parts, "router").parameters == 8 * 16 * 256);
  CHECK(part(parts, "latent projections").parameters == 8 * 2 * 128 * 256);
  CHECK(part(parts, "shared experts").parameters == 8 * 3 * 256 * 256);
  CHECK(part(parts, "routed experts").parameters == 8 * 16 * 3 * 128 * 128);
  CHECK(part(parts, "routed experts").bytes == doctest::Approx(8 * 16 * 3 * 128 * 128 * 0.53125));
  CHECK(part(parts, "routed experts").per_row == 8 * 4 * 3 * 128 * 128);
}

TEST_CASE("cost of a step of mini by hand") {
  const ModelShape s = settled("mini");
  const CacheBytes cache{960, 1000};
  const RunCost run{1, 100};
  const StepCost c = step_cost(s, cache, {&run, 1}, 1);
  CHECK(c.experts_per_layer == doctest::Approx(4));
  CHECK(c.expert_bytes == doctest::Approx(8 * 4 * 3 * 128 * 128 * 0.53125));
  CHECK(c.state_bytes == 2000);
  CHECK(c.row_bytes == 960 * 101);
  double per_row = 0;
  for (const WeightPart& p : weight_parts(s)) per_row += static_cast<double>(p.per_row);
  // 3 latent layers x 4 heads x 101 rows x (2 x 80 + 2 x 64); 6 delta layers x 7 x 4 x 64 x 64.
  const double attention = 3 * 4 * 101.0 * 288 + 6 * 7 * 4 * 64 * 64;
  CHECK(c.flop == doctest::Approx(2 * per_row + attention));
  // A fresh state is written but not read; without logits the head stays out.
  const RunCost fresh{64, 0};
  const StepCost f = step_cost(s, cache, {&fresh, 1}, 0);
  CHECK(f.state_bytes == 1000);
  CHECK(f.experts_per_layer == doctest::Approx(16).epsilon(0.001));
  const StepCost with_head = step_cost(s, cache, {&fresh, 1}, 1);
  CHECK(with_head.weight_bytes - f.weight_bytes == 2048 * 256 * 2);
  // Expanded attention: 64 x 65 / 2 pairs x (2 x 48 + 2 x 32).
  const double head_flop = 2.0 * 2048 * 256;
  const double pairs = 3 * 4 * 2080.0 * 160 + 64 * 6 * 7 * 4 * 64 * 64.0;
  CHECK(f.flop == doctest::Approx(64 * (2 * per_row - head_flop) + pairs));
}

TEST_CASE("expected experts") {
  CHECK(expected_experts(64, 8, 1) == doctest::Approx(8));
  CHECK(expected_experts(64, 8, 2) == doctest::Approx(15));
  CHECK(expected_experts(64, 64, 3) == doctest::Approx(64));
  CHECK(expected_experts(0, 0, 3) == 0);
}

TEST_CASE("cost of launches") {
  weft_op_gemm gemm{};
  gemm.n_rows = 3;
  gemm.w = {WEFT_BF16, 0, 16, 8, nullptr, nullptr};
  const OpCost g = cost_of("gemm", &gemm);
  CHECK(g.weight_bytes == 256);
  CHECK(g.flop == 2 * 3 * 16 * 8);
  CHECK(g.act_bytes == 3 * (16 + 8) * 4);
  const weft_weight w1 = {WEFT_MXFP4, 0, 32, 64, nullptr, nullptr};
  const weft_weight w2 = {WEFT_MXFP4, 0, 64, 32, nullptr, nullptr};
  const std::vector<weft_weight> ups(4, w1), downs(4, w2);
  const std::vector<uint16_t> ids = {0, 1, 1, 9};  // 9 lies outside
  weft_op_moe moe{};
  moe.n_rows = 2;
  moe.topk = 2;
  moe.n_local = 4;
  moe.id = ids.data();
  moe.w1 = moe.w3 = ups.data();
  moe.w2 = downs.data();
  const OpCost m = cost_of("moe", &moe);
  CHECK(m.experts == 2);
  CHECK(m.weight_bytes == doctest::Approx(2 * 3 * 2048 * 0.53125));
  CHECK(m.flop == doctest::Approx(3 * 3 * 2 * 2048));
  CHECK(cost_of("sing", &moe).shape.empty());
}

}  // namespace
