// weft-worker: the process around a WorkerServer. Started by weftd with one end of a socket pair;
// lives as long as the socket does and never longer than its parent.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/plan_report.h"
#include "engine/plugin_models.h"
#include "engine/worker_server.h"
#include "plugin/child_check.h"

namespace weft {
namespace {

constexpr int kExitUsage = 64;
constexpr std::string_view kUsage =
    "weft-worker: runs one model for weftd; not meant to be started by hand.\n"
    "  --fd N          connected stream socket inherited from weftd\n"
    "  --connect PATH  connect to this Unix socket instead (debugging)\n"
    "  --plan KEY=VALUE...  say as JSON what a model would need, for weftctl plan\n"
    "  --version       print the version\n"
    "Exit status: 0 the link was closed, 1 fault (a restart may help), 2 permanent fault, 3 bad "
    "link,\n"
    "64 usage.\n";

Result<UniqueFd> inherited(std::string_view text) {
  int fd = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fd);
  int type = 0;
  socklen_t size = sizeof(type);
  if (error != std::errc() || end != text.data() + text.size() || fd < 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
    return make_error(ErrorCode::kInvalid,
                      "--fd expects the number of a connected stream socket, got {}", text);
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(fd);
}

Result<UniqueFd> connected(const std::string& path) {
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return make_error(ErrorCode::kInvalid, "--connect expects a path of 1..{} bytes, got {}",
                      sizeof(address.sun_path) - 1, path.size());
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() ||
      ::connect(fd.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)) != 0) {
    return make_error(ErrorCode::kIo, "cannot connect to {}: {}", path, std::strerror(errno));
  }
  return fd;
}

// The parent decides when a worker ends, by closing the link: a SIGTERM that a service manager
// sends to the whole group must not cut streams that weftd is still draining.
void follow_parent() {
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) {
    ::signal(signal_number, SIG_IGN);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int usage(std::string_view message) {
  log_error("{}", message);
  fmt::print(stderr, "{}", kUsage);
  return kExitUsage;
}

int plan(int argc, char** argv) {
  wire::Configure configure;
  for (int i = 2; i < argc; ++i) {
    const Status read = engine::read_plan_setting(argv[i], &configure);
    if (!read.ok()) return usage(read.error().message);
  }
  engine::PluginModelSource source;
  const Result<std::string> report = engine::plan_report(configure, source);
  if (!report.ok()) {
    // The caller shows it; the log format would be noise there.
    fmt::print(stderr, "{}\n", report.error().message);
    return static_cast<int>(engine::WorkerExit::kFault);
  }
  fmt::print("{}\n", *report);
  return std::fflush(stdout) == 0 ? 0 : static_cast<int>(engine::WorkerExit::kFault);
}

int run(int argc, char** argv) {
  configure_log(LogLevel::kInfo, ::secure_getenv("JOURNAL_STREAM") != nullptr, "weft-worker");
  const std::string_view option = argc > 1 ? argv[1] : "";
  if (option == "--version" && argc == 2) {
    fmt::print("weft-worker {}\n", WEFT_VERSION);
    return 0;
  }
  if (option == "--plan") return plan(argc, argv);
  if (argc != 3 || (option != "--fd" && option != "--connect")) {
    return usage("expected --fd N or --connect PATH");
  }
  if (option == "--fd") follow_parent();
  Result<UniqueFd> socket = option == "--fd" ? inherited(argv[2]) : connected(argv[2]);
  if (!socket.ok()) {
    if (option == "--fd") return usage(socket.error().message);
    log_error("{}", socket.error().message);
    return static_cast<int>(engine::WorkerExit::kLink);
  }
  engine::PluginModelSource source;
  engine::WorkerOptions options;
  options.on_stuck = [] {
    log_error("the engine did not stop in time: ending the process");
    ::_exit(static_cast<int>(engine::WorkerExit::kFault));
  };
  engine::WorkerServer server(std::move(socket).value(), &source, options);
  return static_cast<int>(server.run());
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (const int status = weft::plugin::run_child_check_if_asked(argc, argv); status >= 0)
    return status;
  return weft::run(argc, argv);
}
