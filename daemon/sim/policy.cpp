#include "sim/policy.h"

#include <filesystem>
#include <utility>

#include "base/paths.h"

namespace weft::sim {

Result<Policy> Policy::open(const engine::SchedulerChoice& choice, const std::string& plugin_dir) {
  Policy out;
  if (choice.name.empty() || engine::is_built_in(choice.name)) {
    if (choice.params.empty()) return out;
    return Error(ErrorCode::kInvalid, "the built-in scheduler has no settings: remove --set");
  }
  const std::string directory =
      plugin_dir.empty()
          ? std::filesystem::path(executable_dir() + "/../lib/weft/plugins").lexically_normal()
          : std::filesystem::path(plugin_dir);
  out.host_ = plugin::HostTable::make({});
  // Whoever simulates runs their own build.
  WEFT_ASSIGN(out.registry_, plugin::Registry::scan(directory, plugin::TrustPolicy::kRootOrUser));
  WEFT_TRY(out.registry_->load(choice.name));
  WEFT_ASSIGN(out.plugin_, engine::SchedulerPlugin::open(choice, *out.registry_, *out.host_));
  return out;
}

}  // namespace weft::sim
