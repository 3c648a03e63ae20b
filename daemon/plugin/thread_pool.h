// ThreadPool: the kernel threads of one worker. One call runs fn(ctx, part, parts) on `parts`
// threads at once and waits.
//
// Decode steps issue hundreds of tiny launches, so a call must cost microseconds: threads persist,
// work is split by part number (no queue, no stealing), nothing is allocated, and waiting spins
// briefly before it sleeps in a futex. Part 0 always runs on the caller; a pool of one thread has
// no threads at all. One thread calls run() at a time ([engine]). A second caller, or a call from
// inside fn, runs its parts one after the other on itself: correct, only slower.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace weft::plugin {

struct ThreadPoolOptions {
  uint32_t threads =
      1;  // including the caller; 0 is taken as 1, more than kThreadsMax as kThreadsMax
  // Thread i on the i-th CPU that this process may use; the first thread that calls run() becomes
  // thread 0 and keeps its CPU. Two threads that wait for each other otherwise tend to be woken on
  // one CPU and to stay there.
  bool pin = false;
  std::string name = "weft-k";  // thread names: name + number
};

// The CPUs that this process could use when it first asked, before any thread was pinned.
const std::vector<int>& process_cpus();

class ThreadPool {
 public:
  using Fn = void (*)(void* ctx, uint32_t part, uint32_t parts);
  static constexpr uint32_t kThreadsMax = 1024;

  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t threads() const { return threads_; }
  // parts 0 does nothing; parts above threads() is allowed: thread t runs parts t, t + threads(),
  // ...
  void run(Fn fn, void* ctx, uint32_t parts);

 private:
  // One cache line per thread, so that waking one does not disturb another.
  struct alignas(64) Seat {
    std::atomic<uint32_t> state{0};
  };

  void serve(uint32_t index);
  void run_share(uint32_t index) const;
  void wait_done();
  static void run_serial(Fn fn, void* ctx, uint32_t parts);

  uint32_t threads_ = 1;
  uint32_t spins_ = 0;
  bool pin_ = false;
  bool caller_pinned_ = false;  // written by the one thread that owns busy_
  std::unique_ptr<Seat[]> seats_;
  // The current job. Written by the caller before it hands out work, read by threads that were
  // given some.
  Fn fn_ = nullptr;
  void* ctx_ = nullptr;
  uint32_t parts_ = 0;
  alignas(64) std::atomic<uint32_t> pending_{
      0};  // threads still working; kCallerAsleep when the caller sleeps
  alignas(64) std::atomic<bool> busy_{false};
  std::vector<std::thread> workers_;
};

}  // namespace weft::plugin
