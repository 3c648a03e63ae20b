#include "plugin/trust.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace weft::plugin {
namespace {

struct Part {
  std::string path;
  struct stat st {};
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::string real_path(const std::string& path) {
  char* real = ::realpath(path.c_str(), nullptr);
  std::string out = real == nullptr ? path : real;
  std::free(real);
  return out;
}

Status check_kind(const Part& part, bool last) {
  if (S_ISLNK(part.st.st_mode)) {
    return make_error(ErrorCode::kPermission,
                      "{}: expected {}, came a symbolic link; use the real path {}", part.path,
                      last ? "a regular file" : "a directory", real_path(part.path));
  }
  if (last ? !S_ISREG(part.st.st_mode) : !S_ISDIR(part.st.st_mode)) {
    return make_error(ErrorCode::kPermission, "{}: expected {}, came {}; move it away", part.path,
                      last ? "a regular file" : "a directory", kind_of(part.st.st_mode));
  }
  return {};
}

Status check_owner_and_mode(const Part& part, bool last, TrustPolicy policy) {
  const uid_t uid = part.st.st_uid;
  const bool user_ok = policy == TrustPolicy::kRootOrUser && uid == geteuid();
  if (uid != 0 && !user_ok) {
    return make_error(
        ErrorCode::kPermission,
        "{}: owner: expected root (uid 0){}, came uid {}; run: chown root {}", part.path,
        policy == TrustPolicy::kRootOrUser ? " or the user who runs weft" : "", uid, part.path);
  }
  const mode_t open_bits = part.st.st_mode & (S_IWGRP | S_IWOTH);
  if (open_bits == 0) return {};
  // Sticky: others may add names but not rename or remove ours. The file itself has no such excuse.
  if (!last && (part.st.st_mode & S_ISVTX) != 0) return {};
  return make_error(ErrorCode::kPermission,
                    "{}: mode: expected not writable by group or others, came {:04o}; run: chmod "
                    "go-w {}{}",
                    part.path, part.st.st_mode & 07777u, part.path,
                    last ? ""
                         : " (of directories that others may write, only those with the sticky "
                           "bit, like /tmp, are "
                           "accepted)");
}

Status check_part(const std::string& path, bool last, TrustPolicy policy) {
  Part part{path, {}};
  if (::lstat(path.c_str(), &part.st) != 0)
    return make_error(ErrorCode::kIo, "{}: {}", path, strerror(errno));
  // Without owner checks only the file matters: tests may live below links.
  if (policy == TrustPolicy::kUnchecked && !last) return {};
  WEFT_TRY(check_kind(part, last));
  if (policy == TrustPolicy::kUnchecked) return {};
  return check_owner_and_mode(part, last, policy);
}

}  // namespace

Status check_trust(const std::string& path, TrustPolicy policy) {
  if (path.size() < 2 || path[0] != '/') {
    return make_error(ErrorCode::kInvalid, "plugin path: expected an absolute path, came \"{}\"",
                      path);
  }
  // "/", "/a", "/a/b", ...: every prefix that ends at a slash, then the file.
  for (size_t slash = 0; slash != std::string::npos; slash = path.find('/', slash + 1)) {
    WEFT_TRY(check_part(slash == 0 ? "/" : path.substr(0, slash), false, policy));
  }
  return check_part(path, true, policy);
}

}  // namespace weft::plugin
