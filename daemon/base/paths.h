// Where programs of weft find each other. Pure functions over the environment; any thread.
#pragma once

#include <string>
#include <vector>

namespace weft {

// Directory of the running executable.
std::string executable_dir();

// Places where a daemon without a configured control socket puts it, in the order in which weftctl
// looks: $WEFT_SOCKET, /run/weft/weft.sock, $XDG_RUNTIME_DIR/weft/weft.sock,
// /tmp/weft-UID/weft.sock.
std::vector<std::string> control_socket_candidates();
// First candidate whose directory exists or can be made with mode 0700 by this user. For the
// daemon.
std::string writable_control_socket();
// First candidate that exists as a socket, else the first candidate. For clients.
std::string existing_control_socket();

}  // namespace weft
