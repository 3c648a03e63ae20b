#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"
#include "engine/cache/copy_queue.h"

namespace weft::engine::cache {
namespace {

struct Header {
  char magic[8];
  uint64_t bytes;
  uint64_t sum_low, sum_high;
};
constexpr char kMagic[8] = {'w', 'e', 'f', 't', 'u', 'n', 'i', '1'};

bool write_all(int fd, const void* data, uint64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<uint64_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, uint64_t bytes) {
  auto* at = static_cast<unsigned char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::read(fd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<uint64_t>(n);
  }
  return true;
}

Header header_of(const unsigned char* data, uint64_t bytes) {
  const XXH128_hash_t sum = XXH3_128bits(data, bytes);
  Header header = {{}, bytes, sum.low64, sum.high64};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  return header;
}

}  // namespace

bool write_unit_file(const std::string& path, const unsigned char* data, uint64_t bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return false;
  const Header header = header_of(data, bytes);
  if (write_all(fd.get(), &header, sizeof(header)) && write_all(fd.get(), data, bytes)) return true;
  ::unlink(path.c_str());
  return false;
}

bool read_unit_file(const std::string& path, unsigned char* data, uint64_t bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Header stored;
  if (!fd.valid() || !read_all(fd.get(), &stored, sizeof(stored)) || stored.bytes != bytes ||
      !read_all(fd.get(), data, bytes)) {
    return false;
  }
  unsigned char more = 0;
  if (read_all(fd.get(), &more, 1)) return false;  // longer than it should be
  const Header expected = header_of(data, bytes);
  return std::memcmp(&stored, &expected, sizeof(stored)) == 0;
}

}  // namespace weft::engine::cache
