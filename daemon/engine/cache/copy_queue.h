// Copies between cache units, host memory and files, off the engine thread.
//
// A task is a list of parts done in order by one thread; tasks are done first come, first served.
// The engine thread keeps everything a task touches alive until it has polled the task's end
// (handles of units, blobs), so the copy thread needs no locks on them: sources are shared units,
// which are never written, and targets are owned by the task's sequence, which does not run
// meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/cache/blob.h"

namespace weft::engine::cache {

struct CopyPart {
  enum class Kind : uint8_t { kMemory, kFromFile, kToFile };
  Kind kind = Kind::kMemory;
  const unsigned char* from = nullptr;  // kMemory, kToFile
  unsigned char* to = nullptr;          // kMemory, kFromFile
  uint64_t bytes = 0;
  std::string path;  // files
  BlobRef blob;      // written (saving) or read (loading): marked ready or broken
  BlobRef spilled;   // kToFile: whose bytes these are
};

class CopyTask {
 public:
  std::vector<CopyPart> parts;
  // Engine thread, from poll(). ok: every part was done.
  std::function<void(bool ok)> done;
  // Stops before the next slice. poll() still reports the end.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool over() const { return over_.load(std::memory_order_acquire); }
  bool ok() const { return ok_.load(std::memory_order_acquire); }
  uint64_t bytes() const;

 private:
  friend class CopyQueue;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> over_{false};
  std::atomic<bool> ok_{false};
};

class CopyQueue {
 public:
  // inline_copies: no thread; each poll() does one task (tests decide when copies happen).
  explicit CopyQueue(bool inline_copies = false);
  ~CopyQueue();  // ends after the task at hand; done() of unfinished tasks is never called
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  void submit(std::shared_ptr<CopyTask> task);
  void cancel_all();  // of what was submitted up to now
  // Runs `done` of the tasks that ended. Engine thread.
  void poll();
  // Waits until a task has ended or `us` microseconds have passed.
  void wait(uint64_t us);
  size_t pending() const { return pending_.size(); }
  uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }
  uint64_t copy_us() const { return copy_us_.load(std::memory_order_relaxed); }
  uint64_t failures() const { return failures_; }

 private:
  void main();
  void run(CopyTask* task);
  bool run_part(CopyTask* task, CopyPart* part);

  const bool inline_;
  std::deque<std::shared_ptr<CopyTask>> pending_;  // engine thread: submitted, end not yet polled
  std::atomic<uint64_t> copied_bytes_{0};
  std::atomic<uint64_t> copy_us_{0};
  uint64_t failures_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<CopyTask*> queue_;  // guarded by mutex_; owned by pending_
  bool stop_ = false;            // guarded by mutex_
  std::thread thread_;
};

// A unit's bytes in a file: a header with length and checksum before them.
bool write_unit_file(const std::string& path, const unsigned char* data, uint64_t bytes);
// False when the file is not exactly what was written.
bool read_unit_file(const std::string& path, unsigned char* data, uint64_t bytes);

}  // namespace weft::engine::cache
