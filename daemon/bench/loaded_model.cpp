#include "bench/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/paths.h"
#include "engine/startup.h"
#include "plugin/status.h"

namespace weft::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

wire::Configure configure_of(const ModelOptions& o) {
  wire::Configure c;
  c.set_model_dir(std::filesystem::absolute(o.model_dir).lexically_normal().string());
  c.set_plugin_dir(o.plugin_dir.empty() ? default_plugin_dir() : o.plugin_dir);
  c.set_threads(o.threads);
  c.set_isa_max(o.isa_max);
  // Whoever measures runs their own build.
  c.set_allow_untrusted_plugins(true);
  if (!o.settings.empty()) {
    wire::PluginChoice* choice = c.add_plugins();
    choice->set_interface(WEFT_MODEL_ID);
    for (const auto& [name, value] : o.settings) {
      wire::Parameter* p = choice->add_params();
      p->set_name(name);
      p->set_value(value);
    }
  }
  return c;
}

}  // namespace

std::string default_plugin_dir() {
  return std::filesystem::path(executable_dir() + "/../lib/weft/plugins")
      .lexically_normal()
      .string();
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::open(const ModelOptions& options) {
  std::unique_ptr<LoadedModel> model(new LoadedModel(options));
  WEFT_TRY(model->bring_up());
  return model;
}

Status LoadedModel::plan_memory() {
  options_.max_context = std::clamp(options_.max_context, 2u, model_.info.max_context);
  options_.max_sequences = std::min(options_.max_sequences, options_.max_batch_tokens);
  weft_limits limits = {};
  limits.struct_size = sizeof(limits);
  limits.max_rows = options_.max_batch_tokens;
  limits.max_seqs = options_.max_sequences;
  limits.max_context = options_.max_context;
  limits.max_logit_rows =
      std::min(options_.max_sequences + engine::kPromptLogitRows, options_.max_batch_tokens);
  limits.page_tokens = engine::kPageTokens;
  plan_.struct_size = sizeof(plan_);
  weft_err err = plugin::make_err();
  const weft_status status = model_.table->plan(model_.self, &limits, &plan_, &err);
  if (status != WEFT_OK) return plugin::plugin_error(status, err, "the model refused its plan");
  return {};
}

Status LoadedModel::bring_up() {
  const Clock::time_point begin = Clock::now();
  engine::PluginModelSource source(options_.use_kernels);
  WEFT_ASSIGN(session_, source.open(configure_of(options_)));
  model_ = session_->model();
  WEFT_TRY(plan_memory());
  // Mapped without being touched: whether a measurement fits is checked when its sequences are
  // made.
  WEFT_ASSIGN(const engine::CacheSizes sizes,
              engine::size_caches(plan_, uint64_t{1} << 46,
                                  {options_.max_sequences, options_.max_context, false, 0}));
  WEFT_ASSIGN(caches_, engine::Caches::make(plan_, sizes, /*poison=*/false));
  const std::atomic<bool> cancel{false};
  WEFT_TRY(session_->load_weights([](uint64_t, uint64_t) {}, cancel));
  weft_err err = plugin::make_err();
  const weft_status status =
      model_.table->ready(model_.self, caches_->arenas().data(), plan_.n_groups, &err);
  if (status != WEFT_OK) {
    return plugin::plugin_error(status, err, "the model did not become ready");
  }
  builder_ = std::make_unique<engine::BatchBuilder>(
      engine::BatchLimits{options_.max_batch_tokens, options_.max_sequences,
                          options_.max_sequences + engine::kPromptLogitRows, options_.max_context,
                          model_.info.vocab, model_.info.hidden,
                          options_.deterministic ? uint32_t{WEFT_BATCH_RECURRENT} : 0},
      *caches_);
  wire::Ready ready;
  session_->describe(&ready);
  kernels_ = ready.kernels();
  load_seconds_ = seconds_since(begin);
  return {};
}

uint64_t LoadedModel::cache_bytes(uint64_t sequences, uint64_t tokens) const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan_.n_groups; ++i) {
    const weft_cache_group& g = plan_.groups[i];
    const uint64_t units =
        g.kind == WEFT_CACHE_ROWS ? (tokens + g.unit_tokens - 1) / g.unit_tokens : 1;
    bytes += units * g.unit_bytes * sequences;
  }
  return bytes;
}

Result<std::unique_ptr<engine::Sequence>> LoadedModel::make_sequence(std::vector<int32_t> tokens,
                                                                     uint32_t extra) {
  const uint64_t length = tokens.size() + uint64_t{extra};
  if (length > options_.max_context) {
    return make_error(ErrorCode::kInvalid,
                      "a sequence of {} tokens: the benchmark was started for at most {} "
                      "(--max-context), the model allows {}",
                      length, options_.max_context, model_.info.max_context);
  }
  const uint64_t need = cache_bytes(1, length);
  // Half of what is left: see default_cache_budget.
  if (need / 2 > engine::default_cache_budget(0)) {
    return make_error(ErrorCode::kUnavailable,
                      "a sequence of {} tokens needs {} MiB of cache, more than this machine has "
                      "left",
                      length, need >> 20);
  }
  engine::Request request;
  request.prompt = std::move(tokens);
  auto sequence =
      std::make_unique<engine::Sequence>(std::move(request), caches_.get(), next_order_++, 0);
  if (!sequence->cache.reserve(static_cast<uint32_t>(length), 0)) {
    return make_error(ErrorCode::kUnavailable,
                      "no cache left for another sequence: at most {} sequences",
                      options_.max_sequences);
  }
  return sequence;
}

Status LoadedModel::step(std::span<const engine::PlannedRun> runs, double* seconds) {
  const Clock::time_point begin = Clock::now();
  const weft_batch& batch = builder_->build(runs);
  weft_err err = plugin::make_err();
  const weft_status status = model_.table->step(model_.self, &batch, &err);
  *seconds = seconds_since(begin);
  if (status != WEFT_OK) return plugin::plugin_error(status, err, "the model failed in a step");
  for (const engine::PlannedRun& run : runs) run.sequence->computed += run.rows;
  return {};
}

}  // namespace weft::bench
