// Bytes of a cache unit outside the device: in host memory, or spilled to a file.
//
// Blobs are shared by everything that needs them (rows of a common prefix exist once) and give
// their bytes back to the budget when the last reference goes. Engine thread; a copy in flight
// holds a reference, and only the copy thread touches the bytes until it is done.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace weft::engine::cache {

struct HostBudget {
  uint64_t total = 0;
  uint64_t used = 0;
  uint64_t disk_total = 0;
  uint64_t disk_used = 0;
  uint64_t disk_failures = 0;
};

class Blob {
 public:
  // Memory is mapped now and becomes resident when it is written. NULL when the machine refuses.
  static std::shared_ptr<Blob> make(HostBudget* budget, uint64_t bytes);
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  uint64_t bytes() const { return bytes_; }
  bool in_memory() const { return data_ != nullptr; }
  unsigned char* data() const { return data_; }
  const std::string& file() const { return file_; }

  // Set by the copy thread when the bytes are complete, read by the engine thread.
  std::atomic<bool> ready{false};
  // The bytes were lost or damaged: whoever needs them must compute them again.
  std::atomic<bool> broken{false};
  // Engine thread.
  bool spilling = false;  // a file is being written
  uint32_t readers = 0;   // loads in flight
  // The file is complete (or not): the memory goes, unless someone reads it just now.
  void spilled(bool ok, const std::string& path);

 private:
  Blob(HostBudget* budget, unsigned char* data, uint64_t bytes)
      : budget_(budget), data_(data), bytes_(bytes) {}
  void unmap();

  HostBudget* budget_;
  unsigned char* data_;
  uint64_t bytes_;
  std::string file_;
};

using BlobRef = std::shared_ptr<Blob>;

}  // namespace weft::engine::cache
