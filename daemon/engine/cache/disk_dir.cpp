#include "engine/cache/disk_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace weft::engine::cache {
namespace {

namespace fs = std::filesystem;
constexpr const char* kPrefix = "weft-cache-";
constexpr const char* kLock = "/lock";

UniqueFd try_lock(const std::string& dir) {
  UniqueFd fd(::open((dir + kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) fd.reset();
  return fd;
}

void remove_left_overs(const std::string& base) {
  std::error_code ignored;
  for (const fs::directory_entry& e : fs::directory_iterator(base, ignored)) {
    const std::string name = e.path().filename().string();
    if (name.rfind(kPrefix, 0) != 0 || !e.is_directory(ignored)) continue;
    const UniqueFd lock = try_lock(e.path().string());
    if (lock.valid()) fs::remove_all(e.path(), ignored);
  }
}

}  // namespace

Result<std::unique_ptr<DiskDir>> DiskDir::make(const std::string& base) {
  std::error_code error;
  if (!fs::is_directory(base, error)) {
    return make_error(ErrorCode::kInvalid,
                      "disk_dir {} is not a directory: make it, writable for the service", base);
  }
  remove_left_overs(base);
  std::string path = base + "/" + kPrefix + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    return make_error(ErrorCode::kPermission, "cannot make a directory in disk_dir {}: {}", base,
                      std::strerror(errno));
  }
  UniqueFd lock = try_lock(path);
  if (!lock.valid()) {
    return make_error(ErrorCode::kIo, "cannot lock {}: {}", path, std::strerror(errno));
  }
  return std::unique_ptr<DiskDir>(new DiskDir(std::move(path), std::move(lock)));
}

DiskDir::~DiskDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace weft::engine::cache
