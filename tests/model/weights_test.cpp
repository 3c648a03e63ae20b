// Tensors: the hash-rule checkpoints, what declare demands, what placed refuses, and the released
// sizes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "model_fixture.h"
#include "sha256.h"

namespace weft_test {
namespace {

ModelSetup setup_of(const Json& config) {
  ModelSetup s;
  s.config = config.dump();
  return s;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const char* const kK3 = "language_model.model.layers.";

// Text configuration of the released model, as far as its tensors go.
Json released_k3() {
  Json kda = Json::array(), full = Json::array();
  for (int i = 1; i <= 93; ++i) (i % 4 == 0 || i == 93 ? full : kda).push_back(i);
  Json text = {{"vocab_size", 163840},
               {"hidden_size", 7168},
               {"intermediate_size", 33792},
               {"num_hidden_layers", 93},
               {"num_attention_heads", 96},
               {"hidden_act", "situ"},
               {"activation_situ_beta", 4.0},
               {"activation_situ_linear_beta", 25.0},
               {"rms_norm_eps", 1e-5},
               {"q_lora_rank", 1536},
               {"kv_lora_rank", 512},
               {"qk_nope_head_dim", 128},
               {"qk_rope_head_dim", 64},
               {"v_head_dim", 128},
               {"mla_use_nope", true},
               {"mla_use_output_gate", true},
               {"num_experts", 896},
               {"num_experts_per_token", 16},
               {"num_shared_experts", 2},
               {"moe_intermediate_size", 3072},
               {"routed_expert_hidden_size", 3584},
               {"latent_moe_use_norm", true},
               {"first_k_dense_replace", 1},
               {"attn_res_block_size", 12},
               {"quantization_config", {{"format", "mxfp4-pack-quantized"}}},
               {"linear_attn_config",
                {{"kda_layers", kda},
                 {"full_attn_layers", full},
                 {"num_heads", 96},
                 {"head_dim", 128},
                 {"short_conv_kernel_size", 4},
                 {"use_full_rank_gate", true},
                 {"gate_lower_bound", -5.0}}}};
  Json vision = {{"patch_size", 14},
                 {"vt_hidden_size", 1024},
                 {"vt_num_hidden_layers", 27},
                 {"vt_num_attention_heads", 12},
                 {"qkv_hidden_size", 1536},
                 {"vt_intermediate_size", 4096},
                 {"init_pos_emb_height", 64},
                 {"init_pos_emb_width", 64},
                 {"merge_kernel_size", {2, 2}},
                 {"text_hidden_size", 7168}};
  return {{"model_type", "kimi_k3"},
          {"media_placeholder_token_id", 163605},
          {"text_config", text},
          {"vision_config", vision}};
}

Json released_linear() {
  Json kda = Json::array(), full = {4, 8, 12, 16, 20, 24, 27};
  for (int i = 1; i <= 27; ++i) {
    if (i % 4 != 0 && i != 27) kda.push_back(i);
  }
  return {{"model_type", "kimi_linear"},
          {"vocab_size", 163840},
          {"hidden_size", 2304},
          {"intermediate_size", 9216},
          {"num_hidden_layers", 27},
          {"num_attention_heads", 32},
          {"rms_norm_eps", 1e-5},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"mla_use_nope", true},
          {"num_experts", 256},
          {"num_experts_per_token", 8},
          {"num_shared_experts", 1},
          {"moe_intermediate_size", 1024},
          {"first_k_dense_replace", 1},
          {"linear_attn_config",
           {{"kda_layers", kda},
            {"full_attn_layers", full},
            {"num_heads", 32},
            {"head_dim", 128},
            {"short_conv_kernel_size", 4}}}};
}

}  // namespace

TEST_CASE("sha256 of a known text") {
  Sha256 hash;
  hash.add("abc");
  CHECK(hash.hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("hash-rule weights equal the reference's, byte for byte") {
  for (const char* name :
       {"tiny_k3", "tiny_linear", "one_kda_layer", "all_mla", "groups", "odd_k3"}) {
    CAPTURE(name);
    const Json vectors = read_json(name);
    MemoryCheckpoint checkpoint;
    checkpoint.add_weights(TensorList(vectors.at("config")), vectors.at("seed"));
    Sha256 hash;
    for (const auto& [tensor, content] : checkpoint.tensors()) {
      hash.add(tensor);
      hash.add(content.bytes.data(), content.bytes.size());
    }
    CHECK(checkpoint.tensors().size() == vectors.at("tensors").get<size_t>());
    CHECK(hash.hex() == vectors.at("sha256").get<std::string>());
  }
  CHECK(read_json("tiny_k3").at("sha256") ==
        "b3d6165d27e32f1a7432973313c7310a525c21dece0ec5b2851e71e5f8b06aa7");
  CHECK(read_json("tiny_linear").at("sha256") ==
        "800f52daccf0364c74843a0110840a10bbc8403d199180faad8b62df7ee2e8af");
}

TEST_CASE("the released models declare to their published sizes") {
  Bench bench("ref");
  {
    const Json config = released_k3();
    const TensorList list(config, 32);
    CHECK(list.rules().size() == 497220);
    MemoryCheckpoint checkpoint;
    checkpoint.add_shapes(list);
    ModelSetup setup = setup_of(config);
    setup.max_rows = 64;
    setup.max_context = 4096;
    setup.page_tokens = 128;
    setup.cache_dtype = WEFT_BF16;
    TestModel m(bench, setup);
    REQUIRE_MESSAGE(m.declare(checkpoint.catalog()) == WEFT_OK, m.last_error());
    CHECK(m.info().parameters == 2779931834976ull);
    REQUIRE_MESSAGE(m.plan() == WEFT_OK, m.last_error());
    // 27,648 bytes per token in bf16; 434,110,464 bytes of states and twice 15,261,696 of f32
    // histories.
    CHECK(m.memory().groups[0].unit_bytes == 128 * 27648);
    CHECK(m.memory().groups[1].unit_bytes == 434110464 + 2 * 15261696);
    // Stored bytes, with the small vectors widened to f32 and pieces aligned.
    CHECK(m.memory().weight_bytes > 1560860324864ull);
    CHECK(m.memory().weight_bytes < 1560860324864ull + 200000000ull);
  }
  {
    const Json config = released_linear();
    MemoryCheckpoint checkpoint;
    const TensorList list(config);
    CHECK(list.rules().size() == 20493);
    checkpoint.add_shapes(list);
    TestModel m(bench, setup_of(config));
    REQUIRE_MESSAGE(m.declare(checkpoint.catalog()) == WEFT_OK, m.last_error());
    CHECK(m.info().parameters == 49122681728ull);
  }
}

TEST_CASE("declare names tensors that are missing or do not fit") {
  const Json k3 = read_json("tiny_k3").at("config");
  const std::string a_log = std::string(kK3) + "0.self_attn.A_log";
  const std::string conv = std::string(kK3) + "0.self_attn.q_conv1d.weight";
  const std::string w2 = std::string(kK3) + "3.block_sparse_moe.experts.5.w2.weight_";
  const std::string router = std::string(kK3) + "1.block_sparse_moe.gate.weight";
  using Change = std::function<void(MemoryCheckpoint&)>;
  const std::pair<Change, std::string> cases[] = {
      {[&](auto& c) { c.erase(router); }, router + " is missing (BF16 or F32 [8, 128] expected)"},
      {[&](auto& c) {
         c.add(router, WEFT_F16, {8, 128}, 2048);
       },
       router + ": expected BF16 or F32 [8, 128], got F16 [8, 128] in 2048 bytes"},
      {[&](auto& c) {
         c.add(router, WEFT_BF16, {128, 8}, 2048);
       },
       "got BF16 [128, 8]"},
      {[&](auto& c) {
         c.add(router, WEFT_BF16, {8, 128, 1}, 2048);
       },
       "got BF16 [8, 128, 1]"},
      {[&](auto& c) {
         c.add(router, WEFT_BF16, {8, 128}, 2046);
       },
       "in 2046 bytes"},
      {[&](auto& c) { c.erase(a_log); },
       a_log + " is missing (F32 [4], zero-padded, or [1, 1, 4, 1] expected)"},
      {[&](auto& c) { c.add(a_log, WEFT_F32, {3}, 12); }, a_log + ": expected F32 [4]"},
      {[&](auto& c) { c.add(a_log, WEFT_BF16, {4}, 8); }, "got BF16 [4]"},
      {[&](auto& c) {
         c.add(a_log, WEFT_F32, {1, 1, 5, 1}, 20);
       },
       "got F32 [1, 1, 5, 1]"},
      {[&](auto& c) {
         c.add(conv, WEFT_F32, {64, 4}, 1024);
       },
       conv + ": expected BF16 or F32 [64, 1, 4], got F32 [64, 4]"},
      {[&](auto& c) { c.erase(w2 + "scale"); }, w2 + "scale is missing (U8 [64, 2] expected)"},
      {[&](auto& c) {
         c.add(w2 + "packed", WEFT_U8, {64, 64}, 4096);
       },
       w2 + "packed: expected U8 [64, 32]"},
      {[&](auto& c) { c.erase("language_model.lm_head.weight"); },
       "language_model.lm_head.weight is missing"},
      {[&](auto& c) { c.erase("mm_projector.post_norm.weight"); },
       "mm_projector.post_norm.weight is missing"},
      {[&](auto& c) {
         c.erase(std::string(kK3) + "2.block_sparse_moe.experts.0.w1.weight_packed");
       },
       "2.block_sparse_moe.experts.0.w1.weight_packed (MXFP4, U8) or"},
  };
  Bench bench("ref");
  for (const auto& [change, said] : cases) {
    CAPTURE(said);
    MemoryCheckpoint checkpoint;
    checkpoint.add_shapes(TensorList(k3));
    change(checkpoint);
    TestModel m(bench, setup_of(k3));
    CHECK(m.declare(checkpoint.catalog()) == WEFT_E_CONFIG);
    CAPTURE(m.last_error());
    CHECK(contains(m.last_error(), said));
  }
  // Many problems: the count and the first few.
  MemoryCheckpoint empty;
  TestModel m(bench, setup_of(k3));
  CHECK(m.declare(empty.catalog()) == WEFT_E_CONFIG);
  CHECK(contains(m.last_error(),
                 "tensors of the checkpoint do not fit config.json: "
                 "language_model.model.layers.0.input_layernorm"));
}

TEST_CASE("declare accepts every storage form") {
  Bench bench("ref");
  Json k3 = read_json("tiny_k3").at("config");
  {  // a checkpoint without its tower serves text
    MemoryCheckpoint checkpoint;
    checkpoint.add_shapes(TensorList(k3));
    std::vector<std::string> tower;
    for (const auto& [name, t] : checkpoint.tensors()) {
      if (name.starts_with("vision_tower.") || name.starts_with("mm_projector."))
        tower.push_back(name);
    }
    for (const std::string& name : tower) checkpoint.erase(name);
    TestModel m(bench, setup_of(k3));
    REQUIRE_MESSAGE(m.declare(checkpoint.catalog()) == WEFT_OK, m.last_error());
    CHECK(m.info().accepts_media == 0);
    CHECK(m.info().media_token == -1);
  }
  {  // A_log exact, norms in f32, draft-layer tensors beside the model
    MemoryCheckpoint checkpoint;
    checkpoint.add_shapes(TensorList(k3, 0));
    checkpoint.add("language_model.model.norm.weight", WEFT_F32, {128}, 512);
    checkpoint.add("language_model.model.layers.9.enorm.weight", WEFT_BF16, {128}, 256);
    TestModel m(bench, setup_of(k3));
    CHECK_MESSAGE(m.declare(checkpoint.catalog()) == WEFT_OK, m.last_error());
  }
  {  // tied embeddings need no head
    Json tied = k3;
    tied["text_config"]["tie_word_embeddings"] = true;
    MemoryCheckpoint checkpoint;
    checkpoint.add_shapes(TensorList(k3));
    checkpoint.erase("language_model.lm_head.weight");
    TestModel m(bench, setup_of(tied));
    CHECK_MESSAGE(m.declare(checkpoint.catalog()) == WEFT_OK, m.last_error());
  }
  {  // MXFP4 rows must be whole groups
    Json odd = k3;
    odd["text_config"]["moe_intermediate_size"] = 48;
    MemoryCheckpoint checkpoint;
    checkpoint.add_shapes(TensorList(odd));
    TestModel m(bench, setup_of(odd));
    CHECK(m.declare(checkpoint.catalog()) == WEFT_E_CONFIG);
    CHECK(contains(m.last_error(),
                   "w2.weight_packed: 48 inputs are not a multiple of the MXFP4 group of 32"));
  }
}

TEST_CASE("contents that cannot be right are refused with their place") {
  const Json k3 = read_json("tiny_k3").at("config");
  const std::string scale = std::string(kK3) + "2.block_sparse_moe.experts.3.w1.weight_scale";
  const std::string norm = std::string(kK3) + "4.input_layernorm.weight";
  const std::string a_log = std::string(kK3) + "1.self_attn.A_log";
  const std::string proj = std::string(kK3) + "5.mlp_res_proj.weight";
  using Change = std::function<void(MemoryCheckpoint&)>;
  const std::pair<Change, std::string> cases[] = {
      {[&](auto& c) { c.tensors().at(scale).bytes[2 * 7 + 1] = 255; },
       scale + ": row 7, group 1: scale byte 255"},
      {[&](auto& c) {
         const uint16_t inf = 0x7f80;
         std::memcpy(c.tensors().at(norm).bytes.data() + 2 * 9, &inf, 2);
       },
       norm + ": element 9 is not a finite number"},
      {[&](auto& c) {
         const float nan = std::numeric_limits<float>::quiet_NaN();
         std::memcpy(c.tensors().at(a_log).bytes.data(), &nan, 4);
       },
       a_log + ": element 0 is not a finite number"},
      {[&](auto& c) {
         const float one = 1.0f;
         std::memcpy(c.tensors().at(a_log).bytes.data() + 4 * 5, &one, 4);
       },
       a_log + ": element 5 is 1, but only the first 4"},
      {[&](auto& c) { c.tensors().at(proj).bytes[1] = 0xff, c.tensors().at(proj).bytes[0] = 0xff; },
       proj + ": element 0 is not a finite number"},
  };
  Bench bench("ref");
  for (const auto& [change, said] : cases) {
    CAPTURE(said);
    MemoryCheckpoint checkpoint;
    checkpoint.add_weights(TensorList(k3), 7);
    change(checkpoint);
    TestModel m(bench, setup_of(k3));
    CHECK_FALSE(m.bring_up(checkpoint));
    CAPTURE(m.last_error());
    CHECK(contains(m.last_error(), said));
  }
}

TEST_CASE("calls out of order are refused") {
  const Json k3 = read_json("tiny_k3").at("config");
  Bench bench("ref");
  MemoryCheckpoint checkpoint;
  checkpoint.add_weights(TensorList(k3), 7);
  TestModel m(bench, setup_of(k3));
  weft_err err{};
  err.struct_size = sizeof(err);
  void* dst = nullptr;
  weft_want want{};
  weft_model_info info{};
  weft_batch batch{};
  CHECK(m.table()->info(m.self(), &info) == WEFT_E_STATE);
  CHECK(m.table()->want(m.self(), 0, &want) == WEFT_E_STATE);
  CHECK(m.plan() == WEFT_E_STATE);
  CHECK(contains(m.last_error(), "plan must follow declare"));
  REQUIRE(m.declare(checkpoint.catalog()) == WEFT_OK);
  CHECK(m.declare(checkpoint.catalog()) == WEFT_E_STATE);
  CHECK(m.table()->place(m.self(), 0, &dst, &err) == WEFT_E_STATE);
  REQUIRE(m.plan() == WEFT_OK);
  CHECK(m.step(batch) == WEFT_E_STATE);
  CHECK(m.ready() == WEFT_E_STATE);
  CHECK(contains(m.last_error(), "has not been loaded yet"));
  CHECK(m.table()->placed(m.self(), 0, &err) == WEFT_E_STATE);
  CHECK(m.table()->place(m.self(), 1u << 30, &dst, &err) == WEFT_E_ARG);
  REQUIRE(m.load(checkpoint) == WEFT_OK);
  CHECK(m.table()->placed(m.self(), 0, &err) == WEFT_E_STATE);
  REQUIRE_MESSAGE(m.ready() == WEFT_OK, m.last_error());
  CHECK(m.ready() == WEFT_E_STATE);
}

TEST_CASE("limits are checked") {
  const Json k3 = read_json("tiny_k3").at("config");
  Bench bench("ref");
  MemoryCheckpoint checkpoint;
  checkpoint.add_shapes(TensorList(k3));
  const auto refused = [&](auto change, const char* said) {
    ModelSetup setup = setup_of(k3);
    change(setup);
    TestModel m(bench, setup);
    REQUIRE(m.declare(checkpoint.catalog()) == WEFT_OK);
    CHECK(m.plan() < 0);
    CAPTURE(m.last_error());
    CHECK(contains(m.last_error(), said));
  };
  refused([](ModelSetup& s) { s.max_seqs = 0; }, "limits.max_seqs: expected 1");
  refused([](ModelSetup& s) { s.max_rows = 3; }, "limits.max_rows: expected 24");
  refused([](ModelSetup& s) { s.max_context = 5000; },
          "limits.max_context: expected 1 to 4096, got 5000");
  refused([](ModelSetup& s) { s.page_tokens = 1u << 20; }, "limits.page_tokens");
  refused([](ModelSetup& s) { s.cache_dtype = WEFT_F16; }, "limits.cache_dtype: expected f32");
}

}  // namespace weft_test
