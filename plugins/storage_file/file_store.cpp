#include "file_store.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <limits>
#include <system_error>

#include "file_object.h"

namespace storage_file {
namespace {

// Longer waits are the same as "until something happens", and this one cannot overflow the clock.
constexpr uint64_t kWaitMaxNs = 24ull * 3600 * 1'000'000'000;

static_assert(kPieceBytes < (1ull << 30));

// WEFT_OK, or why this request can never be carried out.
weft_status check_io(const weft_io& io) {
  if (io.object == nullptr) return WEFT_E_ARG;
  if (io.mem != WEFT_MEM_HOST && io.mem != WEFT_MEM_PINNED) return WEFT_E_UNSUPPORTED;
  if (io.len > 0 && io.dst == nullptr) return WEFT_E_ARG;
  constexpr auto kOffsetMax = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  if (io.offset > kOffsetMax || io.len > kOffsetMax - io.offset) return WEFT_E_ARG;
  return WEFT_OK;
}

// Threads started while this lives have every signal blocked, so signals reach only the program's
// own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

StoreOptions with_defaults(StoreOptions options) {
  options.threads = std::clamp(options.threads, 1u, kThreadsMax);
  options.queue = std::clamp(options.queue, 1u, kQueueMax);
  if (!options.read)
    options.read = [](int fd, void* dst, size_t len, off_t offset) {
      return ::pread(fd, dst, len, offset);
    };
  return options;
}

}  // namespace

uint32_t FileStore::SlotQueue::pop() {
  const uint32_t slot = ring_[head_];
  head_ = (head_ + 1) % ring_.size();
  --count_;
  return slot;
}

void FileStore::SlotQueue::erase(uint32_t i) {
  for (; i + 1 < count_; ++i) ring_[(head_ + i) % ring_.size()] = at(i + 1);
  --count_;
}

FileStore::FileStore(StoreOptions options)
    : options_(with_defaults(std::move(options))),
      slots_(new Slot[options_.queue]),
      free_(options_.queue),
      waiting_(options_.queue),
      done_(options_.queue) {
  for (uint32_t i = 0; i < options_.queue; ++i) free_.push(i);
}

FileStore::~FileStore() { stop(); }

bool FileStore::start(std::string* error) {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = false;
  }
  try {
    const SignalsBlocked blocked;
    threads_.reserve(options_.threads);
    for (uint32_t i = 0; i < options_.threads; ++i)
      threads_.emplace_back([this, i] { thread_main(i); });
  } catch (const std::system_error& e) {
    *error = "cannot start I/O thread " + std::to_string(threads_.size()) + " of " +
             std::to_string(options_.threads) + ": " + e.what();
    stop();
    return false;
  }
  const std::lock_guard lock(mutex_);
  accepting_ = true;
  return true;
}

void FileStore::close_intake() {
  const std::lock_guard lock(mutex_);
  accepting_ = false;
}

bool FileStore::idle() const {
  const std::lock_guard lock(mutex_);
  return free_.size() == options_.queue;
}

void FileStore::stop() {
  {
    const std::lock_guard lock(mutex_);
    accepting_ = false;
    stopping_ = true;
    while (!waiting_.empty()) {
      const uint32_t slot = waiting_.pop();
      slots_[slot].done.status = WEFT_E_CANCELLED;
      finish(slot);
    }
    for (uint32_t i = 0; i < options_.queue; ++i)
      if (slots_[i].reading) slots_[i].cancelled.store(true, std::memory_order_relaxed);
  }
  work_ready_.notify_all();
  done_ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

uint32_t FileStore::submit(const weft_io* ios, uint32_t n) {
  uint32_t accepted = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!accepting_) return 0;
    for (; accepted < n && !free_.empty(); ++accepted) {
      const uint32_t slot = free_.pop();
      Slot& s = slots_[slot];
      s.io = ios[accepted];
      s.done = {s.io.id, 0, check_io(s.io), 0};
      s.cancelled.store(false, std::memory_order_relaxed);
      if (s.done.status == WEFT_OK)
        waiting_.push(slot);
      else
        finish(slot);
    }
  }
  if (accepted > 0) work_ready_.notify_all();
  return accepted;
}

uint32_t FileStore::reap(weft_done* out, uint32_t max, uint64_t wait_ns) {
  if (max == 0) return 0;
  std::unique_lock lock(mutex_);
  const auto wait = std::chrono::nanoseconds(std::min(wait_ns, kWaitMaxNs));
  if (done_.empty() && wait_ns > 0)
    done_ready_.wait_for(lock, wait, [this] { return !done_.empty() || stopping_; });
  uint32_t n = 0;
  while (n < max && !done_.empty()) {
    const uint32_t slot = done_.pop();
    out[n++] = slots_[slot].done;
    free_.push(slot);
  }
  return n;
}

bool FileStore::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < waiting_.size(); ++i) {
    const uint32_t slot = waiting_.at(i);
    if (slots_[slot].io.id != id) continue;
    waiting_.erase(i);
    slots_[slot].done.status = WEFT_E_CANCELLED;
    finish(slot);
    return true;
  }
  for (uint32_t i = 0; i < options_.queue; ++i) {
    if (!slots_[i].reading || slots_[i].io.id != id) continue;
    slots_[i].cancelled.store(true, std::memory_order_relaxed);
    return true;
  }
  return false;
}

void FileStore::finish(uint32_t slot) {
  done_.push(slot);
  done_ready_.notify_one();
}

void FileStore::thread_main(uint32_t number) {
  char name[16];
  std::snprintf(name, sizeof name, "weft-file-%u", number);
  pthread_setname_np(pthread_self(), name);
  std::unique_lock lock(mutex_);
  while (true) {
    work_ready_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;  // stop() has emptied waiting_
    const uint32_t slot = waiting_.pop();
    slots_[slot].reading = true;
    lock.unlock();
    read_slot(&slots_[slot]);
    lock.lock();
    slots_[slot].reading = false;
    finish(slot);
  }
}

void FileStore::read_slot(Slot* slot) const {
  const weft_io& io = slot->io;
  weft_done& done = slot->done;
  const int fd = reinterpret_cast<const FileObject*>(io.object)->fd();
  auto* dst = static_cast<unsigned char*>(io.dst);
  while (done.bytes < io.len) {
    if (slot->cancelled.load(std::memory_order_relaxed)) {
      done.status = WEFT_E_CANCELLED;
      return;
    }
    const size_t want = std::min(io.len - done.bytes, kPieceBytes);
    const ssize_t got =
        options_.read(fd, dst + done.bytes, want, static_cast<off_t>(io.offset + done.bytes));
    if (got > 0) {
      done.bytes += static_cast<uint64_t>(got);
    } else if (got == 0) {
      done.status = WEFT_E_CORRUPT;  // the file ends before offset + len
      return;
    } else if (errno != EINTR) {
      done.sys = errno;
      done.status = WEFT_E_IO;
      return;
    }
  }
}

}  // namespace storage_file
