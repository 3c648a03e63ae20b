// Lane: a few worker threads behind a bounded queue, for work that must not run on the loop thread.
// weftd has two: a fast one (tokenising, big JSON: milliseconds) and a slow one (disk, name
// lookups: seconds), so that slow work never delays fast work.
//
// Made, used and destroyed on the loop thread. `work` runs on a lane thread, `then` back on the
// loop thread. The destructor drops what has not started, waits for what has, and runs no `then`
// that was not posted yet.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "loop/loop.h"
#include "loop/task.h"

namespace weft {

struct LaneOptions {
  std::string name = "lane";  // thread name; 15 bytes are kept
  int threads = 1;
  size_t queue_max = 1024;  // jobs waiting for a thread
};

class Lane {
 public:
  Lane(Loop& loop, LaneOptions options);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // True when run() would refuse. Only the loop thread adds jobs, so the answer holds until it
  // does; ask first when the closures own something that must be answered (a responder).
  bool full() const;

  // False when the queue is full: both closures are dropped. Otherwise `then` runs on the loop.
  [[nodiscard]] bool run(Task work, Task then);

  // The same with a value: `then(work())`. R must be movable.
  template <class Work, class Then>
  [[nodiscard]] bool compute(Work work, Then then) {
    using R = std::invoke_result_t<Work&>;
    auto slot =
        std::make_shared<std::unique_ptr<R>>();  // shared: filled by the work, read by the then
    return run([slot, w = std::move(work)]() mutable { *slot = std::make_unique<R>(w()); },
               [slot, t = std::move(then)]() mutable { t(std::move(**slot)); });
  }

  size_t queued() const;  // any thread

 private:
  struct Job {
    Task work;
    Task then;
  };
  void work_loop();

  Loop& loop_;
  const LaneOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> jobs_;   // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace weft
