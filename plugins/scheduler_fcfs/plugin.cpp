// scheduler_fcfs: "weft.scheduler/1", first come, first served. This file is the C boundary; no
// exception leaves it.
#include "first_come.h"
#include "weft.hpp"
#include "weft/scheduler.h"

struct weft_plugin {
  const weft_host* host;
};
struct weft_instance {
  scheduler_fcfs::FirstCome policy;
};

namespace scheduler_fcfs {
namespace {

weft_status create(weft_plugin*, const weft_param*, uint32_t, weft_instance** out, weft_err* err) {
  return weft::fence(err, [&] { *out = new weft_instance; });
}
weft_status start(weft_instance*, weft_err*) { return WEFT_OK; }
weft_status drain(weft_instance*, uint64_t) { return WEFT_OK; }
void stop(weft_instance*) {}
void destroy(weft_instance* self) { delete self; }

// Whoever comes may queue.
weft_status admit(weft_instance*, const weft_sched_view*, const weft_seq*, uint64_t* retry_after_ns,
                  weft_err*) {
  *retry_after_ns = 0;
  return WEFT_OK;
}

weft_status plan(weft_instance* self, const weft_sched_view* view, weft_sched_plan* out) {
  return weft::fence(nullptr, [&]() -> weft_status {
    // A view or plan that lacks these fields comes from a host that is too old for this plugin.
    if (!WEFT_HAS(view, weft_sched_view, costs) || !WEFT_HAS(out, weft_sched_plan, drop)) {
      return WEFT_E_ARG;
    }
    if (view->n_groups > WEFT_CACHE_GROUPS_MAX) return WEFT_E_ARG;
    self->policy.plan(*view, out);
    return WEFT_OK;
  });
}

void finished(weft_instance*, uint64_t, weft_status, uint64_t) {}

constexpr weft_scheduler_v1 kTable = {
    {sizeof(weft_scheduler_v1), 1, WEFT_SCHEDULER_CAP_DEADLINES},
    admit,
    plan,
    finished,
};
constexpr weft_life kLife = {sizeof(weft_life), 0, create, start, drain, stop, destroy};
constexpr weft_interface kInterfaces[] = {
    {WEFT_SCHEDULER_ID, &kTable.head, &kLife, nullptr},
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
    sizeof(weft_desc), WEFT_MAGIC,   WEFT_ABI_MAJOR, WEFT_ABI_MINOR, "scheduler_fcfs", WEFT_VERSION,
    "weft project",    "Apache-2.0", kInterfaces,    open_plugin,    close_plugin,
};

}  // namespace
}  // namespace scheduler_fcfs

WEFT_PLUGIN(scheduler_fcfs, WEFT_VERSION, &scheduler_fcfs::kDesc);
