// Addresses as the configuration writes them: "127.0.0.1:8000", "[::1]:8000", "localhost:8000",
// "unix:/run/weft.sock". No name is ever looked up here: a listener or a client that waits for DNS
// would block its thread.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace weft {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  std::string unix_path;  // empty for TCP

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_unix() const { return storage.ss_family == AF_UNIX; }
};

Result<Address> parse_address(std::string_view text);
std::string to_string(const Address& address);
Result<Address> bound_address(int fd);  // getsockname

// A bound socket that is ready for listen(). A stale Unix socket file is replaced, a live one is an
// error; the file gets `unix_mode`. The caller owns the file and removes it.
Result<UniqueFd> bind_address(const Address& address, unsigned unix_mode);

// Who is at the other end of a connected socket.
struct Peer {
  bool is_unix = false;
  std::string address;  // "10.0.0.5:51234", "[::1]:51234" or "unix"
  pid_t pid = 0;        // Unix only, from SO_PEERCRED, 0 otherwise
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
};
Peer peer_of(int fd);

}  // namespace weft
