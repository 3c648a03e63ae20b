// What a model would need, asked of the real plugins and micro-k3: the parts are the checkpoint,
// and memory holds each of them once.
#include "engine/plan_report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/plugin_models.h"

namespace {

using namespace weft::engine;
using Json = nlohmann::json;

weft::Result<std::string> report_of(const std::vector<std::string>& settings) {
  weft::wire::Configure configure;
  const std::string model = std::string("model=") + WEFT_SOURCE_DIR + "/models/micro-k3";
  const std::string plugins = std::string("plugin_dir=") + WEFT_PLUGIN_DIR;
  for (const std::string& text : {model, plugins, std::string("trust_user_plugins=true")}) {
    REQUIRE(read_plan_setting(text, &configure).ok());
  }
  for (const std::string& text : settings) REQUIRE(read_plan_setting(text, &configure).ok());
  PluginModelSource source;
  return plan_report(configure, source);
}

TEST_CASE("the plan of micro-k3 adds up") {
  const auto text = report_of({"memory=67108864", "max_sequences=4", "max_context=4096"});
  REQUIRE_MESSAGE(text.ok(), (text.ok() ? std::string() : text.error().message));
  const Json report = Json::parse(*text);
  uint64_t sum = 0;
  std::string names;
  for (const Json& part : report["parts"]) {
    sum += part["bytes"].get<uint64_t>();
    names += part["name"].get<std::string>() + ";";
  }
  CHECK(sum == report["checkpoint_bytes"]);
  for (const char* name : {"embedding", "delta attention", "latent attention", "shared experts",
                           "routed experts", "head", "vision", "norms"}) {
    CAPTURE(name);
    CHECK(names.find(name) != std::string::npos);
  }
  // Small vectors double, matrices are padded to blocks; a second copy would show as 100 %.
  CHECK(report["weight_bytes"].get<double>() >= static_cast<double>(sum));
  CHECK(report["weight_bytes"].get<double>() < 1.1 * static_cast<double>(sum));
  CHECK(report["max_sequences"] == 4);
  CHECK(report["max_context"] == 4096);
  CHECK(report["cache_bytes"].get<uint64_t>() <= 67108864);
  CHECK(report["cache_tokens"].get<uint64_t>() >= 4 * 4096);
  CHECK(report["total_bytes"].get<uint64_t>() == report["weight_bytes"].get<uint64_t>() +
                                                     report["workspace_bytes"].get<uint64_t>() +
                                                     report["cache_bytes"].get<uint64_t>());
}

TEST_CASE("plans that cannot be are refused as by a worker") {
  const auto tight = report_of({"memory=1024"});
  REQUIRE_FALSE(tight.ok());
  CHECK(tight.error().message.find("more memory") != std::string::npos);
  CHECK_FALSE(report_of({"max_context=4194304"}).ok());
}

TEST_CASE("settings of a plan") {
  weft::wire::Configure configure;
  for (const char* bad :
       {"sing=1", "memory", "memory=x", "max_context=-1", "max_sequences=4294967296"}) {
    CAPTURE(bad);
    CHECK_FALSE(read_plan_setting(bad, &configure).ok());
  }
  CHECK(read_plan_setting("max_batch_tokens=7", &configure).ok());
  CHECK(configure.max_batch_tokens() == 7);
}

TEST_CASE("parts by tensor name") {
  CHECK(part_of_tensor("model.layers.3.self_attn.o_proj.weight", true) == "delta attention");
  CHECK(part_of_tensor("model.layers.3.self_attn.o_proj.weight", false) == "latent attention");
  CHECK(part_of_tensor("model.layers.3.block_sparse_moe.experts.0.w1.weight", false) ==
        "routed experts");
  CHECK(part_of_tensor("model.layers.3.block_sparse_moe.shared_experts.up_proj.weight", false) ==
        "shared experts");
  CHECK(part_of_tensor("model.layers.0.mlp.up_proj.weight", false) == "dense layers");
  CHECK(part_of_tensor("language_model.lm_head.weight", false) == "head");
  CHECK(part_of_tensor("model.norm.weight", false) == "norms and residual mixing");
}

}  // namespace
