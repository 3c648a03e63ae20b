// One opened regular file, and listing of a directory. Opening never hangs: FIFOs, sockets and
// devices are refused before they are opened. A FileObject is immutable after open; any number of
// threads may read through it at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "weft/storage.h"

namespace storage_file {

// Why an operation failed, in the terms of weft_err.
struct Failure {
  weft_status code = WEFT_OK;
  int sys = 0;
  std::string message;
};

class FileObject {
 public:
  // On failure returns null and fills `failure`.
  static std::unique_ptr<FileObject> open(const std::string& path, Failure* failure);
  ~FileObject();
  FileObject(const FileObject&) = delete;
  FileObject& operator=(const FileObject&) = delete;

  int fd() const { return fd_; }
  const weft_object_info& info() const { return info_; }

 private:
  FileObject(int fd, const weft_object_info& info) : fd_(fd), info_(info) {}

  int fd_;
  weft_object_info info_;
};

// A directory with more entries than this is refused: it is no model directory, and the list must
// fit in memory.
inline constexpr size_t kListEntriesMax = 1'000'000;

// Calls each(name, info) for every regular file (also behind a symbolic link) directly in
// `directory`, in name order, until it returns non-zero, and returns that. WEFT_OK at the end; on
// failure the code of `failure`.
weft_status list_directory(
    const std::string& directory,
    const std::function<weft_status(std::string_view, const weft_object_info&)>& each,
    Failure* failure);

}  // namespace storage_file
