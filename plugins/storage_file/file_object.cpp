#include "file_object.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <vector>

#include "file_uri.h"

namespace storage_file {
namespace {

// Reads go through the page cache, so any offset works; whole pages avoid reading one twice.
constexpr uint64_t kPreferredAlign = 4096;

std::string errno_text(int code) { return std::generic_category().message(code); }

void fail_errno(const std::string& path, const char* action, int code, Failure* failure) {
  const char* hint = "";
  if (code == EACCES)
    hint = "; the user weft runs as needs read permission on it and search permission above it";
  if (code == EMFILE) hint = "; raise the limit of open files (LimitNOFILE=)";
  *failure = {WEFT_E_IO, code,
              std::string(action) + " " + printable(path) + ": " + errno_text(code) + hint};
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

bool check_regular(const std::string& path, const struct stat& st, Failure* failure) {
  if (S_ISREG(st.st_mode)) return true;
  *failure = {
      WEFT_E_CONFIG, 0,
      "expected " + printable(path) + " to be a regular file, it is " + kind_of(st.st_mode)};
  return false;
}

// Replacing or rewriting a file changes its inode, size or modification time, hence the etag.
weft_object_info info_of(const struct stat& st) {
  weft_object_info info{};
  info.struct_size = sizeof info;
  info.size = static_cast<uint64_t>(st.st_size);
  info.align = kPreferredAlign;
  std::snprintf(info.etag, sizeof info.etag, "%llx-%llx-%llx-%llx.%lx",
                static_cast<unsigned long long>(st.st_dev),
                static_cast<unsigned long long>(st.st_ino),
                static_cast<unsigned long long>(st.st_size),
                static_cast<unsigned long long>(st.st_mtim.tv_sec),
                static_cast<unsigned long>(st.st_mtim.tv_nsec));
  return info;
}

using DirHandle = std::unique_ptr<DIR, int (*)(DIR*)>;

bool read_names(DIR* dir, const std::string& path, std::vector<std::string>* names,
                Failure* failure) {
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(dir);
    if (entry == nullptr) {
      if (errno == 0) return true;
      fail_errno(path, "list", errno, failure);
      return false;
    }
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    if (names->size() == kListEntriesMax) {
      *failure = {
          WEFT_E_CONFIG, 0,
          printable(path) + " has more than " + std::to_string(kListEntriesMax) + " entries"};
      return false;
    }
    names->emplace_back(entry->d_name);
  }
}

}  // namespace

std::unique_ptr<FileObject> FileObject::open(const std::string& path, Failure* failure) {
  struct stat st {};
  // The type is looked at first because opening some devices has side effects. O_NONBLOCK keeps a
  // FIFO that takes the file's place in between from hanging us, and the second look refuses it.
  if (::stat(path.c_str(), &st) != 0) return fail_errno(path, "open", errno, failure), nullptr;
  if (!check_regular(path, st, failure)) return nullptr;
  int fd = -1;
  do fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return fail_errno(path, "open", errno, failure), nullptr;
  if (::fstat(fd, &st) != 0) {
    fail_errno(path, "stat", errno, failure);
    ::close(fd);
    return nullptr;
  }
  if (!check_regular(path, st, failure)) return ::close(fd), nullptr;
  return std::unique_ptr<FileObject>(new FileObject(fd, info_of(st)));
}

FileObject::~FileObject() { ::close(fd_); }

weft_status list_directory(
    const std::string& directory,
    const std::function<weft_status(std::string_view, const weft_object_info&)>& each,
    Failure* failure) {
  DirHandle dir(::opendir(directory.c_str()), &::closedir);
  if (dir == nullptr) {
    if (errno == ENOTDIR)
      *failure = {WEFT_E_CONFIG, 0, "expected " + printable(directory) + " to be a directory"};
    else
      fail_errno(directory, "list", errno, failure);
    return failure->code;
  }
  std::vector<std::string> names;
  if (!read_names(dir.get(), directory, &names, failure)) return failure->code;
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    struct stat st {};
    // A dangling link or a file deleted meanwhile is no object; neither is anything but a regular
    // file.
    if (::fstatat(::dirfd(dir.get()), name.c_str(), &st, 0) != 0 || !S_ISREG(st.st_mode)) continue;
    const weft_status status = each(name, info_of(st));
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

}  // namespace storage_file
