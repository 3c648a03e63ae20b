// StorageClient: a storage instance ("weft.storage/1") with types, errors and RAII instead of C. It
// does not own the instance. One thread at a time; while a client reads, nobody else may reap from
// the same instance, because completions are not addressed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "weft/storage.h"

namespace weft::engine {

struct StorageRef {  // borrowed; both outlive their users
  const weft_storage_v1* table = nullptr;
  weft_instance* self = nullptr;
};

// The error of a failed plugin call: the plugin's own words, or a sentence about the code when it
// gave none.
Error error_of(weft_status status, const weft_err& err);
// What a failed completion says about the read it belongs to.
Error error_of_read(const weft_io& io, const weft_done& done);

// One opened object; closes it.
class StorageObject {
 public:
  StorageObject() = default;
  StorageObject(StorageRef storage, weft_object* object, uint64_t size, std::string etag)
      : storage_(storage), object_(object), size_(size), etag_(std::move(etag)) {}
  StorageObject(StorageObject&& other) noexcept
      : storage_(other.storage_),
        object_(std::exchange(other.object_, nullptr)),
        size_(other.size_),
        etag_(std::move(other.etag_)) {}
  StorageObject& operator=(StorageObject&& other) noexcept;
  ~StorageObject();

  weft_object* get() const { return object_; }
  uint64_t size() const { return size_; }
  const std::string& etag() const { return etag_; }

 private:
  StorageRef storage_;
  weft_object* object_ = nullptr;
  uint64_t size_ = 0;
  std::string etag_;
};

Result<StorageObject> open_object(StorageRef storage, std::string_view location);

// Reads [offset, offset + len) and waits for it.
Result<std::string> read_range(StorageRef storage, const StorageObject& object, uint64_t offset,
                               uint64_t len);

// A whole object of at most bytes_max bytes.
Result<std::string> read_object(StorageRef storage, std::string_view location, uint64_t bytes_max);

// Names of the objects directly under `location`.
Result<std::vector<std::string>> list_objects(StorageRef storage, std::string_view location);

}  // namespace weft::engine
