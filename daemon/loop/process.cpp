#include <sys/wait.h>

#include <cerrno>

#include "loop/loop.h"

namespace weft {

struct SignalWatch::State {
  uv_signal_t handle{};
  std::function<void()> fn;
};

Result<std::unique_ptr<SignalWatch>> SignalWatch::make(Loop& loop, int signal_number,
                                                       std::function<void()> fn) {
  std::unique_ptr<SignalWatch> watch(new SignalWatch());
  auto state = std::make_unique<State>();
  state->fn = std::move(fn);
  int rc = uv_signal_init(loop.raw(), &state->handle);
  if (rc != 0) {
    return make_error(ErrorCode::kIo, "cannot watch signal {}: {}", signal_number, uv_strerror(rc));
  }
  watch->state_ = state.release();
  watch->state_->handle.data = watch->state_;
  rc = uv_signal_start(
      &watch->state_->handle, [](uv_signal_t* h, int) { static_cast<State*>(h->data)->fn(); },
      signal_number);
  if (rc != 0) {
    return make_error(ErrorCode::kIo, "cannot watch signal {}: {}", signal_number, uv_strerror(rc));
  }
  return watch;
}

SignalWatch::~SignalWatch() {
  if (state_ == nullptr) return;
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->handle),
           [](uv_handle_t* h) { delete static_cast<State*>(h->data); });
}

Result<std::unique_ptr<ChildReaper>> ChildReaper::make(Loop& loop) {
  std::unique_ptr<ChildReaper> reaper(new ChildReaper(loop));
  ChildReaper* self = reaper.get();
  WEFT_ASSIGN(reaper->signal_, SignalWatch::make(loop, SIGCHLD, [self] { self->reap(); }));
  return reaper;
}

ChildReaper::~ChildReaper() { *alive_ = false; }

void ChildReaper::watch(pid_t pid, std::function<void(const ChildExit&)> fn) {
  children_.push_back({pid, std::move(fn)});
  // The child may be gone before we looked; its SIGCHLD then came too early.
  loop_.post([this, alive = alive_] {
    if (*alive) reap();
  });
}

void ChildReaper::reap() {
  const std::shared_ptr<bool> alive = alive_;  // a callback may destroy us
  size_t i = 0;
  while (*alive && i < children_.size()) {
    int status = 0;
    const pid_t got = waitpid(children_[i].pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) {
      ++i;
      continue;
    }
    ChildExit exit;
    exit.pid = children_[i].pid;
    if (got > 0 && WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
    // A pid that is not our child counts as one that failed: nobody can say more about it.
    exit.code = got < 0 ? 255 : (WIFEXITED(status) ? WEXITSTATUS(status) : 0);
    const auto fn = std::move(children_[i].fn);
    children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(i));
    fn(exit);
    i = 0;  // the callback may have changed the list
  }
}

}  // namespace weft
