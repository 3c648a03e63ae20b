#include "service/notify.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <string>

#include "base/unique_fd.h"

using weft::service::Notifier;

namespace {

// Plays systemd: a datagram socket in a temp directory, named by NOTIFY_SOCKET.
class FakeManager {
 public:
  FakeManager() {
    char dir[] = "/tmp/weft-notify-XXXXXX";
    REQUIRE(mkdtemp(dir) != nullptr);
    dir_ = dir;
    path_ = dir_ + "/notify";
    fd_.reset(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un addr{};
    addr.sun_family = AF_UNIX;
    path_.copy(addr.sun_path, sizeof(addr.sun_path) - 1);
    REQUIRE(bind(fd_.get(), reinterpret_cast<sockaddr*>(&addr), sizeof(addr)) == 0);
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
    setenv("WATCHDOG_USEC", "4000000", 1);
    setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  }
  ~FakeManager() {
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    unlink(path_.c_str());
    rmdir(dir_.c_str());
  }
  std::string next() {
    char buffer[512];
    const ssize_t n = recv(fd_.get(), buffer, sizeof(buffer), 0);
    return n < 0 ? "" : std::string(buffer, static_cast<size_t>(n));
  }

 private:
  std::string dir_, path_;
  weft::UniqueFd fd_;
};

}  // namespace

TEST_CASE("without a service manager nothing is sent and nothing fails") {
  unsetenv("NOTIFY_SOCKET");
  Notifier n;
  CHECK(!n.enabled());
  CHECK(n.watchdog_interval_us() == 0);
  n.ready();
  n.status("x");
}

TEST_CASE("messages reach the manager; equal statuses are sent once") {
  FakeManager manager;
  Notifier n;
  CHECK(n.enabled());
  CHECK(n.watchdog_interval_us() == 4'000'000);
  n.status("loading 12%");
  n.status("loading 12%");
  n.extend_timeout(5'000'000);
  n.ready();
  n.watchdog();
  n.stopping();
  CHECK(manager.next() == "STATUS=loading 12%");
  CHECK(manager.next() == "EXTEND_TIMEOUT_USEC=5000000");
  CHECK(manager.next() == "READY=1");
  CHECK(manager.next() == "WATCHDOG=1");
  CHECK(manager.next() == "STOPPING=1");
  CHECK(manager.next() == "");
}
