// scheduler_continuous: "weft.scheduler/1" for many users at once. This file is the C boundary:
// settings, life, and calls of the Planner; no exception leaves it.
#include "planner.h"
#include "weft.hpp"
#include "weft/scheduler.h"

struct weft_plugin {
  const weft_host* host;
};
struct weft_instance {
  scheduler_continuous::Planner planner;
};

namespace scheduler_continuous {
namespace {

constexpr weft_key kKeys[] = {
    {"prefill_chunk", WEFT_KEY_INT, 0, "0",
     "Most prompt tokens of one sequence in a step; 0 leaves it to the budget of the step."},
    {"min_prefill", WEFT_KEY_INT, 0, "16",
     "Prompt tokens of a step that the wished step time cannot take away, 1 to 65536."},
    {"short_prompt", WEFT_KEY_INT, 0, "256",
     "A prompt with at most so many tokens to compute may overtake long ones that have begun."},
    {"quantum", WEFT_KEY_INT, 0, "2048",
     "Tokens by which a tenant whose prompt has begun may be ahead of the others."},
    {"growth_tokens", WEFT_KEY_INT, 0, "128",
     "Output for which an admission leaves room in every running sequence."},
    {"tenant_reserve", WEFT_KEY_INT, 0, "12",
     "Percent of places and cache rows that tenants above their share leave to others, 0 to 90."},
    {"max_wait", WEFT_KEY_DURATION, 0, "30s",
     "A sequence that has waited for so long moves up one band of priority; 0s = never."},
    {"max_queue", WEFT_KEY_DURATION, 0, "0s",
     "Requests that would wait longer are told to come back later; 0s = all may queue."},
    {"swap_gbps", WEFT_KEY_REAL, 0, "10",
     "Speed of copies to host memory in GB/s, to choose between a copy and computing again."},
    {"drop_late", WEFT_KEY_BOOL, 0, "true",
     "Drops waiting requests whose deadline for the first token has passed."},
    {nullptr, 0, 0, nullptr, nullptr},
};

Options read_options(const weft::Params& settings) {
  constexpr int64_t kTokensMax = 1 << 30;
  constexpr int64_t kForever = INT64_MAX;
  Options o;
  const auto number = [&](const char* name, int64_t low, int64_t high, uint32_t fallback) {
    return static_cast<uint32_t>(settings.integer_in(name, low, high, fallback));
  };
  o.prefill_chunk = number("prefill_chunk", 0, kTokensMax, o.prefill_chunk);
  o.min_prefill = number("min_prefill", 1, 65536, o.min_prefill);
  o.short_prompt = number("short_prompt", 0, kTokensMax, o.short_prompt);
  o.quantum = number("quantum", 0, kTokensMax, o.quantum);
  o.growth_tokens = number("growth_tokens", 0, kTokensMax, o.growth_tokens);
  o.tenant_reserve = number("tenant_reserve", 0, 90, o.tenant_reserve);
  o.max_wait_ns = static_cast<uint64_t>(
      settings.integer_in("max_wait", 0, kForever, static_cast<int64_t>(o.max_wait_ns)));
  o.max_queue_ns = static_cast<uint64_t>(
      settings.integer_in("max_queue", 0, kForever, static_cast<int64_t>(o.max_queue_ns)));
  o.swap_gbps = settings.real("swap_gbps", o.swap_gbps);
  if (!(o.swap_gbps > 0 && o.swap_gbps < 1e6))
    weft::fail(WEFT_E_CONFIG, "setting \"swap_gbps\": expected above 0 and below 1000000, came %g",
               o.swap_gbps);
  o.drop_late = settings.flag("drop_late", o.drop_late);
  return o;
}

weft_status create(weft_plugin*, const weft_param* params, uint32_t n, weft_instance** out,
                   weft_err* err) {
  return weft::fence(
      err, [&] { *out = new weft_instance{Planner(read_options(weft::Params(params, n)))}; });
}
weft_status start(weft_instance*, weft_err*) { return WEFT_OK; }
weft_status drain(weft_instance*, uint64_t) { return WEFT_OK; }
void stop(weft_instance*) {}
void destroy(weft_instance* self) { delete self; }

// The planner indexes by these counts: a view that it cannot hold is the host's mistake.
bool readable(const weft_sched_view* view) {
  return WEFT_HAS(view, weft_sched_view, costs) && view->n_groups <= WEFT_CACHE_GROUPS_MAX;
}

weft_status admit(weft_instance* self, const weft_sched_view* view, const weft_seq* seq,
                  uint64_t* retry_after_ns, weft_err* err) {
  return weft::fence(err, [&]() -> weft_status {
    if (!readable(view))
      weft::fail(WEFT_E_ARG, "the view lacks fields or has too many cache groups; update the host");
    *retry_after_ns = self->planner.retry_after_ns(*view, *seq);
    return *retry_after_ns == 0 ? WEFT_OK : WEFT_AGAIN;
  });
}

weft_status plan(weft_instance* self, const weft_sched_view* view, weft_sched_plan* out) {
  return weft::fence(nullptr, [&]() -> weft_status {
    if (!readable(view) || !WEFT_HAS(out, weft_sched_plan, drop)) return WEFT_E_ARG;
    self->planner.plan(*view, out);
    return WEFT_OK;
  });
}

// Nothing is remembered about a sequence.
void finished(weft_instance*, uint64_t, weft_status, uint64_t) {}

constexpr weft_scheduler_v1 kTable = {
    {sizeof(weft_scheduler_v1), 1, WEFT_SCHEDULER_CAP_DEADLINES | WEFT_SCHEDULER_CAP_TENANTS},
    admit,
    plan,
    finished,
};
constexpr weft_life kLife = {sizeof(weft_life), 0, create, start, drain, stop, destroy};
constexpr weft_interface kInterfaces[] = {
    {WEFT_SCHEDULER_ID, &kTable.head, &kLife, kKeys},
    {nullptr, nullptr, nullptr, nullptr},
};

weft_status open_plugin(const weft_host* host, weft_plugin** out, weft_err* err) {
  return weft::fence(err, [&]() -> weft_status {
    *out = new weft_plugin{host};
    return WEFT_OK;
  });
}
void close_plugin(weft_plugin* plugin) { delete plugin; }

constexpr weft_desc kDesc = {
    sizeof(weft_desc), WEFT_MAGIC,     WEFT_ABI_MAJOR, WEFT_ABI_MINOR, "scheduler_continuous",
    WEFT_VERSION,      "weft project", "Apache-2.0",   kInterfaces,    open_plugin,
    close_plugin,
};

}  // namespace
}  // namespace scheduler_continuous

WEFT_PLUGIN(scheduler_continuous, WEFT_VERSION, &scheduler_continuous::kDesc);
