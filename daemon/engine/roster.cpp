#include "engine/roster.h"

#include <algorithm>

namespace weft::engine {
namespace {

template <class List>
auto position(List& list, const Sequence* sequence) {
  return std::find_if(list.begin(), list.end(),
                      [&](const std::unique_ptr<Sequence>& s) { return s.get() == sequence; });
}

}  // namespace

Status Roster::enqueue(std::unique_ptr<Sequence> sequence) {
  if (by_id_.count(sequence->id()) != 0) {
    return make_error(ErrorCode::kInvalid, "request id {} is already in use", sequence->id());
  }
  const size_t most = size_t{limits_.max_waiting} + limits_.max_sequences;
  if (running_.size() + waiting_.size() >= most) {
    return make_error(ErrorCode::kUnavailable,
                      "{} requests are running and {} waiting, no more are taken: try again later",
                      running_.size(), waiting_.size());
  }
  const uint64_t bytes = sequence->length() * sizeof(int32_t) + sequence->request.bytes();
  if (!waiting_.empty() && waiting_bytes_ + bytes > limits_.max_waiting_bytes) {
    return make_error(ErrorCode::kUnavailable,
                      "the waiting requests hold {} bytes, the limit is {}: try again later",
                      waiting_bytes_, limits_.max_waiting_bytes);
  }
  sequence->waiting_bytes = bytes;
  waiting_bytes_ += bytes;
  by_id_.emplace(sequence->id(), sequence.get());
  waiting_.push_back(std::move(sequence));
  return {};
}

void Roster::admit(Sequence* sequence) {
  const auto at = position(waiting_, sequence);
  WEFT_CHECK(at != waiting_.end());
  waiting_bytes_ -= std::exchange(sequence->waiting_bytes, 0);
  running_.push_back(std::move(*at));
  waiting_.erase(at);
}

void Roster::put_back(Sequence* sequence) {
  const auto at = position(running_, sequence);
  WEFT_CHECK(at != running_.end());
  // Behind those that had begun before it; one that has not begun yet is behind all of them.
  const bool begun = sequence->admitted_us != 0;
  const auto before = [&](const Sequence& other) {
    if ((other.admitted_us != 0) != begun) return !begun;
    return other.order < sequence->order;
  };
  auto place = waiting_.begin();
  while (place != waiting_.end() && before(**place)) ++place;
  waiting_.insert(place, std::move(*at));
  running_.erase(at);
}

std::unique_ptr<Sequence> Roster::remove(uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  Sequence* sequence = found->second;
  by_id_.erase(found);
  std::unique_ptr<Sequence> out;
  if (const auto run = position(running_, sequence); run != running_.end()) {
    out = std::move(*run);
    running_.erase(run);
    return out;
  }
  const auto wait = position(waiting_, sequence);
  WEFT_CHECK(wait != waiting_.end());
  out = std::move(*wait);
  waiting_.erase(wait);
  waiting_bytes_ -= std::exchange(out->waiting_bytes, 0);
  return out;
}

Sequence* Roster::find(uint64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

std::vector<uint64_t> Roster::ids() const {
  std::vector<uint64_t> out;
  for (const auto& s : running_) out.push_back(s->id());
  for (const auto& s : waiting_) out.push_back(s->id());
  return out;
}

}  // namespace weft::engine
