// Registry: the plugins of a directory (or several), and what became of each. Scanning runs no
// plugin code; load and open do. Refused files stay in the list with the reason, so that "I dropped
// a file and nothing happened" has an answer. One thread ([init]). Destruction closes open plugins
// in reverse order of opening; the HostTable must still live then.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "plugin/child_check.h"
#include "plugin/loader.h"

namespace weft::plugin {

enum class PluginState {
  kFound,     // trusted and announced by its note; no code has run
  kRefused,   // will not be used; the reason says why
  kLoaded,    // mapped, descriptor checked
  kOpen,      // ready for instances
  kFailed,    // open failed
  kDisabled,  // switched off by the operator, or after misbehaving
};
const char* to_string(PluginState state);

struct InterfaceRecord {
  std::string id;
  uint64_t caps = 0;  // known from kLoaded on
};

struct PluginRecord {
  std::string name;
  std::string version;
  std::string path;
  PluginState state = PluginState::kFound;
  std::string reason;                       // of kRefused, kFailed, kDisabled
  std::vector<InterfaceRecord> interfaces;  // known from kLoaded on, or after vet
};

struct InterfaceRef {
  LoadedPlugin* plugin = nullptr;
  const weft_interface* interface = nullptr;
  explicit operator bool() const { return interface != nullptr; }
  template <class T>
  const T* table() const {
    return reinterpret_cast<const T*>(interface->table);
  }
};

class Registry {
 public:
  static constexpr size_t kPluginsMax = 256;  // files per directory

  // Looks at every *.so in the directories, in name order. Of two plugins with one name the newest
  // version is kept.
  static Result<std::unique_ptr<Registry>> scan(const std::string& directory, TrustPolicy policy);
  static Result<std::unique_ptr<Registry>> scan(const std::vector<std::string>& directories,
                                                TrustPolicy policy);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  const std::vector<PluginRecord>& records() const { return records_; }
  const PluginRecord* record(std::string_view name) const;

  // Both are idempotent; on failure the record keeps the reason and the error is returned too.
  Result<LoadedPlugin*> load(std::string_view name);
  Result<LoadedPlugin*> open(std::string_view name, HostTable& host);
  // Every kFound plugin; failures stay in the records.
  void load_all();
  void open_all(HostTable& host);

  // Tries every kFound plugin in a child process (child_check.h): those that crash, hang or refuse
  // become kRefused, of the others the interfaces are known. For daemons that must not run plugin
  // code themselves, and for workers before they load.
  void vet(const ChildCheckOptions& options);

  LoadedPlugin* find(std::string_view name) const;  // loaded or open, else NULL
  // Loaded plugins that have the interface, in name order; the first of them; an empty ref when
  // there is none.
  std::vector<InterfaceRef> find_interfaces(std::string_view id) const;
  InterfaceRef find_interface(std::string_view id) const;

  // Closes it if open and keeps it from being used. Instances must be gone.
  void disable(std::string_view name, std::string reason);
  // Marks a plugin as refused before any of its code ran, e.g. after check_plugin_in_child.
  void refuse(std::string_view name, std::string reason);

 private:
  explicit Registry(TrustPolicy policy) : loader_(policy) {}
  Status add_directory(const std::string& directory);
  void add_file(const std::string& path);
  void settle_duplicates();
  LoadedPlugin*& slot(const PluginRecord& record);

  Loader loader_;
  std::vector<PluginRecord> records_;
  std::vector<LoadedPlugin*> by_record_;                // beside records_; NULL = not loaded
  std::vector<std::unique_ptr<LoadedPlugin>> plugins_;  // in order of loading
  std::vector<LoadedPlugin*> opened_;                   // in order of opening
};

// <0, 0, >0: compares dotted numbers as numbers ("1.10.0" > "1.9.3"), a suffix ("-rc1") sorts
// before none.
int compare_versions(std::string_view a, std::string_view b);

}  // namespace weft::plugin
