#include "engine/cache/copy_queue.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace weft::engine::cache {
namespace {

// Between two slices a cancelled task stops.
constexpr uint64_t kSliceBytes = 1u << 20;

uint64_t now_us() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

uint64_t CopyTask::bytes() const {
  uint64_t sum = 0;
  for (const CopyPart& p : parts) sum += p.bytes;
  return sum;
}

CopyQueue::CopyQueue(bool inline_copies) : inline_(inline_copies) {}

void CopyQueue::cancel_all() {
  for (const auto& task : pending_) task->cancel();
}

CopyQueue::~CopyQueue() {
  cancel_all();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CopyQueue::submit(std::shared_ptr<CopyTask> task) {
  pending_.push_back(task);
  if (inline_) return;
  // The thread exists only where there is a second tier.
  if (!thread_.joinable()) thread_ = std::thread([this] { main(); });
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(task.get());
  }
  wake_.notify_one();
}

void CopyQueue::poll() {
  if (inline_ && !pending_.empty() && !pending_.front()->over()) run(pending_.front().get());
  while (!pending_.empty() && pending_.front()->over()) {
    const std::shared_ptr<CopyTask> task = std::move(pending_.front());
    pending_.pop_front();
    const bool ok = task->ok_.load(std::memory_order_acquire);
    if (!ok && !task->cancelled_.load(std::memory_order_relaxed)) ++failures_;
    if (task->done) task->done(ok);
  }
}

void CopyQueue::wait(uint64_t us) {
  if (inline_ || pending_.empty()) return;
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, std::chrono::microseconds(us), [&] { return pending_.front()->over(); });
}

void CopyQueue::main() {
  ::pthread_setname_np(::pthread_self(), "cache-copy");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    CopyTask* task = queue_.front();
    queue_.pop_front();
    lock.unlock();
    run(task);  // its last act is to say that it is over: from then on the engine may destroy it
    lock.lock();
    ended_.notify_all();
  }
}

void CopyQueue::run(CopyTask* task) {
  const uint64_t begin = now_us();
  bool ok = true;
  for (CopyPart& part : task->parts) {
    ok = run_part(task, &part);
    if (part.blob != nullptr && ok) part.blob->ready.store(true, std::memory_order_release);
    if (ok) continue;
    // The other parts are as good as they were.
    if (part.blob != nullptr && !task->cancelled_.load(std::memory_order_relaxed)) {
      part.blob->broken.store(true, std::memory_order_relaxed);
    }
    break;
  }
  if (ok) {
    copied_bytes_.fetch_add(task->bytes(), std::memory_order_relaxed);
    copy_us_.fetch_add(now_us() - begin, std::memory_order_relaxed);
  }
  task->ok_.store(ok, std::memory_order_release);
  task->over_.store(true, std::memory_order_release);
}

bool CopyQueue::run_part(CopyTask* task, CopyPart* part) {
  if (task->cancelled_.load(std::memory_order_relaxed)) return false;
  switch (part->kind) {
    case CopyPart::Kind::kFromFile:
      return read_unit_file(part->path, part->to, part->bytes);
    case CopyPart::Kind::kToFile:
      return write_unit_file(part->path, part->from, part->bytes);
    case CopyPart::Kind::kMemory:
      break;
  }
  for (uint64_t at = 0; at < part->bytes; at += kSliceBytes) {
    if (task->cancelled_.load(std::memory_order_relaxed)) return false;
    std::memcpy(part->to + at, part->from + at, std::min(kSliceBytes, part->bytes - at));
  }
  return true;
}

}  // namespace weft::engine::cache
