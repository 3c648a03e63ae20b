// Finds, opens and starts the scheduler plugin of a worker, and makes its planner.
//
// The operator names one in Configure.plugins (interface weft.scheduler/1, with its settings);
// "builtin" asks for the host's own policy. When nothing is named, kDefaultScheduler is taken if
// the plugin directory has it, else the built-in one. Engine thread, at startup. The registry and
// host table must outlive the SchedulerPlugin, and that must outlive the planner.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "engine/plan/planner.h"
#include "plugin/host_table.h"
#include "plugin/instance.h"
#include "plugin/params.h"
#include "plugin/registry.h"
#include "wire/weft.pb.h"

namespace weft::engine {

inline constexpr const char* kDefaultScheduler = "scheduler_continuous";
inline constexpr const char* kBuiltInPolicy = "builtin";  // as operators write it

bool is_built_in(const std::string& name);

struct SchedulerChoice {
  std::string name;  // empty = nothing named
  plugin::ParamList params;
};
SchedulerChoice scheduler_choice(const wire::Configure& configure);

class SchedulerPlugin {
 public:
  SchedulerPlugin() = default;  // none: the built-in policy
  // The registry's plugins are loaded. An error when a named plugin is missing or does not start;
  // when the default one does not start, that is logged and the built-in policy serves.
  static Result<SchedulerPlugin> open(const SchedulerChoice& choice, plugin::Registry& registry,
                                      plugin::HostTable& host);

  SchedulerRef ref() const;

 private:
  static Result<SchedulerPlugin> open_named(const std::string& name,
                                            const plugin::ParamList& params,
                                            plugin::Registry& registry, plugin::HostTable& host);
  plugin::Instance instance_;
};

// With a trace when Configure names a file; one that cannot be written is logged and left out.
std::unique_ptr<Planner> make_planner(const wire::Configure& configure, SchedulerRef plugin);

}  // namespace weft::engine
