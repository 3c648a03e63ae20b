#include "loop/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace weft {
namespace {

Error bad_address(std::string_view text, std::string_view why) {
  return make_error(ErrorCode::kInvalid,
                    "address \"{}\": {}; expected \"127.0.0.1:8000\", \"[::1]:8000\" or "
                    "\"unix:/path/to/socket\"",
                    text, why);
}

Result<Address> parse_unix(std::string_view text, std::string_view path) {
  Address out;
  auto* un = reinterpret_cast<sockaddr_un*>(&out.storage);
  if (path.empty() || path[0] != '/')
    return bad_address(text, "a Unix socket needs an absolute path");
  if (path.size() >= sizeof(un->sun_path)) {
    return bad_address(text, "the path is longer than the 107 bytes a Unix socket may have");
  }
  if (path.find('\0') != std::string_view::npos)
    return bad_address(text, "the path has a NUL byte");
  un->sun_family = AF_UNIX;
  std::memcpy(un->sun_path, path.data(), path.size());
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  out.unix_path = std::string(path);
  return out;
}

}  // namespace

Result<Address> parse_address(std::string_view text) {
  if (text.substr(0, 5) == "unix:") return parse_unix(text, text.substr(5));
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad_address(text, "no port");
  std::string host(text.substr(0, colon));
  const std::string_view digits = text.substr(colon + 1);
  unsigned port = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() ||
      port > 65535) {
    return bad_address(text, "the port is not a number from 0 to 65535");
  }
  if (host == "localhost") host = "127.0.0.1";
  Address out;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
    if (inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &in6->sin6_addr) != 1) {
      return bad_address(text, "not an IPv6 address");
    }
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(static_cast<uint16_t>(port));
    out.size = sizeof(sockaddr_in6);
    return out;
  }
  auto* in = reinterpret_cast<sockaddr_in*>(&out.storage);
  if (inet_pton(AF_INET, host.c_str(), &in->sin_addr) != 1) {
    return bad_address(text,
                       "not an IPv4 address (IPv6 goes in brackets, names are not looked up)");
  }
  in->sin_family = AF_INET;
  in->sin_port = htons(static_cast<uint16_t>(port));
  out.size = sizeof(sockaddr_in);
  return out;
}

std::string to_string(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.storage.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&address.storage);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
    return fmt::format("{}:{}", text, ntohs(in->sin_port));
  }
  if (address.storage.ss_family == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text));
    return fmt::format("[{}]:{}", text, ntohs(in6->sin6_port));
  }
  if (address.is_unix()) return "unix:" + address.unix_path;
  return "unknown";
}

Result<Address> bound_address(int fd) {
  Address out;
  out.size = sizeof(out.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&out.storage), &out.size) != 0) {
    return make_error(ErrorCode::kIo, "descriptor {} is not a socket: {}", fd, strerror(errno));
  }
  if (out.is_unix() && out.size > offsetof(sockaddr_un, sun_path)) {
    out.unix_path = reinterpret_cast<sockaddr_un*>(&out.storage)->sun_path;
  }
  return out;
}

namespace {

// A socket file is stale when nobody listens behind it.
Status remove_stale_socket(const Address& address) {
  struct stat st {};
  if (lstat(address.unix_path.c_str(), &st) != 0) return {};
  if (!S_ISSOCK(st.st_mode)) {
    return make_error(ErrorCode::kInvalid,
                      "{} exists and is not a socket; remove it or choose another path",
                      address.unix_path);
  }
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid())
    return make_error(ErrorCode::kIo, "cannot create a socket: {}", strerror(errno));
  if (connect(probe.get(), address.raw(), address.size) == 0 || errno != ECONNREFUSED) {
    return make_error(ErrorCode::kUnavailable,
                      "{} is in use by another process; stop it or choose another path",
                      address.unix_path);
  }
  unlink(address.unix_path.c_str());
  return {};
}

}  // namespace

Result<UniqueFd> bind_address(const Address& address, unsigned unix_mode) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return make_error(ErrorCode::kIo, "cannot create a socket: {}", strerror(errno));
  if (address.is_unix()) {
    WEFT_TRY(remove_stale_socket(address));
    fchmod(fd.get(), 0600);  // the file is born private; it opens up below, once it is ours
  } else {
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (bind(fd.get(), address.raw(), address.size) != 0) {
    const ErrorCode code = errno == EACCES ? ErrorCode::kPermission : ErrorCode::kIo;
    return make_error(code, "cannot bind {}: {}", to_string(address), strerror(errno));
  }
  if (address.is_unix() && chmod(address.unix_path.c_str(), unix_mode) != 0) {
    return make_error(ErrorCode::kIo, "cannot set the mode of {}: {}", address.unix_path,
                      strerror(errno));
  }
  return fd;
}

Peer peer_of(int fd) {
  Peer peer;
  Address address;
  address.size = sizeof(address.storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) {
    peer.address = "unknown";
    return peer;
  }
  peer.is_unix = address.is_unix();
  if (!peer.is_unix) {
    peer.address = to_string(address);
    return peer;
  }
  peer.address = "unix";
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    peer.pid = credentials.pid;
    peer.uid = credentials.uid;
    peer.gid = credentials.gid;
  }
  return peer;
}

}  // namespace weft
