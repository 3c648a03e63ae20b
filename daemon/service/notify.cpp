#include "service/notify.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>

namespace weft::service {

Notifier::Notifier() {
  enabled_ = ::secure_getenv("NOTIFY_SOCKET") != nullptr;
  uint64_t usec = 0;
  if (sd_watchdog_enabled(0, &usec) > 0) watchdog_us_ = usec;
}

void Notifier::send(const std::string& message) {
  if (enabled_) sd_notify(0, message.c_str());
}

void Notifier::ready() { send("READY=1"); }

void Notifier::status(std::string_view text) {
  if (text == last_status_) return;
  last_status_ = text;
  send(fmt::format("STATUS={}", text));
}

void Notifier::watchdog() { send("WATCHDOG=1"); }

void Notifier::extend_timeout(uint64_t usec) { send(fmt::format("EXTEND_TIMEOUT_USEC={}", usec)); }

void Notifier::stopping() { send("STOPPING=1"); }

std::vector<InheritedSocket> take_inherited_sockets() {
  std::vector<InheritedSocket> out;
  char** names = nullptr;
  const int n = sd_listen_fds_with_names(1, &names);
  for (int i = 0; i < n; ++i) {
    const int fd = SD_LISTEN_FDS_START + i;
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    out.push_back({UniqueFd(fd), names != nullptr && names[i] != nullptr ? names[i] : ""});
    if (names != nullptr) std::free(names[i]);
  }
  std::free(names);
  return out;
}

}  // namespace weft::service
