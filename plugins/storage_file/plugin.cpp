// storage_file: "weft.storage/1" for files of this machine. This file is the C boundary: it turns
// ABI calls into calls of FileStore and FileObject and lets no exception through.
#include <memory>
#include <string>
#include <string_view>

#include "file_object.h"
#include "file_store.h"
#include "file_uri.h"
#include "weft.hpp"
#include "weft/storage.h"

struct weft_plugin {
  const weft_host* host;
};
struct weft_instance {
  weft_plugin* plugin;
  storage_file::FileStore store;
};

namespace storage_file {
namespace {

weft_status report(weft_err* err, const Failure& failure) {
  return weft::put_error(err, failure.code, failure.message.c_str(), failure.sys);
}

weft_object* to_abi(FileObject* object) { return reinterpret_cast<weft_object*>(object); }
FileObject* from_abi(weft_object* object) { return reinterpret_cast<FileObject*>(object); }

// ---- settings and life ----

constexpr weft_key kKeys[] = {
    {"threads", WEFT_KEY_INT, 0, "2", "Threads that read files, 1 to 64."},
    {"queue", WEFT_KEY_INT, 0, "256", "Reads that may be in flight at once, 1 to 65536."},
    {nullptr, 0, 0, nullptr, nullptr},
};
static_assert(kThreadsDefault == 2 && kThreadsMax == 64 && kQueueDefault == 256 &&
                  kQueueMax == 65536,
              "the key table above says these numbers in words");

weft_status create(weft_plugin* plugin, const weft_param* params, uint32_t n, weft_instance** out,
                   weft_err* err) {
  return weft::fence(err, [&] {
    const weft::Params settings(params, n);
    StoreOptions options;
    options.threads =
        static_cast<uint32_t>(settings.integer_in("threads", 1, kThreadsMax, kThreadsDefault));
    options.queue =
        static_cast<uint32_t>(settings.integer_in("queue", 1, kQueueMax, kQueueDefault));
    *out = new weft_instance{plugin, FileStore(options)};
  });
}

weft_status start(weft_instance* self, weft_err* err) {
  return weft::fence(err, [&]() -> weft_status {
    std::string error;
    return self->store.start(&error) ? WEFT_OK : report(err, {WEFT_E_NOMEM, 0, error});
  });
}

weft_status drain(weft_instance* self, uint64_t deadline_ns) {
  self->store.close_intake();
  if (self->store.idle()) return WEFT_OK;
  const weft_host* host = self->plugin->host;
  return host->now_ns(host) < deadline_ns ? WEFT_AGAIN : WEFT_OK;
}

void stop(weft_instance* self) { self->store.stop(); }

void destroy(weft_instance* self) { delete self; }

// ---- the interface ----

int32_t probe(weft_plugin*, weft_str uri) { return score_uri(weft::view(uri)); }

weft_status open_object(weft_instance*, weft_str uri, weft_object** out, weft_object_info* info,
                        weft_err* err) {
  return weft::fence(err, [&]() -> weft_status {
    std::string path, error;
    if (!path_of_uri(weft::view(uri), &path, &error)) return report(err, {WEFT_E_CONFIG, 0, error});
    Failure failure;
    std::unique_ptr<FileObject> object = FileObject::open(path, &failure);
    if (object == nullptr) return report(err, failure);
    *info = object->info();
    *out = to_abi(object.release());
    return WEFT_OK;
  });
}

void close_object(weft_instance*, weft_object* object) { delete from_abi(object); }

uint32_t submit(weft_instance* self, const weft_io* ios, uint32_t n) {
  return self->store.submit(ios, n);
}

uint32_t reap(weft_instance* self, weft_done* out, uint32_t max, uint64_t wait_ns) {
  return self->store.reap(out, max, wait_ns);
}

// WEFT_END: no such id in flight, its completion has come or waits to be reaped.
weft_status cancel(weft_instance* self, uint64_t id) {
  return self->store.cancel(id) ? WEFT_OK : WEFT_END;
}

weft_status list(weft_instance*, weft_str prefix,
                 weft_status (*each)(void* ctx, weft_str name, const weft_object_info* info),
                 void* ctx, weft_err* err) {
  return weft::fence(err, [&]() -> weft_status {
    std::string path, error;
    if (!path_of_uri(weft::view(prefix), &path, &error))
      return report(err, {WEFT_E_CONFIG, 0, error});
    Failure failure;
    const weft_status status = list_directory(
        path,
        [&](std::string_view name, const weft_object_info& info) {
          return each(ctx, {name.data(), name.size()}, &info);
        },
        &failure);
    return failure.code != WEFT_OK ? report(err, failure) : status;
  });
}

constexpr weft_storage_v1 kTable = {
    {sizeof(weft_storage_v1), 1, WEFT_STORAGE_CAP_LIST | WEFT_STORAGE_CAP_CANCEL},
    probe,
    open_object,
    close_object,
    submit,
    reap,
    cancel,
    list,
};
constexpr weft_life kLife = {sizeof(weft_life), 0, create, start, drain, stop, destroy};
constexpr weft_interface kInterfaces[] = {
    {WEFT_STORAGE_ID, &kTable.head, &kLife, kKeys},
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
    sizeof(weft_desc), WEFT_MAGIC,   WEFT_ABI_MAJOR, WEFT_ABI_MINOR, "storage_file", WEFT_VERSION,
    "weft project",    "Apache-2.0", kInterfaces,    open_plugin,    close_plugin,
};

}  // namespace
}  // namespace storage_file

WEFT_PLUGIN(storage_file, WEFT_VERSION, &storage_file::kDesc);
