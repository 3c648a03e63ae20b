#include "engine/plan/scheduler_plugin.h"

#include <utility>

#include "base/log.h"

namespace weft::engine {

bool is_built_in(const std::string& name) {
  return name == kBuiltInScheduler || name == kBuiltInPolicy;
}

SchedulerChoice scheduler_choice(const wire::Configure& configure) {
  SchedulerChoice out;
  for (const wire::PluginChoice& c : configure.plugins()) {
    if (c.interface() != WEFT_SCHEDULER_ID) continue;
    out.name = c.name();
    for (const wire::Parameter& p : c.params()) out.params.emplace_back(p.name(), p.value());
  }
  return out;
}

Result<SchedulerPlugin> SchedulerPlugin::open(const SchedulerChoice& choice,
                                              plugin::Registry& registry, plugin::HostTable& host) {
  if (is_built_in(choice.name)) {
    if (choice.params.empty()) return SchedulerPlugin();
    return make_error(ErrorCode::kInvalid,
                      "the built-in scheduler has no settings, got \"{}\"; remove it or name a "
                      "scheduler plugin",
                      choice.params.front().first);
  }
  if (!choice.name.empty()) return open_named(choice.name, choice.params, registry, host);
  if (registry.find(kDefaultScheduler) == nullptr && choice.params.empty()) {
    return SchedulerPlugin();
  }
  auto opened = open_named(kDefaultScheduler, choice.params, registry, host);
  if (opened.ok() || !choice.params.empty()) return opened;
  log_warning("{}; requests are served first come, first served", opened.error().message);
  return SchedulerPlugin();
}

Result<SchedulerPlugin> SchedulerPlugin::open_named(const std::string& name,
                                                    const plugin::ParamList& params,
                                                    plugin::Registry& registry,
                                                    plugin::HostTable& host) {
  auto opened = registry.open(name, host);
  if (!opened.ok()) return std::move(opened).error().within("scheduler " + name);
  auto instance = plugin::Instance::create(**opened, WEFT_SCHEDULER_ID, params);
  if (!instance.ok()) return std::move(instance).error().within("scheduler " + name);
  SchedulerPlugin out;
  out.instance_ = std::move(instance).value();
  Status started = out.instance_.start();
  if (!started.ok()) return std::move(started).error().within("scheduler " + name);
  return out;
}

SchedulerRef SchedulerPlugin::ref() const {
  if (!instance_) return {};
  return {instance_.table<weft_scheduler_v1>(), instance_.get(),
          std::string(instance_.plugin()->name())};
}

std::unique_ptr<Planner> make_planner(const wire::Configure& configure, SchedulerRef plugin) {
  std::unique_ptr<TraceWriter> trace;
  const std::string& path = configure.scheduler().trace_file();
  if (!path.empty()) {
    auto opened =
        TraceWriter::open(path, plugin.table != nullptr ? plugin.name : kBuiltInScheduler);
    if (opened.ok()) {
      trace = std::move(opened).value();
    } else {
      log_warning("{}; the worker goes on without a trace", opened.error().message);
    }
  }
  return std::make_unique<Planner>(std::move(plugin), std::move(trace));
}

}  // namespace weft::engine
