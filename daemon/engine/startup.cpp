#include "engine/startup.h"

#include <algorithm>
#include <cstring>

#include "engine/plan/scheduler_plugin.h"

namespace weft::engine {
namespace {

// Bytes advance much faster than anybody wants to read about it.
constexpr uint64_t kProgressIntervalUs = 100'000;

#ifdef WEFT_SANITIZED
constexpr bool kPoisonUnits = true;
#else
constexpr bool kPoisonUnits = false;
#endif

std::string text_of(const weft_err& err, weft_status status) {
  const std::string_view msg(err.msg, strnlen(err.msg, sizeof(err.msg)));
  return msg.empty() ? fmt::format("status {}", status) : std::string(msg);
}

ErrorCode code_of(weft_status status) {
  switch (status) {
    case WEFT_E_CONFIG:
      return ErrorCode::kInvalid;
    case WEFT_E_UNSUPPORTED:
      return ErrorCode::kUnsupported;
    case WEFT_E_CORRUPT:
      return ErrorCode::kCorrupt;
    case WEFT_E_NOMEM:
      return ErrorCode::kUnavailable;
    case WEFT_E_IO:
      return ErrorCode::kIo;
    default:
      return ErrorCode::kInternal;
  }
}

struct Limits {
  uint32_t max_sequences = 0, max_batch_tokens = 0, max_context = 0, max_waiting = 0;
  bool deterministic = false;
};

Result<Limits> limits_of(const wire::Configure& c, const weft_model_info& info) {
  const auto or_default = [](uint32_t value, uint32_t dflt) { return value == 0 ? dflt : value; };
  Limits out;
  out.max_batch_tokens = or_default(c.max_batch_tokens(), kDefaultMaxBatchTokens);
  out.max_sequences = or_default(c.max_sequences(), kDefaultMaxSequences);
  out.max_context = or_default(c.max_context(), info.max_context);
  out.deterministic = c.deterministic();
  out.max_waiting = or_default(c.max_waiting(), kDefaultMaxWaiting);
  if (out.max_sequences > kSequencesMax || out.max_batch_tokens > kBatchTokensMax) {
    return make_error(ErrorCode::kInvalid,
                      "max_sequences and max_batch_tokens may be at most {} and {}, got {} and {}",
                      kSequencesMax, kBatchTokensMax, out.max_sequences, out.max_batch_tokens);
  }
  if (out.max_context > info.max_context) {
    return make_error(ErrorCode::kInvalid,
                      "max_context is {}, but the model was made for at most {} tokens: lower it",
                      out.max_context, info.max_context);
  }
  if (info.vocab == 0 || info.hidden == 0 || out.max_context < 2) {
    return make_error(ErrorCode::kInvalid,
                      "a model with vocabulary {}, width {} and context {} is unusable", info.vocab,
                      info.hidden, out.max_context);
  }
  // Every running sequence decodes in every step, so no more may run than a step has rows.
  out.max_sequences = std::min(out.max_sequences, out.max_batch_tokens);
  return out;
}

Result<weft_mem_plan> plan_memory(const StepModel& model, const Limits& limits) {
  weft_limits l = {};
  l.struct_size = sizeof(l);
  l.max_rows = limits.max_batch_tokens;
  l.max_seqs = limits.max_sequences;
  l.max_context = limits.max_context;
  // No step asks for more logits than it has rows, however many the scheduler would allow.
  l.max_logit_rows = std::min(limits.max_sequences + kPromptLogitRows, limits.max_batch_tokens);
  l.page_tokens = kPageTokens;
  weft_mem_plan plan = {};
  plan.struct_size = sizeof(plan);
  weft_err err = {};
  err.struct_size = sizeof(err);
  const weft_status status = model.table->plan(model.self, &l, &plan, &err);
  if (status != WEFT_OK) {
    return make_error(code_of(status), "the model refused its memory plan: {}",
                      text_of(err, status));
  }
  return plan;
}

class ProgressReporter {
 public:
  explicit ProgressReporter(const StartupHooks& hooks) : hooks_(hooks) {}
  void report(const char* phase, uint64_t done, uint64_t total) {
    const uint64_t now = hooks_.now_us();
    if (phase == phase_ && done < total && now < due_us_) return;
    phase_ = phase;
    due_us_ = now + kProgressIntervalUs;
    wire::Envelope e;
    wire::LoadProgress* p = e.mutable_load_progress();
    p->set_phase(phase);
    p->set_bytes_done(done);
    p->set_bytes_total(total);
    hooks_.emit(e);
  }

 private:
  const StartupHooks& hooks_;
  const char* phase_ = nullptr;  // literals: compared by address
  uint64_t due_us_ = 0;
};

EngineOptions engine_options(const wire::Configure& configure, const MemoryPlan& memory,
                             const StartupHooks& hooks) {
  const CacheSizes& sizes = memory.sizes;
  EngineOptions options;
  options.compose.max_sequences = sizes.max_sequences;
  options.compose.max_batch_tokens = memory.max_batch_tokens;
  options.compose.max_logit_rows = sizes.max_sequences + kPromptLogitRows;
  options.compose.prefill_chunk = configure.scheduler().prefill_chunk();
  options.compose.itl_target_us = configure.scheduler().itl_target_us();
  options.compose.seed = configure.scheduler().seed();
  options.max_waiting = memory.max_waiting;
  options.max_waiting_bytes = kMaxWaitingBytes;
  options.keep_prefixes = !configure.cache().prefix_off();
  options.host.bytes = configure.cache().host_bytes();
  options.max_context = sizes.max_context;
  options.deterministic = memory.deterministic;
  options.now_us = hooks.now_us;
  return options;
}

Status open_disk_tier(const wire::CacheSettings& settings, std::unique_ptr<cache::DiskDir>* dir,
                      cache::HostTierOptions* options) {
  if (settings.disk_dir().empty() || settings.prefix_off()) return {};
  if (settings.host_bytes() == 0 || settings.disk_bytes() == 0) {
    return Error(ErrorCode::kInvalid,
                 "a disk tier lies below the tier in host memory: give sizes for both (host_memory "
                 "and disk_size)");
  }
  WEFT_ASSIGN(*dir, cache::DiskDir::make(settings.disk_dir()));
  options->disk_dir = (*dir)->path();
  options->disk_bytes = settings.disk_bytes();
  return {};
}

void describe(const RunningModel& m, const CacheSizes& sizes, const weft_mem_plan& plan,
              const weft_model_info& info, wire::Ready* ready) {
  ready->set_vocab_size(info.vocab);
  ready->set_max_context(sizes.max_context);
  ready->set_max_sequences(sizes.max_sequences);
  ready->set_weight_bytes(plan.weight_bytes);
  ready->set_accepts_images(info.accepts_media != 0);
  for (const Caches::Group& group : m.caches->groups()) {
    wire::CacheGroup* g = ready->add_groups();
    g->set_name(group.name);
    g->set_kind(group.rows ? "rows" : "state");
    g->set_units_total(group.total());
    g->set_unit_bytes(group.unit_bytes);
    g->set_tokens_per_unit(group.rows ? group.unit_tokens : 0);
  }
}

}  // namespace

Result<MemoryPlan> plan_model(const wire::Configure& configure, const StepModel& model) {
  MemoryPlan out;
  WEFT_ASSIGN(const Limits limits, limits_of(configure, model.info));
  out.max_batch_tokens = limits.max_batch_tokens;
  out.max_waiting = limits.max_waiting;
  out.deterministic = limits.deterministic;
  WEFT_ASSIGN(out.plan, plan_memory(model, limits));
  out.cache_budget = configure.memory_bytes() != 0
                         ? configure.memory_bytes()
                         : default_cache_budget(out.plan.weight_bytes + out.plan.workspace_bytes);
  CacheWishes wishes;
  wishes.max_sequences = limits.max_sequences;
  wishes.max_context = limits.max_context;
  wishes.keep_prefixes = !configure.cache().prefix_off();
  wishes.snapshots = configure.cache().snapshots();
  WEFT_ASSIGN(out.sizes, size_caches(out.plan, out.cache_budget, wishes));
  if (out.sizes.max_context < 2) {
    return make_error(
        ErrorCode::kInvalid,
        "{} bytes of cache hold {} token: not enough for a prompt and an answer; give "
        "the worker more memory",
        out.cache_budget, out.sizes.max_context);
  }
  return out;
}

Result<RunningModel> start_model(const wire::Configure& configure, ModelSource& source,
                                 const StartupHooks& hooks) {
  const uint64_t begin = hooks.now_us();
  ProgressReporter progress(hooks);
  progress.report("open", 0, 0);
  RunningModel out;
  WEFT_ASSIGN(out.session, source.open(configure));
  const StepModel model = out.session->model();
  WEFT_ASSIGN(const MemoryPlan memory, plan_model(configure, model));
  const weft_mem_plan& plan = memory.plan;
  const CacheSizes& sizes = memory.sizes;
  WEFT_ASSIGN(out.caches, Caches::make(plan, sizes, kPoisonUnits));
  WEFT_TRY(out.session->load_weights(
      [&](uint64_t done, uint64_t total) { progress.report("weights", done, total); },
      *hooks.cancel));
  progress.report("warm-up", 0, 0);
  weft_err err = {};
  err.struct_size = sizeof(err);
  const weft_status status =
      model.table->ready(model.self, out.caches->arenas().data(), plan.n_groups, &err);
  if (status != WEFT_OK) {
    return make_error(code_of(status), "the model did not become ready: {}", text_of(err, status));
  }
  EngineOptions options = engine_options(configure, memory, hooks);
  options.model_identity = out.session->identity();
  WEFT_TRY(open_disk_tier(configure.cache(), &out.disk, &options.host));
  out.engine = std::make_unique<Engine>(model, out.caches.get(), std::move(options), hooks.emit,
                                        make_planner(configure, out.session->scheduler()));
  WEFT_TRY(out.engine->warm_up());
  describe(out, sizes, plan, model.info, &out.ready);
  out.session->describe(&out.ready);
  out.ready.set_load_seconds(static_cast<double>(hooks.now_us() - begin) * 1e-6);
  return out;
}

bool is_permanent(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorrupt:
    case ErrorCode::kPermission:
      return true;
    default:
      return false;
  }
}

}  // namespace weft::engine
