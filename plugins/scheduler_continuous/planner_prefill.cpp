// Prefill pieces and admissions of one band: those who come back from a preemption, those whose
// deadline is near, then the tenants by turns.
#include <algorithm>

#include "chunk.h"
#include "planner.h"
#include "preempt.h"

namespace scheduler_continuous {
namespace {

constexpr uint32_t kEnd = UINT32_MAX;  // of a queue
constexpr uint32_t kShort = 0, kRest = 1;
constexpr uint64_t kUrgentLead = 4;  // steps' worth of rows that an urgent tenant may be ahead

bool comes_back(const weft_seq& seq) {
  return (seq.flags & (WEFT_SEQ_PREEMPTED | WEFT_SEQ_SWAPPED)) != 0;
}

// The heap has the smallest key on top; equal keys go by order in the band.
constexpr auto later = [](const auto& a, const auto& b) {
  return a.key != b.key ? a.key > b.key : a.head > b.head;
};

}  // namespace

void Planner::plan_band(uint32_t band) {
  granted_.clear();
  open_ = 0;
  for (uint32_t i = order_.begin(band); i < order_.end(band); ++i)
    open_ += order_[i].open ? 1u : 0u;
  serve_resumed(band);
  serve_urgent(band);
  if (done()) return;
  queue_by_tenant(band);
  if (running_long_) serve_turns(true, prefill_rows_ / 2);
  serve_turns(false, INT64_MAX);
  give_back();
}

void Planner::serve_resumed(uint32_t band) {
  for (uint32_t i = order_.begin(band); i < order_.end(band) && !done(); ++i) {
    Candidate& candidate = order_[i];
    // One whose tenant would be above its share again waits for its tenant's turn: it may have had
    // to go for that.
    if (candidate.open && candidate.at >= view_->n_run && comes_back(seq_at(candidate.at)) &&
        within_share(candidate))
      serve(&candidate, INT64_MAX, open_ > 1);
  }
}

// Earliest deadline first. A tenant far ahead of the others waits for its turn all the same:
// deadlines order the work, they do not create a claim to more of it.
void Planner::serve_urgent(uint32_t band) {
  urgent_.clear();
  uint64_t behind = UINT64_MAX;
  for (uint32_t i = order_.begin(band); i < order_.end(band); ++i) {
    const Candidate& candidate = order_[i];
    if (!candidate.open) continue;
    behind = std::min(behind, tenants_.at(candidate.tenant).time);
    if (candidate.urgent) urgent_.push_back(i);
  }
  std::sort(urgent_.begin(), urgent_.end(), [&](uint32_t a, uint32_t b) {
    const uint64_t left = seq_at(order_[a].at).deadline_ns;
    const uint64_t right = seq_at(order_[b].at).deadline_ns;
    return left != right ? left < right : a < b;
  });
  for (const uint32_t i : urgent_) {
    if (done()) return;
    const Tenant& tenant = tenants_.at(order_[i].tenant);
    const uint64_t lead = kUrgentLead * view_->token_budget * TenantTable::kScale / tenant.weight;
    if (tenant.time <= behind + lead) serve(&order_[i], INT64_MAX, false);
  }
}

// Two queues for each tenant, both in order: short prompts that have no long waiting one of their
// tenant before them, and the rest.
void Planner::queue_by_tenant(uint32_t band) {
  in_band_.clear();
  running_long_ = false;
  first_long_ = UINT64_MAX;
  const uint32_t stamp = order_.bands() + 1 + band;
  for (uint32_t i = order_.begin(band); i < order_.end(band); ++i) {
    Candidate& candidate = order_[i];
    if (!candidate.open) continue;
    Tenant& tenant = tenants_.at(candidate.tenant);
    if (tenant.band != stamp) {
      tenant.band = stamp;
      tenant.head[kShort] = tenant.head[kRest] = kEnd;
      tenant.ahead = 0;  // here: a long prompt of the tenant waits
      in_band_.push_back(candidate.tenant);
    }
    const weft_seq& seq = seq_at(candidate.at);
    const bool runs = candidate.at < view_->n_run;
    const bool is_long = tokens_left(seq) > options_.short_prompt;
    if (is_long && runs) running_long_ = true;
    if (is_long && !runs) {
      tenant.ahead = 1;
      first_long_ = std::min(first_long_, tenant.time);
    }
    const uint32_t queue = is_long || tenant.ahead != 0 ? kRest : kShort;
    candidate.next = kEnd;
    if (tenant.head[queue] == kEnd) {
      tenant.head[queue] = i;
    } else {
      order_[tenant.tail[queue]].next = i;
    }
    tenant.tail[queue] = i;
  }
}

// The key is the tenant's virtual time; one whose prompt has begun keeps the turn for a quantum, so
// that two tenants' prompts are computed one after the other rather than both slowly.
void Planner::push_turn(uint32_t index, bool short_lane) {
  const Tenant& tenant = tenants_.at(index);
  const uint32_t head =
      short_lane ? tenant.head[kShort] : std::min(tenant.head[kShort], tenant.head[kRest]);
  if (head == kEnd) return;
  uint64_t key = tenant.time;
  if (!short_lane && order_[head].at < view_->n_run)
    key -= std::min(key, options_.quantum * TenantTable::kScale / tenant.weight);
  turns_.push_back({key, head, index});
  std::push_heap(turns_.begin(), turns_.end(), later);
}

// The short lane takes only from prompts that have begun: a waiting long one keeps its turn.
void Planner::serve_turns(bool short_lane, int64_t lane_rows) {
  turns_.clear();
  for (const uint32_t tenant : in_band_) push_turn(tenant, short_lane);
  while (!turns_.empty() && !done() && lane_rows > 0) {
    std::pop_heap(turns_.begin(), turns_.end(), later);
    const Turn turn = turns_.back();
    turns_.pop_back();
    Candidate& candidate = order_[turn.head];
    if (short_lane && turn.key > first_long_ && candidate.at >= view_->n_run) continue;
    Tenant& tenant = tenants_.at(turn.tenant);
    tenant.head[tenant.head[kShort] == turn.head ? kShort : kRest] = candidate.next;
    // Who else should not have to wait until a long prompt is through: the same tenant's others,
    // and tenants that have received about as much.
    const bool leave =
        std::min(tenant.head[kShort], tenant.head[kRest]) != kEnd ||
        (!turns_.empty() &&
         turns_.front().key <= turn.key + options_.quantum * TenantTable::kScale / tenant.weight);
    const int64_t before = prefill_rows_;
    serve(&candidate, lane_rows, leave);
    lane_rows -= std::max<int64_t>(before - prefill_rows_, 0);
    push_turn(turn.tenant, short_lane);
  }
}

// Rows that nobody behind could use go to those who left them, in the order of their turns.
void Planner::give_back() {
  for (const Candidate& candidate : granted_) {
    if (prefill_rows_ <= 0) return;
    const uint32_t had = rows_[candidate.at];
    if (had == 0) continue;  // preempted meanwhile
    const weft_seq& seq = seq_at(candidate.at);
    const uint64_t from = static_cast<uint64_t>(seq.context) + had;
    const uint64_t end = end_of_piece(seq, from, had + prefill_rows_);
    if (end <= from) continue;
    budget_.take(seq, from, end);
    grant(candidate, end - from);
  }
}

// Where a piece of at most `rows` rows ends that finds its units; seq.context when there is none.
// from: as far as the units are taken already, 0 = not at all.
uint64_t Planner::end_of_piece(const weft_seq& seq, uint64_t from, int64_t rows) const {
  if (options_.prefill_chunk != 0) rows = std::min<int64_t>(rows, options_.prefill_chunk);
  const uint32_t grain = std::max(view_->chunk_grain, 1u);
  const uint64_t last = std::max<uint64_t>(seq.known, seq.context + 1ull);
  const uint64_t limit = std::min(seq.context + static_cast<uint64_t>(rows), last);
  uint64_t end = piece_end(seq, limit, grain);
  const uint64_t reach = budget_.reach(seq, from, end);
  if (reach < end) end = reach > seq.context ? piece_end(seq, reach, grain) : seq.context;
  return end;
}

void Planner::grant(const Candidate& candidate, uint64_t rows) {
  rows_[candidate.at] += static_cast<uint32_t>(rows);
  prefill_rows_ -= static_cast<int64_t>(rows);
  budget_.rows -= static_cast<int64_t>(rows);
  tenants_.charge(candidate.tenant, rows);
}

void Planner::serve(Candidate* candidate, int64_t cap, bool leave) {
  candidate->open = false;
  --open_;
  // A long prompt leaves a quarter to those behind it, when that is enough to be of use.
  int64_t rows = prefill_rows_;
  const bool is_long = tokens_left(seq_at(candidate->at)) > options_.short_prompt;
  if (leave && is_long && rows / 4 >= options_.min_prefill) rows -= rows / 4;
  rows = std::min(rows, cap);
  if (candidate->at < view_->n_run) {
    serve_running(*candidate, rows);
  } else {
    serve_waiting(*candidate, rows);
  }
}

void Planner::serve_running(const Candidate& candidate, int64_t cap) {
  const weft_seq& seq = seq_at(candidate.at);
  if (gone_[candidate.at] != 0) return;
  const uint64_t end = end_of_piece(seq, 0, cap);
  if (end <= seq.context) return;
  const uint64_t rows = end - seq.context;
  // Crumbs at the end of a step are not worth a piece.
  if (!granted_.empty() && rows < options_.min_prefill && end < seq.known && end != seq.boundary)
    return;
  budget_.take(seq, 0, end);
  --budget_.seqs;
  grant(candidate, rows);
  granted_.push_back(candidate);
}

void Planner::serve_waiting(const Candidate& candidate, int64_t cap) {
  const weft_seq& seq = seq_at(candidate.at);
  bool skip = false;
  if (closed_ && (budget_.alive > 0 || !preempted_.empty())) return;
  if (!admissible(candidate, &skip)) {
    if (!skip) closed_ = true;  // nobody overtakes: else large requests would never find room
    return;
  }
  uint64_t end = seq.context;
  if (seq.restore_ns == 0) {
    if (seq.rows_max == 0) return;
    end = end_of_piece(seq, 0, cap);
    if (end <= seq.context) return;
  }
  Tenant& tenant = tenants_.at(candidate.tenant);
  ++tenant.places;
  for (uint32_t g = 0; g < budget_.groups(); ++g)
    tenant.units[g] += static_cast<uint64_t>(budget_.missing(seq, g, seq.known));
  budget_.admit(seq, end);
  admitted_.push_back(candidate.at - view_->n_run);
  grant(candidate, end - seq.context);
  if (end > seq.context) granted_.push_back(candidate);
}

// skip: this one cannot come in, but those behind it may.
bool Planner::admissible(const Candidate& candidate, bool* skip) {
  const weft_seq& seq = seq_at(candidate.at);
  const bool alone = budget_.alive == 0;
  const uint64_t waited = view_->now_ns > seq.queued_ns ? view_->now_ns - seq.queued_ns : 0;
  const bool patient = options_.max_wait_ns == 0 || waited < options_.max_wait_ns;
  // Somebody is computing its prefix: waiting for that is cheaper than doing it again.
  *skip = (seq.promised > seq.context + 127ull && !alone && patient) || !budget_.possible(seq);
  if (*skip) return false;
  uint32_t percent = 0;
  if (tenants_.size() > 1 && !alone && tenants_.above_share(candidate.tenant, *view_)) {
    percent = options_.tenant_reserve;
    const int64_t kept = (static_cast<int64_t>(view_->run_budget) * percent + 99) / 100;
    *skip = budget_.places <= kept || !budget_.admissible(seq, percent);
    if (*skip && budget_.places > 0 && budget_.admissible(seq, 0)) return false;
    *skip = false;
  }
  if (budget_.places > 0 && budget_.admissible(seq, 0)) return true;
  if (alone) *skip = true;
  if (!alone) make_way(candidate);
  return false;
}

bool Planner::within_share(const Candidate& candidate) {
  if (tenants_.size() <= 1) return true;
  const weft_seq& seq = seq_at(candidate.at);
  bool above = tenants_.above_places(candidate.tenant, *view_, 1);
  for (uint32_t g = 0; g < budget_.groups(); ++g) {
    const uint64_t units = static_cast<uint64_t>(budget_.missing(seq, g, seq.known));
    above = above || tenants_.above_units(candidate.tenant, *view_, g, units);
  }
  return !above;
}

// May `other` be preempted for `seq`: it is of a lower band, or (fair) its tenant holds more than
// its share of what seq lacks; and it has had its time, or has hardly begun.
bool Planner::may_lose(const weft_seq& other, const weft_seq& seq, bool fair) {
  const bool early =
      other.output == 0 && other.preemptions == 0 && other.context <= other.known / 2;
  if ((other.fresh < kSettled && !early) || other.priority > seq.priority) return false;
  const bool lower = other.priority < seq.priority;
  // Each time costs work: nobody goes for a band more than twice, for another tenant more than
  // once.
  if (other.preemptions >= (lower ? 2u : 1u) || (!lower && !fair)) return false;
  const uint32_t tenant = lower ? 0 : tenants_.slot(other);
  bool lacks_units = false;
  for (uint32_t g = 0; g < budget_.groups(); ++g) {
    if (budget_.shortage(seq, g, 0) <= 0) continue;
    lacks_units = true;
    if (Budget::gain(other, g) > 0 && (lower || tenants_.above_units(tenant, *view_, g, 0)))
      return true;
  }
  return !lacks_units && budget_.places <= 0 && (lower || tenants_.above_places(tenant, *view_, 0));
}

// A running sequence of a lower band, or of a tenant above its share when this one's is not, gives
// its place to a waiting one, which comes in with the next step. At most one in a step, and only
// when all that may go would be enough. Not together with admissions: what a waiting sequence finds
// in the cache may be the victim's.
void Planner::make_way(const Candidate& candidate) {
  const weft_seq& seq = seq_at(candidate.at);
  if (!preempted_.empty() || !admitted_.empty()) return;
  const bool fair = tenants_.size() > 1 && within_share(candidate);
  const auto useful = [&](const weft_seq& other) { return may_lose(other, seq, fair); };
  int64_t gains[WEFT_CACHE_GROUPS_MAX] = {};
  for (uint32_t i = 0; i < view_->n_run; ++i) {
    const weft_seq& other = view_->run[i];
    if (gone_[i] != 0 || !may_go(other) || !useful(other)) continue;
    for (uint32_t g = 0; g < budget_.groups(); ++g) gains[g] += Budget::gain(other, g);
  }
  for (uint32_t g = 0; g < budget_.groups(); ++g)
    if (budget_.shortage(seq, g, 0) > gains[g]) return;
  const uint32_t victim = pick_victim(*view_, gone_, seq.priority, true, useful);
  if (victim != kNobody) preempt(victim);
}

}  // namespace scheduler_continuous
