// The directory of the disk tier: one sub-directory per process, empty at the start and gone at
// the end. What a process that was killed has left is removed by the next one that starts there.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace weft::engine::cache {

class DiskDir {
 public:
  // base: an existing directory that can be written.
  static Result<std::unique_ptr<DiskDir>> make(const std::string& base);
  ~DiskDir();
  DiskDir(const DiskDir&) = delete;
  DiskDir& operator=(const DiskDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  DiskDir(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;  // held: the directory is in use
};

}  // namespace weft::engine::cache
