#include "loop/lane.h"

#include <pthread.h>

#include <csignal>

namespace weft {

Lane::Lane(Loop& loop, LaneOptions options) : loop_(loop), options_(std::move(options)) {
  WEFT_CHECK(options_.threads > 0 && options_.queue_max > 0);
  // Signals belong to the loop thread: lanes are started with all of them blocked.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { work_loop(); });
    pthread_setname_np(threads_.back().native_handle(), options_.name.substr(0, 15).c_str());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Lane::~Lane() {
  std::deque<Job> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    dropped.swap(jobs_);
  }
  ready_.notify_all();
  for (std::thread& t : threads_) t.join();
}

bool Lane::run(Task work, Task then) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (jobs_.size() >= options_.queue_max) return false;
    jobs_.push_back({std::move(work), std::move(then)});
  }
  ready_.notify_one();
  return true;
}

bool Lane::full() const { return queued() >= options_.queue_max; }

size_t Lane::queued() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return jobs_.size();
}

void Lane::work_loop() {
  for (;;) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ready_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.work();
    // The work's captures go with the closure to the loop thread, where their owners live.
    loop_.post([job = std::move(job)]() mutable { job.then(); });
  }
}

}  // namespace weft
