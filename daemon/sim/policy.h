// A scheduler chosen by name from a plugin directory, with all that must live as long as it is
// used. One thread.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "engine/plan/scheduler_plugin.h"

namespace weft::sim {

class Policy {
 public:
  // "builtin" needs no directory. An empty directory means the one beside the program.
  static Result<Policy> open(const engine::SchedulerChoice& choice, const std::string& plugin_dir);
  engine::SchedulerRef ref() const { return plugin_.ref(); }

 private:
  // Destroyed bottom-up: the instance, its plugins, the host.
  std::unique_ptr<plugin::HostTable> host_;
  std::unique_ptr<plugin::Registry> registry_;
  engine::SchedulerPlugin plugin_;
};

}  // namespace weft::sim
