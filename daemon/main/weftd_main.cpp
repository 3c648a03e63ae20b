// weftd: reads its options, starts the daemon, runs it. See daemon.h.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "main/daemon.h"
#include "main/options.h"

namespace {

weft::LogLevel level_of(const std::string& name) {
  if (name == "error") return weft::LogLevel::kError;
  if (name == "warning") return weft::LogLevel::kWarning;
  if (name == "notice") return weft::LogLevel::kNotice;
  if (name == "debug") return weft::LogLevel::kDebug;
  return weft::LogLevel::kInfo;
}

// Sockets must not land on descriptors 0 to 2, where log lines go.
void open_standard_descriptors() {
  int fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::dup(fd);
  if (fd > STDERR_FILENO) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  weft::OptionsOutcome outcome = weft::parse_options(argc, argv);
  if (!outcome.run) {
    std::fputs(outcome.text.c_str(), outcome.exit_code == weft::kExitOk ? stdout : stderr);
    return outcome.exit_code;
  }
  const bool under_systemd = ::secure_getenv("JOURNAL_STREAM") != nullptr;
  weft::configure_log(level_of(outcome.options.config.daemon.log_level), under_systemd, "weftd");
  const bool direct = outcome.options.config_path.empty();
  weft::Daemon daemon(std::move(outcome.options.config), direct);
  if (const weft::Status started = daemon.start(); !started.ok()) {
    weft::log_error("{}", started.error().message);
    const bool configuration = started.error().code == weft::ErrorCode::kInvalid ||
                               started.error().code == weft::ErrorCode::kNotFound;
    return configuration ? weft::kExitConfig : weft::kExitFailure;
  }
  return daemon.run();
}
