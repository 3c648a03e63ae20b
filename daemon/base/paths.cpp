#include "base/paths.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace weft {
namespace {

std::string parent(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// A directory in /tmp that somebody else made could lead us to their socket: it must be ours alone.
bool is_private_dir(const std::string& dir) {
  struct stat st {};
  return lstat(dir.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
         (st.st_mode & 0022) == 0;
}

bool usable_dir(const std::string& dir) {
  struct stat st {};
  if (stat(dir.c_str(), &st) != 0) {
    if (mkdir(dir.c_str(), 0700) != 0) return false;
  }
  if (dir.starts_with("/tmp/")) return is_private_dir(dir);
  return access(dir.c_str(), W_OK) == 0;
}

}  // namespace

std::string executable_dir() {
  std::error_code ec;
  const auto exe = std::filesystem::read_symlink("/proc/self/exe", ec);
  return ec ? std::string(".") : exe.parent_path().string();
}

std::vector<std::string> control_socket_candidates() {
  std::vector<std::string> out;
  if (const char* path = secure_getenv("WEFT_SOCKET"); path != nullptr && *path != '\0')
    out.emplace_back(path);
  out.emplace_back("/run/weft/weft.sock");
  if (const char* dir = secure_getenv("XDG_RUNTIME_DIR"); dir != nullptr && *dir == '/')
    out.push_back(fmt::format("{}/weft/weft.sock", dir));
  out.push_back(fmt::format("/tmp/weft-{}/weft.sock", geteuid()));
  return out;
}

std::string writable_control_socket() {
  for (const std::string& path : control_socket_candidates())
    if (usable_dir(parent(path))) return path;
  return control_socket_candidates().back();
}

std::string existing_control_socket() {
  const auto candidates = control_socket_candidates();
  for (const std::string& path : candidates) {
    struct stat st {};
    if (path.starts_with("/tmp/") && !is_private_dir(parent(path))) continue;
    if (stat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode)) return path;
  }
  return candidates.front();
}

}  // namespace weft
