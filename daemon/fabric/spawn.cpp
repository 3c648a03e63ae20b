#include "fabric/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace weft::fabric {
namespace {

constexpr int kWorkerFd = 3;

struct SpawnSettings {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  SpawnSettings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  void reset_signals() {
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
};

}  // namespace

Result<SpawnedWorker> spawn_worker(const std::string& program) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return make_error(ErrorCode::kIo, "cannot make a socket pair for a worker: {}",
                      std::strerror(errno));
  UniqueFd ours(pair[0]), theirs(pair[1]);
  // dup2 onto the same number would keep close-on-exec set on some systems: move the end out of the
  // way first.
  if (theirs.get() == kWorkerFd) theirs.reset(fcntl(theirs.get(), F_DUPFD_CLOEXEC, kWorkerFd + 1));
  if (ours.get() == kWorkerFd) ours.reset(fcntl(ours.get(), F_DUPFD_CLOEXEC, kWorkerFd + 1));
  if (!ours.valid() || !theirs.valid())
    return make_error(ErrorCode::kIo, "cannot move a descriptor for a worker: {}",
                      std::strerror(errno));

  SpawnSettings settings;
  settings.reset_signals();
  posix_spawn_file_actions_adddup2(&settings.actions, theirs.get(), kWorkerFd);
  const std::string fd_text = std::to_string(kWorkerFd);
  const char* argv[] = {program.c_str(), "--fd", fd_text.c_str(), nullptr};
  SpawnedWorker out;
  const int rc = posix_spawn(&out.pid, program.c_str(), &settings.actions, &settings.attributes,
                             const_cast<char* const*>(argv), environ);
  if (rc != 0)
    return make_error(ErrorCode::kIo,
                      "cannot start worker program {}: {} (is weft-worker installed beside weftd?)",
                      program, std::strerror(rc));
  out.link = std::move(ours);
  return out;
}

}  // namespace weft::fabric
