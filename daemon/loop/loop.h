// Loop: one libuv event loop and the rules around it. Everything that touches sockets, timers or
// requests in weftd runs on the thread that calls run(); other threads reach it only through post()
// and stop().
//
// Objects made on a loop (timers, streams, servers) must be destroyed before it, on its thread or
// after run() returned. libuv handles live on the heap and die in their close callback; ~Loop waits
// for those and checks that none is left.
#pragma once

#include <sys/types.h>
#include <uv.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"
#include "loop/task.h"

namespace weft {

// What the loop says about itself. A loop that waits for events still ticks; one that is stuck in a
// callback does not.
struct LoopHealth {
  uint64_t ticks = 0;
  uint64_t tick_age_ms =
      0;  // since the last tick; larger than a few periods = the loop thread is stuck
  uint64_t last_lag_ms = 0;   // how late the last tick was
  uint64_t worst_lag_ms = 0;  // since start
};

class Loop {
 public:
  static constexpr uint64_t kTickPeriodMs = 100;
  static constexpr size_t kReadBufferBytes = 64 << 10;

  static Result<std::unique_ptr<Loop>>
  make();  // also ignores SIGPIPE, process-wide: libuv writes without MSG_NOSIGNAL
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void run();            // until stop(); the calling thread becomes the loop thread
  void stop();           // any thread
  void post(Task task);  // any thread; runs on the loop thread, in order, never inside the caller
  LoopHealth health() const;    // any thread
  bool on_loop_thread() const;  // any thread
  uint64_t now_ms() const;      // monotonic, cached at the start of the loop iteration; loop thread

  uv_loop_t* raw() { return &loop_; }
  // All streams read into one buffer: libuv fills it and hands it over before anything else can
  // run.
  char* read_buffer() { return read_buffer_.get(); }

 private:
  Loop() = default;
  void run_posted();
  void tick();

  uv_loop_t loop_{};
  uv_async_t* wake_ = nullptr;
  uv_timer_t* heartbeat_ = nullptr;
  std::unique_ptr<char[]> read_buffer_;
  std::mutex mutex_;
  std::vector<Task> posted_;     // guarded by mutex_
  bool open_ = true;             // guarded by mutex_: wake_ may be used
  bool stop_requested_ = false;  // loop thread
  std::atomic<std::thread::id> thread_{};
  std::atomic<uint64_t> ticks_{
      0};  // the four below are written by the loop thread and only read elsewhere
  std::atomic<uint64_t> last_tick_ns_{0};
  std::atomic<uint64_t> last_lag_ms_{0};
  std::atomic<uint64_t> worst_lag_ms_{0};
};

// A timer that stops when it is destroyed. Loop thread. The callback may restart, stop or destroy
// its timer.
class Timer {
 public:
  explicit Timer(Loop& loop);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(uint64_t after_ms, std::function<void()> fn);   // once
  void repeat(uint64_t every_ms, std::function<void()> fn);  // until stopped
  void stop();
  bool active() const;

 private:
  struct State;
  State* state_;
};

// Calls `fn` on the loop thread at each delivery of `signal_number`.
class SignalWatch {
 public:
  static Result<std::unique_ptr<SignalWatch>> make(Loop& loop, int signal_number,
                                                   std::function<void()> fn);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  SignalWatch() = default;
  struct State;
  State* state_ = nullptr;
};

struct ChildExit {
  pid_t pid = 0;
  int code = 0;    // exit status when signal is 0
  int signal = 0;  // the signal that killed it
};

// Reaps the children it was told of, and only those. Loop thread; one per process is enough.
class ChildReaper {
 public:
  static Result<std::unique_ptr<ChildReaper>> make(Loop& loop);
  ~ChildReaper();
  // `fn` runs on the loop thread once the child is gone, also when it is gone already.
  void watch(pid_t pid, std::function<void(const ChildExit&)> fn);
  size_t watched() const { return children_.size(); }

 private:
  struct Child {
    pid_t pid;
    std::function<void(const ChildExit&)> fn;
  };
  explicit ChildReaper(Loop& loop) : loop_(loop) {}
  void reap();

  Loop& loop_;
  std::unique_ptr<SignalWatch> signal_;
  std::vector<Child> children_;
  std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // shared with posted closures that may outlive us
};

}  // namespace weft
