// Who is running and who is waiting. Owns every sequence; knows no policy.
//
// Running ones are in order of admission. Waiting ones: those that were preempted first (oldest
// first), then the others in order of arrival. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/sequence.h"

namespace weft::engine {

struct RosterLimits {
  uint32_t max_sequences = 1;  // running at once
  uint32_t max_waiting = 1;
  uint64_t max_waiting_bytes = 0;
};

class Roster {
 public:
  explicit Roster(RosterLimits limits) : limits_(limits) {}

  // kUnavailable when the queue is full, kInvalid when the id is in use; the sequence is destroyed
  // then.
  Status enqueue(std::unique_ptr<Sequence> sequence);
  // Waiting becomes running, and back.
  void admit(Sequence* sequence);
  void put_back(Sequence* sequence);
  // Takes a sequence out, whatever it was doing. NULL when unknown.
  std::unique_ptr<Sequence> remove(uint64_t id);
  Sequence* find(uint64_t id) const;

  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  bool empty() const { return running_.empty() && waiting_.empty(); }
  std::vector<uint64_t> ids() const;  // running first

 private:
  const RosterLimits limits_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::unordered_map<uint64_t, Sequence*> by_id_;
  uint64_t waiting_bytes_ = 0;
};

}  // namespace weft::engine
