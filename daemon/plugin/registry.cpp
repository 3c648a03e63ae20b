#include "plugin/registry.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "plugin/host_table.h"
#include "plugin/status.h"

namespace weft::plugin {
namespace {

std::string stem(const std::filesystem::path& path) { return clean_text(path.stem().string()); }

// The next number of a dotted version, and the rest behind its dot. Text without a number gives -1.
int64_t take_number(std::string_view* text) {
  int64_t number = -1;
  const auto [end, ec] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (ec != std::errc()) return -1;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  if (!text->empty() && text->front() == '.') text->remove_prefix(1);
  return number;
}

}  // namespace

const char* to_string(PluginState state) {
  switch (state) {
    case PluginState::kFound:
      return "found";
    case PluginState::kRefused:
      return "refused";
    case PluginState::kLoaded:
      return "loaded";
    case PluginState::kOpen:
      return "open";
    case PluginState::kFailed:
      return "failed";
    case PluginState::kDisabled:
      return "disabled";
  }
  return "?";
}

int compare_versions(std::string_view a, std::string_view b) {
  for (;;) {
    const int64_t x = take_number(&a);
    const int64_t y = take_number(&b);
    if (x < 0 && y < 0) break;
    if (x != y) return x < y ? -1 : 1;
  }
  if (a.empty() != b.empty()) return a.empty() ? 1 : -1;
  return a.compare(b);
}

Result<std::unique_ptr<Registry>> Registry::scan(const std::string& directory, TrustPolicy policy) {
  return scan(std::vector<std::string>{directory}, policy);
}

Result<std::unique_ptr<Registry>> Registry::scan(const std::vector<std::string>& directories,
                                                 TrustPolicy policy) {
  std::unique_ptr<Registry> out(new Registry(policy));
  for (const std::string& directory : directories) WEFT_TRY(out->add_directory(directory));
  out->settle_duplicates();
  std::stable_sort(out->records_.begin(), out->records_.end(),
                   [](const PluginRecord& a, const PluginRecord& b) { return a.name < b.name; });
  out->by_record_.assign(out->records_.size(), nullptr);
  return out;
}

Registry::~Registry() {
  while (!opened_.empty()) {
    opened_.back()->close();
    opened_.pop_back();
  }
}

Status Registry::add_directory(const std::string& directory) {
  std::error_code ec;
  const std::filesystem::path base = std::filesystem::absolute(directory, ec).lexically_normal();
  std::filesystem::directory_iterator entries(base, ec);
  if (ec) {
    return make_error(
        ErrorCode::kNotFound,
        "plugin directory {}: {}; create it, or name another with plugin_dir in [daemon] or --plugin-dir",
        base.string(), ec.message());
  }
  std::vector<std::string> files;
  for (; entries != std::filesystem::directory_iterator(); entries.increment(ec)) {
    if (entries->path().extension() == ".so") files.push_back(entries->path().string());
    if (ec)
      return make_error(ErrorCode::kIo, "plugin directory {}: {}", base.string(), ec.message());
  }
  if (files.size() > kPluginsMax) {
    return make_error(
        ErrorCode::kInvalid,
        "plugin directory {}: expected at most {} files named *.so, came {}; remove some",
        base.string(), kPluginsMax, files.size());
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) add_file(file);
  return {};
}

void Registry::add_file(const std::string& path) {
  PluginRecord record;
  record.path = path;
  record.name = stem(path);
  auto note = loader_.inspect(path);
  if (note.ok()) {
    record.name = note->name;
    record.version = note->version;
  } else {
    record.state = PluginState::kRefused;
    record.reason = note.error().message;
  }
  records_.push_back(std::move(record));
}

void Registry::settle_duplicates() {
  for (PluginRecord& a : records_) {
    for (PluginRecord& b : records_) {
      if (&a == &b || a.name != b.name || a.state != PluginState::kFound ||
          b.state != PluginState::kFound)
        continue;
      const int order = compare_versions(a.version, b.version);
      // Equal versions: the directory named first wins.
      PluginRecord& loser = order < 0 || (order == 0 && &a > &b) ? a : b;
      const PluginRecord& winner = &loser == &a ? b : a;
      loser.state = PluginState::kRefused;
      loser.reason = fmt::format(
          "name: expected one plugin called {}, came two; {} (version {}) is used because it is "
          "{}, "
          "remove {} (version {})",
          loser.name, winner.path, winner.version,
          order == 0 ? "in the directory named first" : "newer", loser.path, loser.version);
    }
  }
}

const PluginRecord* Registry::record(std::string_view name) const {
  const PluginRecord* out = nullptr;
  for (const PluginRecord& r : records_) {
    if (r.name != name) continue;
    if (out == nullptr || out->state == PluginState::kRefused) out = &r;
  }
  return out;
}

LoadedPlugin*& Registry::slot(const PluginRecord& record) {
  return by_record_[static_cast<size_t>(&record - records_.data())];
}

Result<LoadedPlugin*> Registry::load(std::string_view name) {
  auto* found = const_cast<PluginRecord*>(record(name));
  if (found == nullptr) {
    return make_error(
        ErrorCode::kNotFound,
        "plugin {}: no file {}.so in the plugin directory; `weftctl plugins` lists what is "
        "there",
        name, name);
  }
  if (LoadedPlugin* loaded = slot(*found);
      loaded != nullptr && found->state != PluginState::kDisabled)
    return loaded;
  if (found->state != PluginState::kFound) {
    return make_error(ErrorCode::kInvalid, "plugin {} is {}: {}", name, to_string(found->state),
                      found->reason);
  }
  auto loaded = loader_.load(found->path);
  if (!loaded.ok()) {
    found->state = PluginState::kRefused;
    found->reason = loaded.error().message;
    return std::move(loaded).error().within(fmt::format("plugin {}", name));
  }
  found->state = PluginState::kLoaded;
  found->interfaces.clear();
  for (const weft_interface* i = (*loaded)->desc().interfaces; i->id != nullptr; ++i) {
    found->interfaces.push_back({i->id, i->table->caps});
  }
  plugins_.push_back(std::move(loaded).value());
  slot(*found) = plugins_.back().get();
  return plugins_.back().get();
}

Result<LoadedPlugin*> Registry::open(std::string_view name, HostTable& host) {
  WEFT_ASSIGN(LoadedPlugin * plugin, load(name));
  auto* found = const_cast<PluginRecord*>(record(name));
  if (plugin->is_open()) return plugin;
  if (Status status = plugin->open(host); !status.ok()) {
    found->state = PluginState::kFailed;
    found->reason = status.error().message;
    return std::move(status).error();
  }
  found->state = PluginState::kOpen;
  found->reason.clear();
  opened_.push_back(plugin);
  return plugin;
}

void Registry::vet(const ChildCheckOptions& options) {
  for (PluginRecord& r : records_) {
    if (r.state != PluginState::kFound) continue;
    auto report = check_plugin_in_child(r.path, options);
    if (!report.ok()) {
      r.state = PluginState::kRefused;
      r.reason = report.error().message;
      continue;
    }
    r.interfaces.clear();
    for (const std::string& id : report->interfaces) r.interfaces.push_back({id, 0});
  }
}

void Registry::load_all() {
  for (size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].state == PluginState::kFound) static_cast<void>(load(records_[i].name).ok());
  }
}

void Registry::open_all(HostTable& host) {
  load_all();
  for (size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].state == PluginState::kLoaded)
      static_cast<void>(open(records_[i].name, host).ok());
  }
}

LoadedPlugin* Registry::find(std::string_view name) const {
  for (size_t i = 0; i < records_.size(); ++i) {
    const PluginState state = records_[i].state;
    if (records_[i].name == name && (state == PluginState::kLoaded || state == PluginState::kOpen))
      return by_record_[i];
  }
  return nullptr;
}

std::vector<InterfaceRef> Registry::find_interfaces(std::string_view id) const {
  std::vector<InterfaceRef> out;
  for (const PluginRecord& r : records_) {
    LoadedPlugin* plugin = find(r.name);
    if (plugin == nullptr || plugin->path() != r.path) continue;
    if (const weft_interface* interface = plugin->find(id)) out.push_back({plugin, interface});
  }
  return out;
}

InterfaceRef Registry::find_interface(std::string_view id) const {
  const auto all = find_interfaces(id);
  return all.empty() ? InterfaceRef{} : all.front();
}

void Registry::disable(std::string_view name, std::string reason) {
  auto* found = const_cast<PluginRecord*>(record(name));
  if (found == nullptr) return;
  if (LoadedPlugin* plugin = slot(*found); plugin != nullptr && plugin->is_open()) {
    plugin->close();
    std::erase(opened_, plugin);
  }
  found->state = PluginState::kDisabled;
  found->reason = std::move(reason);
}

void Registry::refuse(std::string_view name, std::string reason) {
  auto* found = const_cast<PluginRecord*>(record(name));
  if (found == nullptr || found->state != PluginState::kFound) return;
  found->state = PluginState::kRefused;
  found->reason = std::move(reason);
}

}  // namespace weft::plugin
