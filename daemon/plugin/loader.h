// Loading one plugin file, in this order; the first failure refuses the file and says why:
//   1. the path is trusted (trust.h)             2. the ELF note fits this host (elf_note.h); no
//   plugin code has run yet
//   3. file name == note name                    4. dlopen, never unmapped: threads, thread-local
//   destructors and atexit
//   5. the query symbol gives a descriptor          handlers of the plugin may outlive any moment
//   we could pick
//   6. the descriptor is sound (validate.h)      7. open(host)
// inspect() does 1-3, load() 1-6, LoadedPlugin::open 7. All of it is [init]: one thread, nothing
// else runs in the plugin.
#pragma once

#include <weft/plugin.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "plugin/elf_note.h"
#include "plugin/trust.h"

namespace weft::plugin {

class HostTable;

class LoadedPlugin {
 public:
  ~LoadedPlugin() { close(); }
  LoadedPlugin(const LoadedPlugin&) = delete;
  LoadedPlugin& operator=(const LoadedPlugin&) = delete;

  const weft_desc& desc() const { return *desc_; }
  std::string_view name() const { return desc_->name; }
  std::string_view version() const { return desc_->version; }
  const std::string& path() const { return path_; }

  // The host must outlive the open plugin. Opening an open plugin does nothing.
  Status open(HostTable& host);
  void close();
  bool is_open() const { return open_; }
  weft_plugin* handle() const { return handle_; }
  HostTable* host() const { return host_; }

  // The interface with this id, or NULL.
  const weft_interface* find(std::string_view id) const;
  // Its function table as T, or NULL: table<weft_model_v1>(WEFT_MODEL_ID).
  template <class T>
  const T* table(std::string_view id) const {
    const weft_interface* interface = find(id);
    return interface == nullptr ? nullptr : reinterpret_cast<const T*>(interface->table);
  }

 private:
  friend class Loader;
  LoadedPlugin(std::string path, const weft_desc* desc) : path_(std::move(path)), desc_(desc) {}

  std::string path_;
  const weft_desc* desc_;
  weft_plugin* handle_ = nullptr;
  HostTable* host_ = nullptr;
  bool open_ = false;
};

// Called just before code of the plugin runs, so that a checking process can say where it was when
// it died.
struct LoadSteps {
  std::function<void()> before_dlopen;  // constructors
  std::function<void()> before_query;
};

class Loader {
 public:
  explicit Loader(TrustPolicy policy) : policy_(policy) {}

  Result<PluginNote> inspect(const std::string& path) const;
  Result<std::unique_ptr<LoadedPlugin>> load(const std::string& path,
                                             const LoadSteps& steps = {}) const;

 private:
  TrustPolicy policy_;
};

}  // namespace weft::plugin
