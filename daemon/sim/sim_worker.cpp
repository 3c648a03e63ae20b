#include "sim/sim_worker.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::sim {
namespace {

constexpr uint32_t kIdlePlansMax = 100'000;  // in a row, with work: the policy stands still
constexpr uint64_t kIdleStepNs = 1'000'000;  // how long an empty step lasts
constexpr uint64_t kNsPerUs = 1000;
constexpr double kNsPerMs = 1e6;

uint32_t pages_of(uint64_t tokens, uint32_t unit) {
  return static_cast<uint32_t>((tokens + unit - 1) / unit);
}

double ms(uint64_t ns) { return static_cast<double>(ns) / kNsPerMs; }

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(q * static_cast<double>(values.size())) - 1;
  return values[static_cast<size_t>(std::max(0.0, rank))];
}

TenantReport SimReport::total() const {
  TenantReport out;
  for (const auto& [tenant, t] : tenants) {
    out.finished += t.finished;
    out.dropped += t.dropped;
    out.refused += t.refused;
    out.preemptions += t.preemptions;
    out.swaps += t.swaps;
    out.prompt_tokens += t.prompt_tokens;
    out.cached_tokens += t.cached_tokens;
    out.output_tokens += t.output_tokens;
    out.computed_rows += t.computed_rows;
    out.late_first_tokens += t.late_first_tokens;
    out.ttft_ms.insert(out.ttft_ms.end(), t.ttft_ms.begin(), t.ttft_ms.end());
    out.itl_ms.insert(out.itl_ms.end(), t.itl_ms.begin(), t.itl_ms.end());
    out.total_ms.insert(out.total_ms.end(), t.total_ms.begin(), t.total_ms.end());
  }
  return out;
}

SimWorker::SimWorker(const SimOptions& options, engine::Planner* planner)
    : options_(options),
      planner_(planner),
      blocks_(options.cached_blocks),
      swap_free_(options.swap_bytes),
      free_pages_(options.pages),
      free_states_(options.states) {
  WEFT_CHECK(options_.page_tokens >= 1 && options_.token_budget >= 1 && options_.seq_budget >= 1);
}

void SimWorker::add(SimRequest request) {
  auto s = std::make_unique<Sequence>();
  s->seq.id = request.id;
  s->seq.arrive_ns = std::max(request.arrive_ns, now_ns_);
  s->seq.deadline_ns = request.deadline_ns > 0 ? s->seq.arrive_ns + request.deadline_ns : 0;
  s->seq.weight = std::max(1u, request.weight);
  s->seq.priority = request.priority;
  request.prompt = std::max(1u, request.prompt);
  request.output = std::max(1u, request.output);
  s->seq.prompt = s->seq.known = request.prompt;
  s->seq.output_max = std::max(request.output_max, request.output);
  if (request.sheddable) s->seq.flags |= WEFT_SEQ_SHEDDABLE;
  s->request = std::move(request);
  const uint64_t at = s->seq.arrive_ns;
  arrivals_.emplace(at, std::move(s));
}

void SimWorker::run(uint64_t until_ns) {
  while (now_ns_ < until_ns && step()) {
  }
}

bool SimWorker::step() {
  take_arrivals();
  if (run_.empty() && waiting() == 0) return leap();
  const weft_sched_view& view = make_view();
  const weft_sched_plan& plan = planner_->plan(view);
  report_.plan_us.push_back(static_cast<double>(planner_->last_plan_ns()) / 1000);
  if (on_plan) on_plan(view, plan);
  const bool acts = plan.n_run + plan.n_admit + plan.n_drop > 0;
  apply(plan);
  ++step_number_;
  if (!shares_.empty()) {
    idle_plans_ = 0;
    const uint64_t took = run_shares();
    ++report_.steps;
    report_.step_ms.push_back(ms(took));
    report_.end_ns = now_ns_;
    return true;
  }
  ++report_.empty_steps;
  if (acts) return true;  // something was dropped or starts to load
  if (++idle_plans_ < kIdlePlansMax) return leap();
  report_.problem = fmt::format("{} plans in a row ran nothing, with {} running and {} waiting",
                                kIdlePlansMax, run_.size(), waiting());
  return false;
}

// To the next arrival or end of a copy; a little further when there is none, since a policy may
// wait for time to pass.
bool SimWorker::leap() {
  uint64_t next = UINT64_MAX;
  if (!arrivals_.empty()) next = arrivals_.begin()->first;
  for (const Owned& s : run_) {
    if (s->loaded_at_ns > now_ns_) next = std::min(next, s->loaded_at_ns);
  }
  if (!run_.empty() || waiting() > 0) next = std::min(next, now_ns_ + kIdleStepNs);
  if (next == UINT64_MAX) return false;
  now_ns_ = std::max(now_ns_, next);
  return true;
}

void SimWorker::take_arrivals() {
  while (!arrivals_.empty() && arrivals_.begin()->first <= now_ns_) {
    Owned s = std::move(arrivals_.begin()->second);
    arrivals_.erase(arrivals_.begin());
    queue(std::move(s));
  }
}

void SimWorker::queue(Owned s) {
  const uint64_t longest = uint64_t{s->request.prompt} + s->request.output;
  const bool fits = pages_of(longest, options_.page_tokens) <= options_.pages;
  if (!fits || waiting() >= options_.max_waiting) return end(std::move(s), SimOutcome::kRefused);
  s->seq.tenant = book_.enter(std::to_string(s->request.tenant), s->seq.weight, now_ns_ / kNsPerUs);
  refresh_waiting(*s);
  uint64_t retry_after_ns = 0;
  const Status admitted = planner_->admit(make_view(), s->seq, &retry_after_ns);
  if (!admitted.ok()) {
    if (options_.retry && admitted.error().code == ErrorCode::kUnavailable) {
      arrivals_.emplace(now_ns_ + std::max(kIdleStepNs, retry_after_ns), std::move(s));
      return;
    }
    return end(std::move(s), SimOutcome::kRefused);
  }
  book_.begin(s->seq.tenant);
  s->seq.queued_ns = now_ns_;
  wait_.push_back(std::move(s));
}

void SimWorker::end(Owned s, SimOutcome outcome) {
  TenantReport& t = tenant(*s);
  switch (outcome) {
    case SimOutcome::kFinished:
      ++t.finished;
      t.prompt_tokens += s->request.prompt;
      t.output_tokens += s->seq.output;
      t.total_ms.push_back(ms(now_ns_ - s->seq.arrive_ns));
      break;
    case SimOutcome::kDropped:
      ++t.dropped;
      break;
    case SimOutcome::kRefused:
      ++t.refused;
      break;
  }
  // Who was refused never was in the view.
  if (outcome != SimOutcome::kRefused) {
    book_.end(s->seq.tenant, now_ns_ / kNsPerUs);
    planner_->finished(s->seq.id, outcome == SimOutcome::kFinished ? WEFT_OK : WEFT_E_TIMEOUT,
                       step_number_);
  }
  swap_free_ += s->swapped_bytes;
  report_.end_ns = std::max(report_.end_ns, now_ns_);
  if (on_done) on_done(s->request, outcome);
}

void SimWorker::refresh_waiting(Sequence& s) {
  weft_seq& q = s.seq;
  const uint32_t most = q.known - 1;  // one row at least must run
  if ((q.flags & WEFT_SEQ_SWAPPED) != 0) {
    q.context = s.computed_at_swap;
  } else if (!s.request.blocks.empty()) {
    const auto tokens = [&](size_t n) {
      return static_cast<uint32_t>(std::min<uint64_t>(most, n * options_.block_tokens));
    };
    q.context = tokens(blocks_.match(s.request.blocks));
    const uint32_t promised = tokens(blocks_.match_promised(s.request.blocks));
    q.promised = promised > q.context ? promised : 0;
  } else {
    q.context = std::min(most, s.request.cached);
    q.restore_ns = q.context > 0 ? s.request.restore_ns : 0;
  }
  refresh_running(s);
}

// What follows from context and known.
void SimWorker::refresh_running(Sequence& s) {
  weft_seq& q = s.seq;
  q.rows_max = q.known - q.context;
  if (options_.prefill_chunk > 0) q.rows_max = std::min(q.rows_max, options_.prefill_chunk);
  if ((q.flags & WEFT_SEQ_LOADING) != 0) q.rows_max = 0;
  const auto& bounds = s.request.boundaries;
  const auto next = std::upper_bound(bounds.begin(), bounds.end(), q.context);
  q.boundary = next != bounds.end() ? *next : q.context < q.prompt ? q.prompt : 0;
  q.swap_bytes =
      options_.swap_bytes > 0 ? options_.state_bytes + options_.token_bytes * q.context : 0;
}

const weft_sched_view& SimWorker::make_view() {
  view_wait_.clear();
  view_run_.clear();
  for (const Owned& s : preempted_) {
    refresh_waiting(*s);
    view_wait_.push_back(s->seq);
  }
  for (const Owned& s : wait_) {
    refresh_waiting(*s);
    view_wait_.push_back(s->seq);
  }
  for (const Owned& s : run_) {
    if (s->loaded_at_ns <= now_ns_) s->seq.flags &= ~uint32_t{WEFT_SEQ_LOADING};
    refresh_running(*s);
    view_run_.push_back(s->seq);
  }
  const uint32_t watermark =
      options_.watermark_pages > 0 ? options_.watermark_pages : static_cast<uint32_t>(run_.size());
  groups_[0] = {WEFT_CACHE_ROWS, options_.page_tokens, free_pages_, options_.pages, 0, watermark};
  groups_[1] = {WEFT_CACHE_STATE, 0, free_states_, options_.states, 0, 0};
  view_ = {};
  view_.struct_size = sizeof(view_);
  view_.n_wait = static_cast<uint32_t>(view_wait_.size());
  view_.n_run = static_cast<uint32_t>(view_run_.size());
  view_.n_groups = 2;
  view_.n_costs = static_cast<uint32_t>(costs_.size());
  book_.list(now_ns_ / kNsPerUs, &tenants_);
  view_.n_tenants = static_cast<uint32_t>(tenants_.size());
  view_.tenants = tenants_.data();
  view_.token_budget = options_.token_budget;
  view_.seq_budget = options_.seq_budget;
  view_.chunk_grain = 1;
  view_.run_budget = options_.run_budget;
  view_.seed = options_.seed;
  view_.swap_free = swap_free_;
  view_.step = step_number_;
  view_.now_ns = now_ns_;
  view_.step_target_ns = options_.step_target_ns;
  view_.wait = view_wait_.data();
  view_.run = view_run_.data();
  view_.groups = groups_;
  view_.costs = costs_.data();
  return view_;
}

void SimWorker::apply(const weft_sched_plan& plan) {
  shares_.clear();
  for (uint32_t i = 0; i < plan.n_run; ++i) {
    shares_.emplace_back(run_[plan.run[i].index].get(), plan.run[i].rows);
  }
  // Indices count through preempted_ and wait_; slots are emptied first, closed up at the end.
  const size_t n_preempted = preempted_.size();
  const auto take = [&](uint32_t index) {
    return std::move(index < n_preempted ? preempted_[index] : wait_[index - n_preempted]);
  };
  std::vector<std::pair<Owned, uint32_t>> out;
  for (uint32_t i = 0; i < plan.n_preempt; ++i) {
    out.emplace_back(std::move(run_[plan.preempt[i].index]), plan.preempt[i].mode);
  }
  std::vector<Owned> dropped, admitted;
  for (uint32_t i = 0; i < plan.n_drop; ++i) dropped.push_back(take(plan.drop[i]));
  for (uint32_t i = 0; i < plan.n_admit; ++i) admitted.push_back(take(plan.admit[i].index));
  run_.erase(std::remove(run_.begin(), run_.end(), nullptr), run_.end());
  preempted_.erase(std::remove(preempted_.begin(), preempted_.end(), nullptr), preempted_.end());
  wait_.erase(std::remove(wait_.begin(), wait_.end(), nullptr), wait_.end());
  for (auto& [s, mode] : out) preempt(std::move(s), mode);
  for (uint32_t i = 0; i < plan.n_admit; ++i) {
    begin(*admitted[i], plan.admit[i].rows);
    run_.push_back(std::move(admitted[i]));
  }
  for (const auto& [s, rows] : shares_) grow(*s, s->seq.context + rows);
  for (Owned& s : dropped) end(std::move(s), SimOutcome::kDropped);
}

void SimWorker::preempt(Owned s, uint32_t mode) {
  release(*s);
  ++tenant(*s).preemptions;
  ++s->seq.preemptions;
  s->seq.flags |= WEFT_SEQ_PREEMPTED;
  s->seq.fresh = 0;
  s->seq.queued_ns = now_ns_;
  if (mode == WEFT_PREEMPT_SWAP && s->seq.swap_bytes > 0 && s->seq.swap_bytes <= swap_free_) {
    ++tenant(*s).swaps;
    swap_free_ -= s->seq.swap_bytes;
    s->swapped_bytes = s->seq.swap_bytes;
    s->computed_at_swap = s->seq.context;
    s->seq.flags |= WEFT_SEQ_SWAPPED;
    s->seq.restore_ns = 1 + static_cast<uint64_t>(static_cast<double>(s->seq.swap_bytes) /
                                                  options_.copy_bytes_per_ns);
  }
  const auto later = [](const Owned& a, const Owned& b) {
    return std::pair(a->seq.arrive_ns, a->seq.id) < std::pair(b->seq.arrive_ns, b->seq.id);
  };
  preempted_.insert(std::upper_bound(preempted_.begin(), preempted_.end(), s, later), std::move(s));
}

void SimWorker::begin(Sequence& s, uint32_t rows) {
  if (s.seq.preemptions == 0) tenant(s).cached_tokens += s.seq.context;
  if (!s.request.blocks.empty() && !s.published) blocks_.promise(s.request.blocks);
  s.seq.flags &= ~uint32_t{WEFT_SEQ_PREEMPTED | WEFT_SEQ_SWAPPED};
  s.seq.promised = 0;
  s.seq.fresh = 0;
  s.served = std::max(s.served, std::min(s.seq.context, s.seq.prompt));  // what a cache gave
  swap_free_ += std::exchange(s.swapped_bytes, 0);
  --free_states_;
  s.seq.held[1] = 1;
  grow(s, s.seq.context);
  if (s.seq.restore_ns > 0) {
    s.loaded_at_ns = now_ns_ + std::exchange(s.seq.restore_ns, 0);
    s.seq.flags |= WEFT_SEQ_LOADING;
    return;
  }
  shares_.emplace_back(&s, rows);
}

void SimWorker::grow(Sequence& s, uint32_t tokens) {
  const uint32_t needs = pages_of(tokens, options_.page_tokens);
  if (needs <= s.seq.held[0]) return;
  WEFT_CHECK(needs - s.seq.held[0] <= free_pages_);  // the plan was checked
  free_pages_ -= needs - s.seq.held[0];
  s.seq.held[0] = needs;
}

void SimWorker::release(Sequence& s) {
  free_pages_ += std::exchange(s.seq.held[0], 0);
  free_states_ += std::exchange(s.seq.held[1], 0);
  s.loaded_at_ns = 0;
  s.seq.flags &= ~uint32_t{WEFT_SEQ_LOADING};
  if (!s.request.blocks.empty() && !s.published) blocks_.end_promise(s.request.blocks);
}

uint64_t SimWorker::run_shares() {
  uint64_t took = options_.step_ns;
  uint32_t rows = 0;
  for (const auto& [s, n] : shares_) {
    rows += n;
    took += options_.row_ns * n + options_.context_token_ns * s->seq.context;
  }
  now_ns_ += took;
  report_.rows += rows;
  record_cost(rows, took);
  for (const auto& [s, n] : shares_) finish_rows(*s, n);
  for (Owned& s : run_) {
    if (s->seq.output < s->request.output) continue;
    release(*s);
    end(std::move(s), SimOutcome::kFinished);
  }
  run_.erase(std::remove(run_.begin(), run_.end(), nullptr), run_.end());
  return took;
}

void SimWorker::finish_rows(Sequence& s, uint32_t rows) {
  if (s.seq.known - s.seq.context > 1 || s.seq.output == 0) tenant(s).computed_rows += rows;
  s.seq.context += rows;
  const uint32_t of_prompt = std::min(s.seq.context, s.seq.prompt);
  if (of_prompt > s.served) {
    book_.serve(s.seq.tenant, of_prompt - s.served);
    s.served = of_prompt;
  }
  if (s.seq.context >= s.seq.prompt) publish(s);
  if (s.seq.context == s.seq.known) give_token(s);
}

void SimWorker::publish(Sequence& s) {
  if (s.request.blocks.empty() || s.published) return;
  s.published = true;
  blocks_.end_promise(s.request.blocks);
  blocks_.insert(s.request.blocks);
}

void SimWorker::give_token(Sequence& s) {
  TenantReport& t = tenant(s);
  if (s.seq.output == 0) {
    t.ttft_ms.push_back(ms(now_ns_ - s.seq.arrive_ns));
    if (s.seq.deadline_ns != 0 && now_ns_ > s.seq.deadline_ns) ++t.late_first_tokens;
  } else {
    t.itl_ms.push_back(ms(now_ns_ - s.last_token_ns));
  }
  s.last_token_ns = now_ns_;
  book_.serve(s.seq.tenant, 1);
  ++s.seq.output;
  ++s.seq.fresh;
  ++s.seq.known;
}

// The mean of each power of two, as a worker would have measured it.
void SimWorker::record_cost(uint32_t rows, uint64_t ns) {
  uint32_t bucket = 1;
  while (bucket < rows && bucket < 1u << 30) bucket *= 2;
  auto at = std::lower_bound(costs_.begin(), costs_.end(), bucket,
                             [](const weft_sched_cost& c, uint32_t b) { return c.rows < b; });
  if (at == costs_.end() || at->rows != bucket) at = costs_.insert(at, {bucket, 0, 0});
  at->samples = std::min(at->samples + 1, 64u);
  const auto old = static_cast<int64_t>(at->ns);
  at->ns = static_cast<uint64_t>(old + (static_cast<int64_t>(ns) - old) / int64_t{at->samples});
}

Status SimWorker::audit() const {
  uint64_t pages = free_pages_, states = free_states_;
  for (const Owned& s : run_) {
    pages += s->seq.held[0];
    states += s->seq.held[1];
  }
  if (pages == options_.pages && states == options_.states) return {};
  return make_error(ErrorCode::kInternal, "{} pages of {} and {} states of {} are accounted for",
                    pages, options_.pages, states, options_.states);
}

}  // namespace weft::sim
