// Scheduler traces: a file with every view that a scheduler saw and the plan that was taken, for
// replay offline (weft-sim). A header, then records with length and checksum (trace_codec.h has
// their contents).
//
// TraceWriter belongs to the engine's planner and works in the engine thread: buffered, bounded in
// size, and a failed write ends the trace with one warning, never the engine. TraceReader takes
// files from anywhere and checks everything; any one thread.
#pragma once

#include <weft/scheduler.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/plan/trace_codec.h"

namespace weft::engine {

inline constexpr uint64_t kTraceBytesMax = 1ull << 30;
inline constexpr uint32_t kTraceRecordMax = 64u << 20;

class TraceWriter {
 public:
  // Starts a new file; one that is there becomes PATH.old. The trace ends before it exceeds
  // bytes_max.
  static Result<std::unique_ptr<TraceWriter>> open(const std::string& path,
                                                   std::string_view scheduler,
                                                   uint64_t bytes_max = kTraceBytesMax);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void append(const weft_sched_view& view, const weft_sched_plan& plan, uint64_t plan_ns,
              bool by_plugin);
  void flush();
  bool active() const { return fd_.valid(); }
  uint64_t records() const { return records_; }

 private:
  TraceWriter(std::string path, UniqueFd fd, uint64_t bytes_max);
  void stop(const std::string& why);

  const std::string path_;
  UniqueFd fd_;
  const uint64_t bytes_max_;
  TraceEncoder encoder_;
  std::string record_, buffer_;
  uint64_t bytes_ = 0, records_ = 0, flushed_ns_ = 0;
};

class TraceReader {
 public:
  static Result<std::unique_ptr<TraceReader>> open(const std::string& path);
  static Result<std::unique_ptr<TraceReader>> from_bytes(std::string bytes);

  // False at the end. kCorrupt names the record; what came before it is good.
  Result<bool> next(TraceRecord* out);
  const std::string& scheduler() const { return scheduler_; }
  uint64_t records() const { return records_; }  // read so far

 private:
  TraceReader() = default;
  Status read_header();

  std::string bytes_;
  size_t at_ = 0;
  uint64_t records_ = 0;
  std::string scheduler_;
  TraceDecoder decoder_;
};

}  // namespace weft::engine
