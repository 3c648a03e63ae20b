// Random members of the family: odd sizes, any layer list, every switch on or off. For each, the
// fast kernels must agree with the reference kernels, and any cut of the prompt with the whole
// prompt.
//
// Tolerance as in logits_test.cpp. A random router can have two experts within rounding of each
// other; such a case would differ by far more, so the seeds below are fixed and known to have none.
#include <doctest/doctest.h>

#include <random>

#include "model_fixture.h"

namespace weft_test {
namespace {

constexpr double kTolerance = 3e-4;

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t in(int64_t low, int64_t high) {  // plain modulo: the same numbers everywhere
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool coin() { return in(0, 1) == 1; }

 private:
  std::mt19937_64 engine_;
};

Json random_config(Dice& dice) {
  const int64_t layers = dice.in(1, 6);
  Json kda = Json::array(), full = Json::array();
  for (int64_t i = 1; i <= layers; ++i) (dice.in(0, 2) != 0 ? kda : full).push_back(i);
  const bool wrapped = dice.coin(), packed = dice.coin(), situ = dice.coin();
  Json t = {{"model_type", "kimi_linear"},
            {"vocab_size", dice.in(17, 90)},
            {"hidden_size", packed ? 32 * dice.in(1, 3) : dice.in(9, 70)},
            {"num_hidden_layers", layers},
            {"intermediate_size", dice.in(5, 80)},
            {"num_attention_heads", dice.in(1, 7)},
            {"rms_norm_eps", 1e-5},
            {"kv_lora_rank", dice.in(5, 50)},
            {"qk_nope_head_dim", dice.in(1, 37)},
            {"qk_rope_head_dim", dice.in(1, 19)},
            {"v_head_dim", dice.in(1, 37)},
            {"mla_use_nope", true},
            {"mla_use_output_gate", dice.coin()},
            {"hidden_act", situ ? "situ" : "silu"},
            {"linear_attn_config",
             {{"kda_layers", kda},
              {"full_attn_layers", full},
              {"num_heads", dice.in(1, 7)},
              {"head_dim", dice.in(1, 40)},
              {"short_conv_kernel_size", dice.in(1, 6)},
              {"use_full_rank_gate", dice.coin()}}}};
  if (situ) t["activation_situ_beta"] = 4.0;
  if (situ && dice.coin()) t["activation_situ_linear_beta"] = 25.0;
  if (dice.coin()) t["q_lora_rank"] = dice.in(3, 40);
  if (dice.coin()) t["attn_res_block_size"] = dice.in(1, 5);
  if (dice.coin())
    t["linear_attn_config"]["gate_lower_bound"] = -static_cast<double>(dice.in(1, 5));
  if (dice.in(0, 3) != 0) {
    const int64_t groups = dice.coin() ? dice.in(2, 3) : 1, experts = groups * dice.in(2, 6);
    t["num_experts"] = experts;
    t["num_expert_group"] = groups;
    t["topk_group"] = dice.in(1, groups);
    t["num_experts_per_token"] =
        dice.in(1, std::min<int64_t>(4, t["topk_group"].get<int64_t>() * experts / groups));
    t["num_shared_experts"] = dice.in(0, 2);
    t["moe_intermediate_size"] = packed ? 32 * dice.in(1, 2) : dice.in(3, 40);
    t["first_k_dense_replace"] = dice.in(0, 2);
    t["moe_layer_freq"] = dice.in(1, 2);
    t["moe_renormalize"] = dice.coin();
    t["moe_router_activation_func"] = dice.coin() ? "sigmoid" : "softmax";
    t["routed_scaling_factor"] = 1.5;
    if (dice.coin()) {
      t["routed_expert_hidden_size"] = packed ? 32 * dice.in(1, 2) : dice.in(3, 50);
      t["latent_moe_use_norm"] = dice.coin();
    }
    if (packed) t["quantization_config"] = {{"format", "mxfp4-pack-quantized"}};
  }
  return wrapped ? Json{{"model_type", "kimi_k3"}, {"text_config", t}} : t;
}

std::vector<float> run(TestModel& m, const std::vector<int32_t>& ids,
                       const std::vector<size_t>& cuts, uint32_t flags) {
  Sequence s;
  std::vector<float> out;
  for (size_t i = 0, at = 0; i < cuts.size(); at = cuts[i++]) {
    const std::vector<int32_t> part(ids.begin() + static_cast<std::ptrdiff_t>(at),
                                    ids.begin() + static_cast<std::ptrdiff_t>(cuts[i]));
    const auto logits = m.feed({{&s, part, true, {}}}, {}, flags);
    out.insert(out.end(), logits.begin(), logits.end());
  }
  m.release(s);
  return out;
}

}  // namespace

TEST_CASE("random shapes: fast kernels against the reference, cut and whole") {
  Bench reference("ref");
  std::vector<std::unique_ptr<Bench>> fast;
  fast.push_back(std::make_unique<Bench>("avx2"));
  fast.push_back(std::make_unique<Bench>("avx512", 2));
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Dice dice(seed);
    const Json config = random_config(dice);
    CAPTURE(config.dump());
    MemoryCheckpoint checkpoint;
    checkpoint.add_weights(TensorList(config), seed);
    ModelSetup setup;
    setup.config = config.dump();
    setup.page_tokens = static_cast<uint32_t>(dice.in(1, 33));
    setup.max_context = 100;
    setup.settings = {{"prefill_min_rows", std::to_string(dice.in(1, 30))},
                      {"kda_chunk", std::to_string(dice.in(0, 24))}};
    TestModel m(reference, setup);
    REQUIRE_MESSAGE(m.bring_up(checkpoint), m.last_error());
    const auto n = static_cast<size_t>(dice.in(3, 60));
    std::vector<int32_t> ids;
    for (size_t i = 0; i < n; ++i)
      ids.push_back(static_cast<int32_t>(dice.in(0, m.info().vocab - 1)));
    const auto cut = static_cast<size_t>(dice.in(1, static_cast<int64_t>(n) - 1));
    const auto want = run(m, ids, {n}, WEFT_BATCH_RECURRENT);
    CHECK(distance(run(m, ids, {cut, n}, 0), want) <= kTolerance);
    for (auto& bench : fast) {
      TestModel f(*bench, setup);
      REQUIRE_MESSAGE(f.bring_up(checkpoint), f.last_error());
      CHECK(distance(run(f, ids, {n}, 0), want) <= kTolerance);
      CHECK(distance(run(f, ids, {cut, n}, 0), want) <= kTolerance);
      CHECK(distance(run(f, ids, {cut, n}, WEFT_BATCH_RECURRENT), want) <= kTolerance);
    }
  }
}

}  // namespace weft_test
