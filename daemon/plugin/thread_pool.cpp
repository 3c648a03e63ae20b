#include "plugin/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "plugin/thread_labels.h"

namespace weft::plugin {
namespace {

// Seat states. The caller moves any state to kWork; the thread moves kWork to kIdle and kIdle to
// kAsleep.
constexpr uint32_t kIdle = 0;
constexpr uint32_t kWork = 1;
constexpr uint32_t kAsleep = 2;
constexpr uint32_t kQuit = 3;

constexpr uint32_t kCallerAsleep = 1u << 31;

// About 20-50 microseconds of pause instructions: longer than the gap between two launches of one
// step, much shorter than a scheduler tick. Measured in iterations because reading a clock costs
// more than a pause.
constexpr uint32_t kSpins = 1000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  // Spurious returns are fine: every caller looks at the word again.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) cpus.push_back(i);
  return cpus;
}

void pin_to(pthread_t thread, uint32_t index) {
  const std::vector<int>& cpus = process_cpus();
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpus[index % cpus.size()]), &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
}

}  // namespace

const std::vector<int>& process_cpus() {
  static const std::vector<int> cpus = usable_cpus();
  return cpus;
}

ThreadPool::ThreadPool(const ThreadPoolOptions& options) {
  threads_ = std::clamp(options.threads, 1u, kThreadsMax);
  pin_ = options.pin;
  // With fewer CPUs than threads, spinning only keeps the thread that has the work from running.
  spins_ = process_cpus().size() >= threads_ ? kSpins : 0;
  seats_ = std::make_unique<Seat[]>(threads_);
  workers_.reserve(threads_ - 1);

  // Signals belong to the main thread: kernel threads are born with all of them blocked.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t i = 1; i < threads_; ++i) {
    workers_.emplace_back([this, i] { serve(i); });
    const pthread_t thread = workers_.back().native_handle();
    const std::string name = (options.name + std::to_string(i)).substr(0, 15);
    pthread_setname_np(thread, name.c_str());
    if (pin_) pin_to(thread, i);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadPool::~ThreadPool() {
  for (uint32_t i = 1; i < threads_; ++i) {
    if (seats_[i].state.exchange(kQuit, std::memory_order_acq_rel) == kAsleep)
      futex_wake(&seats_[i].state);
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(Fn fn, void* ctx, uint32_t parts) {
  if (parts <= 1 || threads_ == 1 || busy_.exchange(true, std::memory_order_acquire)) {
    run_serial(fn, ctx, parts);
    return;
  }
  if (pin_ && !caller_pinned_) {
    pin_to(pthread_self(), 0);
    caller_pinned_ = true;
  }
  fn_ = fn;
  ctx_ = ctx;
  parts_ = parts;
  const uint32_t helpers = std::min(parts, threads_) - 1;
  pending_.store(helpers, std::memory_order_relaxed);  // the exchanges below publish it
  for (uint32_t i = 1; i <= helpers; ++i) {
    if (seats_[i].state.exchange(kWork, std::memory_order_acq_rel) == kAsleep)
      futex_wake(&seats_[i].state);
  }
  run_share(0);
  wait_done();
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::run_serial(Fn fn, void* ctx, uint32_t parts) {
  const ThreadLabel label(WEFT_THREAD_KERNEL);
  for (uint32_t part = 0; part < parts; ++part) fn(ctx, part, parts);
}

void ThreadPool::run_share(uint32_t index) const {
  const ThreadLabel label(WEFT_THREAD_KERNEL);
  for (uint32_t part = index; part < parts_; part += threads_) fn_(ctx_, part, parts_);
}

void ThreadPool::wait_done() {
  for (uint32_t i = 0; i < spins_; ++i) {
    if (pending_.load(std::memory_order_acquire) == 0) return;
    pause_cpu();
  }
  uint32_t value = pending_.fetch_or(kCallerAsleep, std::memory_order_acq_rel) | kCallerAsleep;
  while (value != kCallerAsleep) {
    futex_wait(&pending_, value);
    value = pending_.load(std::memory_order_acquire);
  }
}

void ThreadPool::serve(uint32_t index) {
  std::atomic<uint32_t>& state = seats_[index].state;
  for (;;) {
    uint32_t seen = state.load(std::memory_order_acquire);
    for (uint32_t i = 0; seen == kIdle && i < spins_; ++i) {
      pause_cpu();
      seen = state.load(std::memory_order_acquire);
    }
    if (seen == kIdle && state.compare_exchange_strong(seen, kAsleep, std::memory_order_acq_rel))
      seen = kAsleep;
    while (seen == kAsleep) {
      futex_wait(&state, kAsleep);
      seen = state.load(std::memory_order_acquire);
    }
    if (seen == kQuit) return;
    if (seen != kWork) continue;
    run_share(index);
    // Idle before the count drops: once the caller sees 0 it may hand out the next job at once.
    state.store(kIdle, std::memory_order_release);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == (kCallerAsleep | 1u))
      futex_wake(&pending_);
  }
}

}  // namespace weft::plugin
