// RawClient: a blocking socket for tests that must send exactly these bytes and see exactly what
// comes back.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "loop/address.h"

namespace weft::test {

// Long enough that only a hang reaches it.
constexpr int kHangMs = 30'000;

class RawClient {
 public:
  explicit RawClient(const std::string& address, int receive_buffer = 0) {
    const Address a = std::move(parse_address(address)).value();
    fd_ = UniqueFd(socket(a.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_buffer > 0) {
      setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    const int rc = connect(fd_.get(), a.raw(), a.size);
    REQUIRE(rc == 0);
  }

  // False when the server closed before it took all.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Reads until `needle` has come (it and what follows stay in text()) or the end. True when found.
  bool read_until(std::string_view needle, size_t from = 0) {
    while (text_.find(needle, from) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  // Everything until the server closes.
  const std::string& read_all() {
    while (read_some()) {
    }
    return text_;
  }
  bool read_some(size_t max = 64 << 10) {
    pollfd p{fd_.get(), POLLIN, 0};
    const int ready = poll(&p, 1, kHangMs);
    REQUIRE_MESSAGE(ready == 1, "nothing came from the server; so far: " << text_.substr(0, 300));
    std::string buffer(max, '\0');
    const ssize_t n = recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (n <= 0) {
      reset_ = n < 0;
      return false;
    }
    text_.append(buffer, 0, static_cast<size_t>(n));
    return true;
  }
  void shutdown_write() { shutdown(fd_.get(), SHUT_WR); }
  void reset_connection() {  // RST instead of FIN
    const linger l{1, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &l, sizeof(l));
    fd_.reset();
  }
  void close() { fd_.reset(); }
  const std::string& text() const { return text_; }
  void clear() { text_.clear(); }
  bool was_reset() const { return reset_; }
  int status() const { return text_.size() < 12 ? 0 : std::stoi(text_.substr(9, 3)); }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::string text_;
  bool reset_ = false;
};

inline size_t count_of(std::string_view text, std::string_view needle) {
  size_t n = 0;
  for (size_t at = text.find(needle); at != std::string_view::npos;
       at = text.find(needle, at + needle.size()))
    ++n;
  return n;
}

}  // namespace weft::test
