#include "plugin/loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/unique_fd.h"
#include "plugin/fence.h"
#include "plugin/host_table.h"
#include "plugin/status.h"
#include "plugin/thread_labels.h"
#include "plugin/validate.h"

namespace weft::plugin {
namespace {

// "/usr/lib/weft/plugins/storage_file.so" -> "storage_file"
std::string stem_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.size() > 3 && name.ends_with(".so")) name.resize(name.size() - 3);
  return name;
}

}  // namespace

Result<PluginNote> Loader::inspect(const std::string& path) const {
  WEFT_TRY(check_trust(path, policy_));
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat st {};
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0) {
    return make_error(ErrorCode::kIo, "{}: cannot open it: {}", path, strerror(errno));
  }
  WEFT_ASSIGN(PluginNote note,
              read_plugin_note(bytes_of_fd(fd.get(), static_cast<uint64_t>(st.st_size))));
  const std::string stem = stem_of(path);
  if (stem != note.name) {
    return make_error(ErrorCode::kInvalid,
                      "file name: expected {}.so as in the note, came {}; rename the file",
                      note.name, clean_text(path.substr(path.rfind('/') + 1)));
  }
  return note;
}

Result<std::unique_ptr<LoadedPlugin>> Loader::load(const std::string& path,
                                                   const LoadSteps& steps) const {
  WEFT_ASSIGN(const PluginNote note, inspect(path));
  const ThreadLabel label(WEFT_THREAD_INIT);
  if (steps.before_dlopen) steps.before_dlopen();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return make_error(ErrorCode::kInvalid,
                      "dlopen: {}; when a library or symbol is missing, `ldd -r {}` lists it",
                      why == nullptr ? "failed without a message" : clean_text(why), path);
  }
  void* symbol = ::dlsym(library, WEFT_PLUGIN_SYMBOL);
  if (symbol == nullptr) {
    return make_error(
        ErrorCode::kInvalid,
        "symbol: expected the file to export {}, came none; define it with WEFT_PLUGIN from "
        "weft/note.h",
        WEFT_PLUGIN_SYMBOL);
  }
  weft_plugin_query_fn query = nullptr;
  memcpy(&query, &symbol, sizeof query);  // POSIX's way from void* to a function
  if (steps.before_query) steps.before_query();
  const weft_desc* desc = query(WEFT_ABI_MAJOR, WEFT_ABI_MINOR);
  WEFT_TRY(validate_descriptor(desc, note.name, note.version));
  return std::unique_ptr<LoadedPlugin>(new LoadedPlugin(path, desc));
}

Status LoadedPlugin::open(HostTable& host) {
  if (open_) return {};
  const ThreadLabel label(WEFT_THREAD_INIT);
  weft_err err = make_err();
  weft_plugin* handle = nullptr;
  const weft_status status =
      fenced(&err, [&] { return desc_->open(host.table(name()), &handle, &err); });
  host.drop_credentials(name());
  if (status != WEFT_OK) return plugin_error(status, err, fmt::format("plugin {}: open", name()));
  handle_ = handle;  // may be NULL: a plugin without state
  host_ = &host;
  open_ = true;
  return {};
}

void LoadedPlugin::close() {
  if (!open_) return;
  const ThreadLabel label(WEFT_THREAD_INIT);
  open_ = false;
  desc_->close(handle_);
  handle_ = nullptr;
  host_ = nullptr;
}

const weft_interface* LoadedPlugin::find(std::string_view id) const {
  for (const weft_interface* i = desc_->interfaces; i->id != nullptr; ++i)
    if (id == i->id) return i;
  return nullptr;
}

}  // namespace weft::plugin
