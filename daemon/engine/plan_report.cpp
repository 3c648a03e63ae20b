#include "engine/plan_report.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/startup.h"

namespace weft::engine {
namespace {

using Json = nlohmann::ordered_json;

bool has(std::string_view text, std::string_view piece) {
  return text.find(piece) != std::string_view::npos;
}

// "...layers.7." of a tensor of layer 7; empty outside layers.
std::string_view layer_stem(std::string_view name) {
  const size_t at = name.find(".layers.");
  if (at == std::string_view::npos) return {};
  const size_t end = name.find('.', at + 8);
  return end == std::string_view::npos ? std::string_view() : name.substr(0, end + 1);
}

struct Part {
  std::string_view name;
  uint64_t tensors = 0, bytes = 0;
};

// The tensors that the model wants, summed by part.
Result<std::vector<Part>> parts_of(const StepModel& model, const weft_catalog& catalog) {
  std::vector<Part> parts;
  for (uint64_t i = 0;; ++i) {
    weft_want want = {};
    want.struct_size = sizeof(want);
    const weft_status status = model.table->want(model.self, i, &want);
    if (status == WEFT_END) return parts;
    if (status != WEFT_OK) {
      return make_error(ErrorCode::kInternal, "the model does not name its tensor {} (status {})",
                        i, status);
    }
    const std::string_view name(want.name.data, want.name.len);
    const std::string decay = std::string(layer_stem(name)) + "self_attn.A_log";
    const bool delta = catalog.find(&catalog, weft_str{decay.data(), decay.size()}) != nullptr;
    const std::string_view part = part_of_tensor(name, delta);
    auto it =
        std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.name == part; });
    if (it == parts.end()) it = parts.insert(parts.end(), Part{part});
    ++it->tensors;
    it->bytes += want.bytes;
  }
}

uint64_t catalog_bytes(const weft_catalog& catalog) {
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < catalog.n; ++i) bytes += catalog.at(&catalog, i)->bytes;
  return bytes;
}

Json caches_json(const MemoryPlan& memory, Json* out) {
  Json groups = Json::array();
  double per_token = 0;
  uint64_t per_sequence = 0, tokens = 0;
  for (uint32_t i = 0; i < memory.plan.n_groups; ++i) {
    const weft_cache_group& g = memory.plan.groups[i];
    const bool rows = g.kind == WEFT_CACHE_ROWS;
    groups.push_back({{"name", g.name},
                      {"kind", rows ? "rows" : "state"},
                      {"unit_bytes", g.unit_bytes},
                      {"tokens_per_unit", rows ? g.unit_tokens : 0},
                      {"units", memory.sizes.units[i]}});
    if (rows) {
      per_token += static_cast<double>(g.unit_bytes) / g.unit_tokens;
      tokens = uint64_t{memory.sizes.units[i]} * g.unit_tokens;
    } else {
      per_sequence += g.unit_bytes;
    }
  }
  (*out)["cache_bytes_per_token"] = per_token;
  (*out)["state_bytes_per_sequence"] = per_sequence;
  (*out)["cache_tokens"] = tokens;
  return groups;
}

Status read_number(std::string_view key, std::string_view text, uint64_t most, uint64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error == std::errc() && end == text.data() + text.size() && *out <= most) return {};
  return make_error(ErrorCode::kInvalid, "{}={}: expected a number from 0 to {}", key, text, most);
}

}  // namespace

std::string_view part_of_tensor(std::string_view name, bool delta) {
  if (name.rfind("vision_tower.", 0) == 0 || name.rfind("mm_projector.", 0) == 0) return "vision";
  if (has(name, "embed_tokens.")) return "embedding";
  if (has(name, "lm_head.")) return "head";
  if (has(name, ".self_attn.")) return delta ? "delta attention" : "latent attention";
  if (has(name, ".shared_experts.")) return "shared experts";
  if (has(name, ".block_sparse_moe.experts.")) return "routed experts";
  if (has(name, ".block_sparse_moe.")) return "router and latent projections";
  if (has(name, ".mlp.")) return "dense layers";
  return "norms and residual mixing";
}

Status read_plan_setting(std::string_view text, wire::Configure* configure) {
  const size_t at = text.find('=');
  const std::string_view key = text.substr(0, at);
  const std::string_view value = at == std::string_view::npos ? "" : text.substr(at + 1);
  constexpr uint64_t kAny32 = std::numeric_limits<uint32_t>::max();
  uint64_t number = 0;
  if (key == "model") {
    configure->set_model_dir(std::string(value));
  } else if (key == "plugin_dir") {
    configure->set_plugin_dir(std::string(value));
  } else if (key == "isa_max") {
    configure->set_isa_max(std::string(value));
  } else if (key == "trust_user_plugins") {
    configure->set_allow_untrusted_plugins(value == "true");
  } else if (key == "memory") {
    WEFT_TRY(read_number(key, value, uint64_t{1} << 50, &number));
    configure->set_memory_bytes(number);
  } else if (key == "max_sequences") {
    WEFT_TRY(read_number(key, value, kAny32, &number));
    configure->set_max_sequences(static_cast<uint32_t>(number));
  } else if (key == "max_batch_tokens") {
    WEFT_TRY(read_number(key, value, kAny32, &number));
    configure->set_max_batch_tokens(static_cast<uint32_t>(number));
  } else if (key == "max_context") {
    WEFT_TRY(read_number(key, value, kAny32, &number));
    configure->set_max_context(static_cast<uint32_t>(number));
  } else {
    return make_error(ErrorCode::kInvalid,
                      "\"{}\": expected model, plugin_dir, isa_max, trust_user_plugins, memory, "
                      "max_sequences, max_batch_tokens or max_context",
                      text);
  }
  return {};
}

Result<std::string> plan_report(const wire::Configure& configure, ModelSource& source) {
  WEFT_ASSIGN(const std::unique_ptr<ModelSession> session, source.open(configure));
  const StepModel model = session->model();
  const weft_catalog* catalog = session->catalog();
  if (catalog == nullptr) return make_error(ErrorCode::kUnsupported, "there is no checkpoint");
  WEFT_ASSIGN(const MemoryPlan memory, plan_model(configure, model));
  WEFT_ASSIGN(const std::vector<Part> parts, parts_of(model, *catalog));
  Json list = Json::array();
  uint64_t used = 0;
  for (const Part& part : parts) {
    list.push_back({{"name", part.name}, {"tensors", part.tensors}, {"bytes", part.bytes}});
    used += part.bytes;
  }
  const weft_mem_plan& plan = memory.plan;
  Json out = {{"model", configure.model_dir()},
              {"layers", model.info.layers},
              {"hidden", model.info.hidden},
              {"vocabulary", model.info.vocab},
              {"parameters", model.info.parameters},
              {"parts", list},
              {"checkpoint_bytes", used},
              {"unused_bytes", catalog_bytes(*catalog) - used},
              {"weight_bytes", plan.weight_bytes},
              {"workspace_bytes", plan.workspace_bytes},
              {"max_batch_tokens", memory.max_batch_tokens}};
  out["cache_groups"] = caches_json(memory, &out);
  out["cache_budget_bytes"] = memory.cache_budget;
  out["cache_bytes"] = memory.sizes.bytes;
  out["max_sequences"] = memory.sizes.max_sequences;
  out["max_context"] = memory.sizes.max_context;
  out["total_bytes"] = plan.weight_bytes + plan.workspace_bytes + memory.sizes.bytes;
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace weft::engine
