#include "order.h"

#include <algorithm>
#include <functional>

#include "chunk.h"

namespace scheduler_continuous {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kFewBands = 16;

uint64_t waited_ns(const weft_sched_view& view, const weft_seq& seq) {
  const uint64_t since = seq.queued_ns != 0 ? seq.queued_ns : seq.arrive_ns;
  return view.now_ns > since ? view.now_ns - since : 0;
}

}  // namespace

void Order::load(const weft_sched_view& view, const std::vector<uint8_t>& gone,
                 TenantTable* tenants, const Outlook& outlook, const Options& options) {
  view_ = &view;
  options_ = &options;
  drops_.clear();
  find_priorities();
  place(gone, tenants);
  uint64_t first = 0;  // tokens ahead of the whole band
  for (uint32_t i = 0; i < view.n_run; ++i)
    if (gone[i] == 0) first += tokens_left(view.run[i]);
  for (uint32_t band = 0; band < bands(); ++band) judge(band, &first, tenants, outlook);
}

// Usually a handful of values, found by looking; many are sorted.
void Order::find_priorities() {
  priorities_.clear();
  bool few = true;
  const auto add = [&](int32_t priority) {
    if (!priorities_.empty() && priorities_.back() == priority) return;
    if (few && std::find(priorities_.begin(), priorities_.end(), priority) != priorities_.end())
      return;
    priorities_.push_back(priority);
    few = priorities_.size() <= kFewBands;
  };
  for (uint32_t i = 0; i < view_->n_run; ++i)
    if (!is_decode(view_->run[i])) add(view_->run[i].priority);
  for (uint32_t i = 0; i < view_->n_wait; ++i) add(view_->wait[i].priority);
  std::sort(priorities_.begin(), priorities_.end(), std::greater<>());
  priorities_.erase(std::unique(priorities_.begin(), priorities_.end()), priorities_.end());
}

uint32_t Order::band_of(const weft_seq& seq) const {
  const auto at =
      std::lower_bound(priorities_.begin(), priorities_.end(), seq.priority, std::greater<>());
  const uint64_t band = static_cast<uint64_t>(at - priorities_.begin());
  if (band == 0 || options_->max_wait_ns == 0) return static_cast<uint32_t>(band);
  const uint64_t up = waited_ns(*view_, seq) / options_->max_wait_ns;
  return static_cast<uint32_t>(band - std::min(band, up));
}

bool Order::wanted(uint32_t i, const std::vector<uint8_t>& gone) const {
  const weft_seq& seq = view_->run[i];
  return gone[i] == 0 && !is_decode(seq) && seq.rows_max > 0 && (seq.flags & WEFT_SEQ_LOADING) == 0;
}

// A counting sort: one pass counts the bands, one puts the candidates in place.
void Order::place(const std::vector<uint8_t>& gone, TenantTable* tenants) {
  const uint32_t n_run = view_->n_run, n = n_run + view_->n_wait;
  band_.assign(n, kNone);
  ends_.assign(priorities_.size(), 0);
  for (uint32_t i = 0; i < n; ++i) {
    if (i < n_run && !wanted(i, gone)) continue;
    const weft_seq& seq = i < n_run ? view_->run[i] : view_->wait[i - n_run];
    band_[i] = band_of(seq);
    ++ends_[band_[i]];
  }
  uint32_t sum = 0;
  for (uint32_t& end : ends_) {
    const uint32_t count = end;
    end = sum;  // the beginning for now; placing the candidates moves it to the end
    sum += count;
  }
  candidates_.resize(sum);
  for (uint32_t i = 0; i < n; ++i) {
    if (band_[i] == kNone) continue;
    const weft_seq& seq = i < n_run ? view_->run[i] : view_->wait[i - n_run];
    Candidate candidate;
    candidate.at = i;
    candidate.tenant = tenants->slot(seq);
    candidates_[ends_[band_[i]]++] = candidate;
  }
}

void Order::judge(uint32_t band, uint64_t* first, TenantTable* tenants, const Outlook& outlook) {
  uint64_t in_band = 0;
  const uint64_t now = view_->now_ns, weights = tenants->weights();
  for (uint32_t i = begin(band); i < end(band); ++i) {
    Candidate& candidate = candidates_[i];
    const bool waits = candidate.at >= view_->n_run;
    const weft_seq& seq =
        waits ? view_->wait[candidate.at - view_->n_run] : view_->run[candidate.at];
    const bool begun = seq.output > 0 || (seq.flags & WEFT_SEQ_PREEMPTED) != 0;
    Tenant& tenant = tenants->at(candidate.tenant);
    if (tenant.band != band + 1) {
      tenant.band = band + 1;
      tenant.ahead = 0;
    }
    const uint64_t tokens = tokens_wanted(seq);
    const bool sheddable = waits && !begun && (seq.flags & WEFT_SEQ_SHEDDABLE) != 0;
    if (!begun && (seq.deadline_ns != 0 || sheddable)) {
      const uint64_t turn = (tenant.ahead + tokens) * weights / tenant.weight;
      const uint64_t ahead = waits ? *first + std::min(in_band, turn) : 0;
      const uint64_t own = outlook.ns_for(tokens);
      const uint64_t wait = outlook.ns_for(ahead) + seq.restore_ns;
      const bool dated = seq.deadline_ns != 0;
      const bool late = waits && dated && seq.deadline_ns < now && options_->drop_late;
      const bool hopeless = sheddable && dated && now + wait + own > seq.deadline_ns;
      const bool overdue = sheddable && options_->max_queue_ns != 0 &&
                           waited_ns(*view_, seq) + wait > options_->max_queue_ns;
      if (late || hopeless || overdue) {
        candidate.open = false;
        drops_.push_back(candidate.at - view_->n_run);
        continue;
      }
      candidate.urgent = dated && (!outlook.known() ||
                                   now + wait + 2 * own + outlook.step_ns() >= seq.deadline_ns);
    }
    if (!waits) continue;
    in_band += tokens;
    tenant.ahead += tokens;
  }
  *first += in_band;
}

}  // namespace scheduler_continuous
