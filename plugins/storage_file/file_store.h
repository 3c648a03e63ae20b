// FileStore: the submit/reap engine of storage_file. A fixed number of slots bounds everything that
// was accepted and not yet reaped; a few I/O threads take waiting slots in order and read them with
// plain pread.
//
// Ownership: the instance owns the store; the caller owns objects and destination memory and keeps
// both until the id is reaped. Threads: every function may be called from any thread, except
// start() and stop(), which the owner calls in turn. Every accepted id comes back exactly once,
// also when it was cancelled, was nonsense, or the store stopped.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/storage.h"

namespace storage_file {

inline constexpr uint32_t kThreadsDefault = 2;
inline constexpr uint32_t kThreadsMax = 64;
inline constexpr uint32_t kQueueDefault = 256;
inline constexpr uint32_t kQueueMax = 65536;
// One pread moves at most this much: far below the kernel's 2 GiB limit, and a cancel is noticed
// between two of them.
inline constexpr uint64_t kPieceBytes = 8u << 20;

struct StoreOptions {
  uint32_t threads = kThreadsDefault;
  uint32_t queue = kQueueDefault;
  // Tests put short reads, errors and gates here. Same contract as pread(2), errno included.
  std::function<ssize_t(int fd, void* dst, size_t len, off_t offset)> read;
};

class FileStore {
 public:
  explicit FileStore(StoreOptions options);
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  // Starts the I/O threads. On failure none is left running and `error` says why.
  bool start(std::string* error);
  // Takes no more work. Accepted work goes on.
  void close_intake();
  // Nothing is accepted and unreaped.
  bool idle() const;
  // Cancels what waits, interrupts what reads, joins the threads. Completions stay reapable. May be
  // called twice.
  void stop();

  uint32_t submit(const weft_io* ios, uint32_t n);
  uint32_t reap(weft_done* out, uint32_t max, uint64_t wait_ns);
  // False: no such id is waiting or being read (it may have finished).
  bool cancel(uint64_t id);

 private:
  struct Slot {
    weft_io io{};
    weft_done done{};
    std::atomic<bool> cancelled{
        false};  // written under mutex_, read by the reading thread without it
    bool reading = false;
  };
  // Fixed-capacity FIFO of slot numbers.
  class SlotQueue {
   public:
    explicit SlotQueue(uint32_t capacity) : ring_(capacity) {}
    bool empty() const { return count_ == 0; }
    uint32_t size() const { return count_; }
    void push(uint32_t slot) { ring_[(head_ + count_++) % ring_.size()] = slot; }
    uint32_t pop();
    uint32_t at(uint32_t i) const { return ring_[(head_ + i) % ring_.size()]; }
    void erase(uint32_t i);

   private:
    std::vector<uint32_t> ring_;
    size_t head_ = 0;
    uint32_t count_ = 0;
  };

  void thread_main(uint32_t number);
  void read_slot(Slot* slot) const;
  void finish(uint32_t slot);  // mutex_ held

  const StoreOptions options_;
  const std::unique_ptr<Slot[]> slots_;

  mutable std::mutex
      mutex_;  // guards everything below, and the slots except where Slot says otherwise
  std::condition_variable work_ready_;
  std::condition_variable done_ready_;
  SlotQueue free_;
  SlotQueue waiting_;
  SlotQueue done_;
  bool accepting_ = false;
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // touched by start() and stop() only
};

}  // namespace storage_file
