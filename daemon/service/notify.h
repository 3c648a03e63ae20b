// Notifier: what weftd tells systemd (or nobody, when NOTIFY_SOCKET is unset). Loop thread.
//
// READY=1 waits until every deployment serves or can never serve; EXTEND_TIMEOUT_USEC is sent only
// while bytes actually advance, so a stuck load still runs into systemd's start timeout. The
// watchdog is fed by progress, never by a bare timer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace weft::service {

class Notifier {
 public:
  Notifier();  // reads the environment once

  bool enabled() const { return enabled_; }
  // Interval in which systemd expects WATCHDOG=1, 0 when there is no watchdog.
  uint64_t watchdog_interval_us() const { return watchdog_us_; }

  void ready();
  void status(std::string_view text);
  void watchdog();
  void extend_timeout(uint64_t usec);
  void stopping();

 private:
  void send(const std::string& message);
  bool enabled_ = false;
  uint64_t watchdog_us_ = 0;
  std::string last_status_;
};

// Listening sockets passed by systemd (socket activation), close-on-exec, in order. Empty without
// activation.
struct InheritedSocket {
  UniqueFd fd;
  std::string name;  // FileDescriptorName= of the socket unit
};
std::vector<InheritedSocket> take_inherited_sockets();

}  // namespace weft::service
