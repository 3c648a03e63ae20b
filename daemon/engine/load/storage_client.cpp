#include "engine/load/storage_client.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>

#include "engine/load/quote.h"
#include "plugin/status.h"

namespace weft::engine {
namespace {

// Completions normally come within milliseconds; the wait is cut only so that a lost wake-up cannot
// last.
constexpr uint64_t kReapWaitNs = 1'000'000'000;
constexpr uint64_t kReadId = 1;
constexpr size_t kListNamesMax = 1'000'000;

// As the plugin room has it, but telling apart what callers treat differently.
ErrorCode code_of(weft_status status, int64_t sys) {
  if (status == WEFT_E_IO && sys == ENOENT) return ErrorCode::kNotFound;
  if (status == WEFT_E_IO && (sys == EACCES || sys == EPERM)) return ErrorCode::kPermission;
  return plugin::error_code(status);
}

weft_str to_abi(std::string_view text) { return {text.data(), text.size()}; }

struct ListCall {
  std::vector<std::string> names;
  bool too_many = false;
};

weft_status add_name(void* ctx, weft_str name, const weft_object_info*) {
  auto* call = static_cast<ListCall*>(ctx);
  if (call->names.size() == kListNamesMax) return call->too_many = true, WEFT_PARTIAL;
  call->names.emplace_back(name.data, name.len);
  return WEFT_OK;
}

}  // namespace

Error error_of(weft_status status, const weft_err& err) {
  const size_t length = ::strnlen(err.msg, sizeof err.msg);
  if (length > 0) return Error(code_of(status, err.sys), plugin::clean_text({err.msg, length}));
  return make_error(code_of(status, err.sys), "failed with status {} and no message", status);
}

Error error_of_read(const weft_io& io, const weft_done& done) {
  const std::string range = fmt::format("read of {} bytes at offset {}", io.len, io.offset);
  switch (done.status) {
    case WEFT_OK:
    case WEFT_E_CORRUPT:
      return make_error(ErrorCode::kCorrupt,
                        "{} ended after {}: the file is shorter than when it was opened", range,
                        done.bytes);
    case WEFT_E_IO:
      return make_error(code_of(done.status, done.sys), "{} failed after {}: {}", range, done.bytes,
                        std::generic_category().message(done.sys));
    case WEFT_E_CANCELLED:
      return make_error(ErrorCode::kCancelled, "{} was cancelled", range);
    default:
      return make_error(code_of(done.status, done.sys), "{} failed with status {}", range,
                        done.status);
  }
}

StorageObject& StorageObject::operator=(StorageObject&& other) noexcept {
  std::swap(storage_, other.storage_);
  std::swap(object_, other.object_);
  std::swap(size_, other.size_);
  std::swap(etag_, other.etag_);
  return *this;
}

StorageObject::~StorageObject() {
  if (object_ != nullptr) storage_.table->close_object(storage_.self, object_);
}

Result<StorageObject> open_object(StorageRef storage, std::string_view location) {
  weft_err err = plugin::make_err();
  weft_object_info info{};
  info.struct_size = sizeof info;
  weft_object* object = nullptr;
  const weft_status status =
      storage.table->open_object(storage.self, to_abi(location), &object, &info, &err);
  if (status != WEFT_OK) return error_of(status, err);
  return StorageObject(storage, object, info.size,
                       std::string(info.etag, ::strnlen(info.etag, sizeof info.etag)));
}

Result<std::string> read_range(StorageRef storage, const StorageObject& object, uint64_t offset,
                               uint64_t len) {
  std::string bytes(len, '\0');
  const weft_io io = {kReadId, object.get(), offset, len, bytes.data(), WEFT_MEM_HOST, 0};
  if (storage.table->submit(storage.self, &io, 1) != 1)
    return make_error(ErrorCode::kUnavailable,
                      "the storage instance takes no reads: not started, draining, or in use");
  weft_done done{};
  // Whatever else comes first, `bytes` must live until our own completion has come.
  std::optional<uint64_t> stranger;
  while (true) {
    if (storage.table->reap(storage.self, &done, 1, kReapWaitNs) == 0) continue;
    if (done.id == kReadId) break;
    stranger = done.id;
  }
  if (stranger)
    return make_error(ErrorCode::kPeer,
                      "the storage plugin completed read {}, which nobody asked for", *stranger);
  if (done.status != WEFT_OK || done.bytes != len) return error_of_read(io, done);
  return bytes;
}

Result<std::string> read_object(StorageRef storage, std::string_view location, uint64_t bytes_max) {
  WEFT_ASSIGN(const StorageObject object, open_object(storage, location));
  if (object.size() > bytes_max)
    return make_error(ErrorCode::kInvalid, "{} has {} bytes, the limit is {}", quote_name(location),
                      object.size(), bytes_max);
  return read_range(storage, object, 0, object.size());
}

Result<std::vector<std::string>> list_objects(StorageRef storage, std::string_view location) {
  if ((storage.table->head.caps & WEFT_STORAGE_CAP_LIST) == 0 || storage.table->list == nullptr)
    return make_error(ErrorCode::kUnsupported, "the storage plugin cannot list {}",
                      quote_name(location));
  weft_err err = plugin::make_err();
  ListCall call;
  const weft_status status =
      storage.table->list(storage.self, to_abi(location), add_name, &call, &err);
  if (call.too_many)
    return make_error(ErrorCode::kInvalid, "{} has more than {} objects", quote_name(location),
                      kListNamesMax);
  if (status != WEFT_OK) return error_of(status, err);
  std::sort(call.names.begin(), call.names.end());
  return std::move(call.names);
}

}  // namespace weft::engine
