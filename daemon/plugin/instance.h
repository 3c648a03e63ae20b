// Instance: one configured instance of a plugin interface, created, started, stopped and destroyed
// in the right order. Movable owner; the plugin must stay open while it lives. create/start/stop
// are [init|slow]: one thread at a time.
#pragma once

#include <weft/plugin.h>

#include <string_view>
#include <utility>

#include "base/result.h"
#include "plugin/loader.h"
#include "plugin/params.h"

namespace weft::plugin {

class Instance {
 public:
  // Checks the settings against the interface's key table, then calls create.
  static Result<Instance> create(const LoadedPlugin& plugin, std::string_view interface_id,
                                 const ParamList& settings);

  Instance() = default;
  Instance(Instance&& other) noexcept { swap(other); }
  Instance& operator=(Instance&& other) noexcept {
    Instance taken(std::move(other));
    swap(taken);
    return *this;
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance();  // stop if started, destroy

  Status start();
  // True when no work is left, false when the deadline passed first.
  Result<bool> drain(uint64_t deadline_ns);
  void stop();

  weft_instance* get() const { return self_; }
  explicit operator bool() const { return self_ != nullptr; }
  const LoadedPlugin* plugin() const { return plugin_; }
  template <class T>
  const T* table() const {
    return reinterpret_cast<const T*>(interface_->table);
  }

 private:
  void swap(Instance& other) noexcept {
    std::swap(plugin_, other.plugin_);
    std::swap(interface_, other.interface_);
    std::swap(self_, other.self_);
    std::swap(started_, other.started_);
  }
  std::string label(std::string_view call) const;

  const LoadedPlugin* plugin_ = nullptr;
  const weft_interface* interface_ = nullptr;
  weft_instance* self_ = nullptr;
  bool started_ = false;
};

}  // namespace weft::plugin
