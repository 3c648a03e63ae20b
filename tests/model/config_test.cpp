// config.json: what is read, and what every mistake is told.
#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "kimi_config.h"
#include "model_fixture.h"
#include "options.h"

namespace weft_test {
namespace {

using weft_kimi::Config;
using weft_kimi::Fault;
using weft_kimi::parse_config;

std::string micro_text() {
  std::ifstream in(WEFT_SOURCE_DIR "/models/micro-k3/config.json");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Mistake {
  const char* base;     // "k3" or "linear"
  const char* pointer;  // where in the config
  const char* value;    // JSON, or "" to remove
  weft_status code;
  const char* said;  // part of the message
};

const Mistake kMistakes[] = {
    {"k3", "/architectures", "[\"LlamaForCausalLM\"]", WEFT_OK,
     ""},  // model_type still says kimi_k3
    {"k3", "/text_config", "7", WEFT_E_CONFIG, "text_config: expected an object, got 7"},
    {"k3", "/text_config/vocab_size", "", WEFT_E_CONFIG,
     "text_config.vocab_size: missing; an integer from 1"},
    {"k3", "/text_config/vocab_size", "0", WEFT_E_CONFIG,
     "expected an integer from 1 to 16777216, got 0"},
    {"k3", "/text_config/vocab_size", "1.5", WEFT_E_CONFIG, "got 1.5"},
    {"k3", "/text_config/vocab_size", "18446744073709551615", WEFT_E_CONFIG, "vocab_size"},
    {"k3", "/text_config/hidden_size", "\"128\"", WEFT_E_CONFIG,
     "text_config.hidden_size: expected an integer"},
    {"k3", "/text_config/hidden_size", "null", WEFT_E_CONFIG, "text_config.hidden_size: missing"},
    {"k3", "/text_config/num_hidden_layers", "5000", WEFT_E_CONFIG, "from 1 to 4096, got 5000"},
    {"k3", "/text_config/num_hidden_layers", "8", WEFT_E_CONFIG,
     "expected layer numbers from 1 to 8, got 9"},
    {"k3", "/text_config/num_hidden_layers", "10", WEFT_E_CONFIG,
     "layer 10 is in neither kda_layers nor full_attn_layers"},
    {"k3", "/text_config/rms_norm_eps", "-1", WEFT_E_CONFIG,
     "rms_norm_eps: expected a number from 0 to 1, got -1"},
    {"k3", "/text_config/hidden_act", "\"gelu\"", WEFT_E_UNSUPPORTED,
     "expected \"silu\" or \"situ\", got \"gelu\""},
    {"k3", "/text_config/activation_situ_beta", "", WEFT_E_CONFIG, "activation_situ_beta: missing"},
    {"k3", "/text_config/num_key_value_heads", "2", WEFT_E_UNSUPPORTED,
     "must equal num_attention_heads (4), got 2"},
    {"k3", "/text_config/mla_use_nope", "false", WEFT_E_UNSUPPORTED, "mla_use_nope: must be true"},
    {"k3", "/text_config/mla_use_nope", "", WEFT_E_UNSUPPORTED, "mla_use_nope: must be true"},
    {"k3", "/text_config/mla_use_nope", "1", WEFT_E_CONFIG,
     "mla_use_nope: expected true or false, got 1"},
    {"k3", "/text_config/kv_lora_rank", "", WEFT_E_CONFIG, "kv_lora_rank: missing"},
    {"k3", "/text_config/num_experts_per_token", "9", WEFT_E_CONFIG,
     "expected at most num_experts (8), got 9"},
    {"k3", "/text_config/num_experts_per_token", "", WEFT_E_CONFIG,
     "num_experts_per_token: missing; an integer"},
    {"k3", "/text_config/num_experts", "70000", WEFT_E_CONFIG,
     "num_experts: expected an integer from 0 to 65535"},
    {"k3", "/text_config/moe_router_activation_func", "\"relu\"", WEFT_E_UNSUPPORTED,
     "got \"relu\""},
    {"k3", "/text_config/topk_method", "\"greedy\"", WEFT_E_UNSUPPORTED,
     "only \"noaux_tc\" is supported"},
    {"k3", "/text_config/num_expert_group", "3", WEFT_E_CONFIG, "3 groups do not divide 8 experts"},
    {"k3", "/text_config/num_expert_group", "4", WEFT_E_CONFIG,
     "3 experts per token do not fit into 1 groups of 2"},
    {"k3", "/text_config/quantization_config/format", "\"nvfp4\"", WEFT_E_UNSUPPORTED,
     "text_config.quantization_config.format: only \"mxfp4-pack-quantized\" is supported, got "
     "\"nvfp4\""},
    {"k3", "/text_config/linear_attn_config", "", WEFT_E_CONFIG,
     "text_config.linear_attn_config: missing"},
    {"k3", "/text_config/linear_attn_config/kda_layers", "", WEFT_E_CONFIG,
     "the pattern is never guessed"},
    {"k3", "/text_config/linear_attn_config/full_attn_layers", "null", WEFT_E_CONFIG,
     "the pattern is never guessed"},
    {"k3", "/text_config/linear_attn_config/kda_layers", "[1,2,3,4,5,6,7]", WEFT_E_CONFIG,
     "full_attn_layers: layer 4 is listed twice"},
    {"k3", "/text_config/linear_attn_config/kda_layers", "[0,1,2,3,5,6,7]", WEFT_E_CONFIG,
     "expected layer numbers from 1 to 9, got 0"},
    {"k3", "/text_config/linear_attn_config/kda_layers", "[1,2,\"x\"]", WEFT_E_CONFIG, "got \"x\""},
    {"k3", "/text_config/linear_attn_config/kda_layers", "3", WEFT_E_CONFIG,
     "expected a list of layer numbers, got 3"},
    {"k3", "/text_config/linear_attn_config/num_heads", "0", WEFT_E_CONFIG,
     "linear_attn_config.num_heads: expected"},
    {"k3", "/text_config/linear_attn_config/short_conv_kernel_size", "17", WEFT_E_CONFIG,
     "from 1 to 16, got 17"},
    {"k3", "/text_config/linear_attn_config/gate_lower_bound", "-6", WEFT_E_CONFIG,
     "from -5 to 0, got -6"},
    {"k3", "/text_config/linear_attn_config/gate_lower_bound", "0", WEFT_E_CONFIG,
     "from -5 to below 0, got 0"},
    {"k3", "/eos_token_id", "[1,2,3,4,5]", WEFT_E_CONFIG,
     "eos_token_id: expected at most 4 ids, got 5"},
    {"k3", "/eos_token_id", "256", WEFT_E_CONFIG,
     "expected token ids below vocab_size (256), got 256"},
    {"k3", "/media_placeholder_token_id", "", WEFT_E_CONFIG, "media_placeholder_token_id: missing"},
    {"k3", "/vision_config/qkv_hidden_size", "50", WEFT_E_CONFIG,
     "50 is not vt_num_attention_heads (2) times"},
    {"k3", "/vision_config/text_hidden_size", "64", WEFT_E_CONFIG,
     "must equal the text model's hidden_size (128)"},
    {"k3", "/vision_config/merge_kernel_size", "[2,3]", WEFT_E_UNSUPPORTED,
     "expected two equal numbers"},
    {"k3", "/vision_config/merge_kernel_size", "[[[1]],[[1]]]", WEFT_E_UNSUPPORTED,
     "got a nested array"},
    {"k3", "/vision_config/attn_bias", "true", WEFT_E_UNSUPPORTED,
     "vision_config.attn_bias: only false"},
    {"k3", "/vision_config/norm_type", "\"layernorm\"", WEFT_E_UNSUPPORTED,
     "vision_config.norm_type: only \"rmsnorm\""},
    {"k3", "/vision_config/patch_size", "", WEFT_E_CONFIG, "vision_config.patch_size: missing"},
    {"k3", "/anything_else", "{\"a\":[{}]}", WEFT_OK, ""},
    {"linear", "/model_type", "\"llama\"", WEFT_OK, ""},
    {"linear", "/intermediate_size", "", WEFT_E_CONFIG, "config.json: intermediate_size: missing"},
    {"linear", "/routed_expert_hidden_size", "0", WEFT_E_CONFIG,
     "routed_expert_hidden_size: expected an integer"},
    {"linear", "/attn_res_block_size", "0", WEFT_E_CONFIG,
     "attn_res_block_size: expected an integer from 1"},
    {"linear", "/model_max_length", "-1", WEFT_E_CONFIG, "model_max_length"},
    {"linear", "/mla_lora_norm_eps", "\"small\"", WEFT_E_CONFIG,
     "mla_lora_norm_eps: expected a number"},
};

}  // namespace

TEST_CASE("every mistake in config.json is named") {
  for (const Mistake& m : kMistakes) {
    CAPTURE(m.pointer);
    CAPTURE(m.value);
    Json config = read_json(std::string("tiny_") + m.base).at("config");
    const Json::json_pointer at(m.pointer);
    if (*m.value == '\0') {
      config.at(at.parent_pointer()).erase(at.back());
    } else {
      config[at] = Json::parse(m.value);
    }
    Config out;
    const Fault fault = parse_config(config.dump(), &out);
    CAPTURE(fault.message);
    CHECK(fault.code == m.code);
    CHECK(fault.message.find(m.said) != std::string::npos);
  }
}

TEST_CASE("text that is no config of this family says what was expected") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"[]", "expected an object, got []"},
      {"{}", "got architectures absent and model_type absent"},
      {"{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"}",
       "expected architectures to name KimiK3ForConditionalGeneration or KimiLinearForCausalLM"},
      {"{\"model_type\":\"kimi_k3\"}", "vocab_size: missing"},
  };
  for (const auto& [text, said] : cases) {
    CAPTURE(text);
    Config out;
    const Fault fault = parse_config(text, &out);
    CAPTURE(fault.message);
    CHECK_FALSE(fault.ok());
    CHECK(fault.message.find(said) != std::string::npos);
  }
}

TEST_CASE("deeply nested values neither pass nor overflow the stack") {
  std::string deep = "{\"model_type\":\"kimi_linear\",\"hidden_act\":";
  deep.append(200000, '[').append(200000, ']').append("}");
  Config out;
  CHECK_FALSE(parse_config(deep, &out).ok());
}

TEST_CASE("the misspelling of the other family is pointed out") {
  Json config = read_json("tiny_linear").at("config");
  config.erase("num_experts_per_token");
  config["num_experts_per_tok"] = 2;
  Config out;
  CHECK(parse_config(config.dump(), &out).message.find("spells it num_experts_per_token") !=
        std::string::npos);
}

TEST_CASE("switches of the released layouts") {
  Config k3;
  REQUIRE(parse_config(micro_text(), &k3).ok());
  CHECK(k3.wrapped);
  CHECK(k3.situ);
  CHECK(k3.situ_up_beta == 25.0f);
  CHECK(k3.full_rank_gate);
  CHECK(k3.bounded_decay);
  CHECK(k3.decay_bound == -5.0f);
  CHECK(k3.latent == 64);
  CHECK(k3.latent_norm);
  CHECK(k3.res_block == 4);
  CHECK(k3.snapshots() == 3);
  CHECK(k3.kda_layers() == 6);
  CHECK_FALSE(k3.is_kda[8]);
  CHECK_FALSE(k3.is_moe[0]);
  CHECK(k3.is_moe[1]);
  CHECK(k3.max_context == 1048576);
  CHECK(k3.eos[0] == 1794);
  CHECK(k3.eos[1] == -1);
  CHECK(k3.media_token == 1813);
  CHECK(k3.vision->head_dim() == 32);
  CHECK(k3.lora_eps == 1e-6f);

  Json config = read_json("tiny_linear").at("config");
  config["eos_token_id"] = {7, 9};
  config["mla_lora_norm_eps"] = 1e-5;
  Config linear;
  REQUIRE(parse_config(config.dump(), &linear).ok());
  CHECK_FALSE(linear.wrapped);
  CHECK_FALSE(linear.situ);
  CHECK(linear.q_lora == 0);
  CHECK_FALSE(linear.mla_gate);
  CHECK_FALSE(linear.full_rank_gate);
  CHECK_FALSE(linear.bounded_decay);
  CHECK(linear.latent == 0);
  CHECK(linear.res_block == 0);
  CHECK_FALSE(linear.vision.has_value());
  CHECK(linear.max_context == 4096);
  CHECK(linear.eos[1] == 9);
  CHECK(linear.lora_eps == 1e-5f);
  CHECK(linear.route_scale == doctest::Approx(2.446));
}

TEST_CASE("probe accepts the family and says why not") {
  Bench bench("ref");
  const auto* table = bench.model_plugin().table<weft_model_v1>(WEFT_MODEL_ID);
  weft_err err{};
  err.struct_size = sizeof(err);
  const auto probe = [&](const std::string& text) {
    return table->probe(bench.model_plugin().handle(), {text.data(), text.size()}, &err);
  };
  CHECK(probe(micro_text()) > 0);
  CHECK(probe(read_json("tiny_linear").at("config").dump()) > 0);
  CHECK(probe("{\"architectures\":[\"Qwen\"]}") == 0);
  CHECK(std::string(err.msg).find("Qwen") != std::string::npos);
}

TEST_CASE("settings are checked") {
  Bench bench("ref");
  const std::string config = read_json("tiny_k3").at("config").dump();
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"cache_dtype", "f16", "cache_dtype: expected \"auto\", \"f32\" or \"bf16\", got \"f16\""},
      {"kda_chunk", "129", "kda_chunk: expected a number from 0 to 128, got 129"},
      {"prefill_min_rows", "0", "prefill_min_rows: expected a number from 1"},
      {"mla_lora_norm_eps", "2", "mla_lora_norm_eps: expected a number from 0 to 1"},
      {"vision_norm_eps", "-1", "vision_norm_eps"},
      {"max_media_patches", "0", "max_media_patches"},
      {"expert_activations", "fp8", "expert_activations: expected \"bf16\" or \"int8\", got \"fp8\""},
      {"kda_chunks", "1", "kda_chunks"},  // refused by the host's key table
      {"config", "{}", "config.json"},
  };
  for (const auto& [key, value, said] : cases) {
    CAPTURE(key);
    weft::plugin::ParamList settings = {{key, value}};
    if (std::string(key) != "config") settings.emplace_back("config", config);
    const auto made = weft::plugin::Instance::create(bench.model_plugin(), WEFT_MODEL_ID, settings);
    REQUIRE_FALSE(made.ok());
    CAPTURE(made.error().message);
    CHECK(made.error().message.find(said) != std::string::npos);
  }
}

}  // namespace weft_test
