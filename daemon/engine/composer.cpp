#include "engine/composer.h"

#include <algorithm>

namespace weft::engine {

using cache::SnapshotKind;

namespace {

// Waiting sequences whose prefix is looked up again when the cache has changed; those behind keep
// what was found before.
constexpr size_t kProbesMax = 64;
// Running prefills that a waiting sequence is compared with.
constexpr size_t kPromisersMax = 32;
// A prefix that someone else is computing is waited for when it saves at least this many tokens.
constexpr uint32_t kPromiseGain = 128;
// Cutting a prompt at a branch point costs a step: worth it from here on.
constexpr uint32_t kBranchGain = 64;
constexpr size_t kBoundariesMax = 16;
// Bounds how often one sequence can lose its place: then it keeps it.
constexpr uint32_t kPreemptionsMax = 8;
constexpr uint64_t kStallSteps = 100;

}  // namespace

Composer::Composer(ComposerOptions options, Caches* caches, Coordinator* coordinator,
                   Roster* roster, TenantBook* tenants, std::unique_ptr<Planner> planner)
    : options_(options),
      caches_(caches),
      coordinator_(coordinator),
      roster_(roster),
      tenants_(tenants),
      planner_(std::move(planner)) {
  WEFT_CHECK(options_.max_sequences >= 1 && options_.max_sequences <= options_.max_batch_tokens);
  WEFT_CHECK(options_.max_logit_rows > options_.max_sequences && planner_ != nullptr);
  runs_.reserve(options_.max_sequences);
}

const std::vector<PlannedRun>& Composer::compose(uint64_t now_us) {
  runs_.clear();
  dropped_.clear();
  stuck_.clear();
  newcomers_.clear();
  prompt_logit_rows_left_ = options_.max_logit_rows - options_.max_sequences;
  coordinator_->poll();
  finish_loads(now_us);
  watch(now_us);
  if (roster_->empty()) return runs_;
  probe_waiting();
  seek_promises();
  build_view(now_us);
  const weft_sched_plan& plan = planner_->plan(view_);
  apply(plan, now_us);
  if (runs_.empty() && plan.n_run + plan.n_admit > 0 && loading_ == 0) make_way(now_us);
  return runs_;
}

// ---- before the plan --------------------------------------------------------------------------

void Composer::finish_loads(uint64_t now_us) {
  loading_ = 0;
  scratch_run_.clear();
  for (const auto& s : roster_->running()) {
    if (s->loading == nullptr) continue;
    if (s->loading->over()) {
      scratch_run_.push_back(s.get());
    } else {
      ++loading_;
    }
  }
  for (Sequence* s : scratch_run_) {
    const bool ok = s->loading->ok();
    s->loading.reset();
    if (ok) {
      s->computed = s->loading_tokens;
      s->progress_us = now_us;
      count(s, s->cached_local, s->cached_host, now_us);
      continue;
    }
    // The copies were damaged or the read failed: the prefix is computed again.
    s->cache.clear();
    s->last_snapshot = 0;
    s->queued_us = now_us;
    roster_->put_back(s);
  }
}

void Composer::watch(uint64_t now_us) {
  // Time in which nobody looked (a process that was stopped, one very long step) is nobody's fault.
  constexpr uint64_t kGapUs = 1'000'000;
  const uint64_t gap_us = last_look_us_ == 0 ? 0 : now_us - std::min(now_us, last_look_us_);
  last_look_us_ = now_us;
  for (const auto& s : roster_->running()) {
    if (gap_us > kGapUs) s->progress_us += gap_us - kGapUs;
  }
  // Chances to run, not steps of the model: where nothing runs at all there are no steps.
  ++looks_;
  if (now_us < watch_us_ + options_.stall_us / 4 || looks_ < looks_before_watch_ + kStallSteps) {
    return;
  }
  watch_us_ = now_us;
  looks_before_watch_ = looks_;
  stalled_ = 0;
  for (const auto& s : roster_->running()) {
    const uint64_t idle_us = now_us - std::min(now_us, s->progress_us);
    if (idle_us < options_.stall_us) continue;
    ++stalled_;
    if (s->loading != nullptr) {
      s->loading->cancel();
      s->slow_loads = true;  // what is too slow once is computed the next time
    }
    if (idle_us >= 3 * options_.stall_us) stuck_.push_back(s.get());
  }
}

void Composer::probe_waiting() {
  if (!coordinator_->keeps_prefixes()) return;
  size_t n = 0;
  for (const auto& s : roster_->waiting()) {
    if (n++ == kProbesMax) return;
    if (s->probe_version == coordinator_->version()) continue;
    s->probe = coordinator_->probe(s->view());
    s->probe_version = coordinator_->version();
  }
}

// Who waits and begins like a prompt that is being computed waits for its snapshot, and asks for
// one where the two part.
void Composer::seek_promises() {
  promised_.assign(roster_->waiting().size(), 0);
  if (!coordinator_->keeps_prefixes()) return;
  scratch_run_.clear();
  for (const auto& s : roster_->running()) {
    if (s->computed < s->prompt_tokens && !s->request.no_cache &&
        scratch_run_.size() < kPromisersMax) {
      scratch_run_.push_back(s.get());
    }
  }
  if (scratch_run_.empty()) return;
  const size_t n = std::min(roster_->waiting().size(), kProbesMax);
  for (size_t i = 0; i < n; ++i) {
    const Sequence& w = *roster_->waiting()[i];
    const uint32_t at_hand = std::max(w.probe.device, w.probe.host);
    for (Sequence* r : scratch_run_) {
      const uint32_t common = std::min(common_prefix(w, *r), w.reusable());
      if (common <= r->computed || common < at_hand + kPromiseGain) continue;
      uint32_t best = 0;
      for (const Boundary& b : r->boundaries) {
        if (b.length > r->computed && b.length <= common) best = b.length;
      }
      const uint32_t end = std::min(common, r->prompt_tokens);
      if (best + kPromiseGain < end && r->boundaries.size() < kBoundariesMax) {
        r->add_boundary(end, SnapshotKind::kBranch);
        best = end;
      }
      if (best >= at_hand + kPromiseGain) promised_[i] = std::max(promised_[i], best);
    }
  }
}

// ---- the view ---------------------------------------------------------------------------------

uint32_t Composer::rows_max(const Sequence& s, uint32_t from) const {
  uint32_t rows = s.length() - from;
  if (from + 1 < s.length() && options_.prefill_chunk > 0) {
    rows = std::min(rows, options_.prefill_chunk);
  }
  if (s.request.sampling.prompt_logprobs < 0) return rows;
  uint32_t logit_rows = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    if (!s.wants_prompt_row(from + i)) continue;
    if (++logit_rows > options_.max_logit_rows - options_.max_sequences) return i;
  }
  return rows;
}

weft_seq Composer::describe_common(const Sequence& s) const {
  weft_seq v = {};
  v.id = s.id();
  v.arrive_ns = s.arrived_us * 1000;
  if (s.request.deadline_ms != 0 && s.first_token_us == 0) {
    v.deadline_ns = v.arrive_ns + s.request.deadline_ms * 1'000'000;
  }
  v.swap_bytes = s.request.no_cache ? 0 : coordinator_->swap_bytes(s.computed);
  v.tenant = s.tenant;
  v.weight = tenants_->weight(s.tenant);
  v.priority = s.request.priority;
  v.prompt = s.prompt_tokens;
  v.known = s.length();
  v.output = s.generated();
  v.output_max = s.request.sampling.max_tokens != 0 ? s.request.sampling.max_tokens
                                                    : UINT32_MAX - s.prompt_tokens;
  v.preemptions = s.preemptions;
  v.queued_ns = s.queued_us * 1000;
  if (s.request.priority < 0) v.flags |= WEFT_SEQ_SHEDDABLE;
  return v;
}

weft_seq Composer::describe_running(const Sequence& s) const {
  weft_seq v = describe_common(s);
  v.context = s.loading != nullptr ? s.loading_tokens : s.computed;
  v.rows_max = s.loading != nullptr ? 0 : rows_max(s, s.computed);
  v.boundary = s.next_boundary(v.context);
  v.fresh = s.generated() - s.admitted_output;
  if (s.loading != nullptr) v.flags |= WEFT_SEQ_LOADING;
  if (s.preemptions >= kPreemptionsMax && &s == roster_->running().front().get()) {
    v.flags |= WEFT_SEQ_PINNED;
  }
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    if (!caches_->groups()[g].rows) {
      v.held[g] = s.cache.state(g).own.valid() ? 1 : 0;
      continue;
    }
    const auto& shared = s.cache.rows(g).shared;
    v.held[g] = static_cast<uint32_t>(s.cache.rows(g).size());
    // What others use too comes first: they share a prefix.
    const auto end = std::partition_point(shared.begin(), shared.end(),
                                          [](const cache::LiveRef& page) { return page.shared(); });
    v.shared[g] = static_cast<uint32_t>(end - shared.begin());
  }
  return v;
}

weft_seq Composer::describe_waiting(const Sequence& s, uint32_t promised) const {
  weft_seq v = describe_common(s);
  v.context = std::max(s.probe.device, s.probe.host);
  v.restore_ns = s.probe.host > 0 ? s.probe.restore_us * 1000 : 0;
  v.rows_max = rows_max(s, v.context);
  v.boundary = s.next_boundary(v.context);
  v.promised = promised;
  if (s.admitted_us != 0) v.flags |= WEFT_SEQ_PREEMPTED;
  if (s.swapped != 0) v.flags |= WEFT_SEQ_SWAPPED;
  if (s.probe.host == 0) {
    for (size_t g = 0; g < caches_->groups().size(); ++g) v.held[g] = s.probe.held[g];
  }
  return v;
}

void Composer::build_view(uint64_t now_us) {
  run_view_.clear();
  wait_view_.clear();
  groups_.clear();
  for (const auto& s : roster_->running()) run_view_.push_back(describe_running(*s));
  for (size_t i = 0; i < roster_->waiting().size(); ++i) {
    wait_view_.push_back(describe_waiting(*roster_->waiting()[i], promised_[i]));
  }
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    weft_sched_group v = {};
    v.kind = group.rows ? WEFT_CACHE_ROWS : WEFT_CACHE_STATE;
    v.unit_tokens = group.unit_tokens;
    v.free = coordinator_->available(g);
    v.total = group.total();
    // One page per running sequence, or a newcomer would soon be preempted again.
    v.watermark = group.rows ? static_cast<uint32_t>(roster_->running().size()) : 0;
    groups_.push_back(v);
  }
  costs_.list(&cost_list_);
  tenants_->list(now_us, &tenant_list_);
  view_ = {};
  view_.struct_size = sizeof(view_);
  view_.n_wait = static_cast<uint32_t>(wait_view_.size());
  view_.n_run = static_cast<uint32_t>(run_view_.size());
  view_.n_groups = static_cast<uint32_t>(groups_.size());
  view_.n_costs = static_cast<uint32_t>(cost_list_.size());
  view_.n_tenants = static_cast<uint32_t>(tenant_list_.size());
  view_.token_budget = options_.max_batch_tokens;
  view_.seq_budget = options_.max_sequences;
  view_.run_budget = options_.max_sequences;
  view_.chunk_grain = 1;
  view_.seed = options_.seed;
  view_.swap_free = coordinator_->host().room();
  view_.step = steps_;
  view_.now_ns = now_us * 1000;
  view_.step_target_ns = options_.itl_target_us * 1000;
  view_.wait = wait_view_.data();
  view_.run = run_view_.data();
  view_.groups = groups_.data();
  view_.costs = cost_list_.data();
  view_.tenants = tenant_list_.data();
}

Status Composer::may_queue(const Sequence& sequence, uint64_t now_us) {
  if (view_.struct_size == 0) {
    probe_waiting();
    promised_.assign(roster_->waiting().size(), 0);
    build_view(now_us);
  }
  view_.now_ns = now_us * 1000;
  uint64_t retry_after_ns = 0;
  return planner_->admit(view_, describe_waiting(sequence, 0), &retry_after_ns);
}

// ---- carrying the plan out --------------------------------------------------------------------

void Composer::apply(const weft_sched_plan& plan, uint64_t now_us) {
  // Indices become pointers before anything moves.
  scratch_run_.clear();
  scratch_wait_.clear();
  for (const auto& s : roster_->running()) scratch_run_.push_back(s.get());
  for (const auto& s : roster_->waiting()) scratch_wait_.push_back(s.get());
  for (uint32_t i = 0; i < plan.n_drop; ++i) dropped_.push_back(scratch_wait_[plan.drop[i]]);
  for (uint32_t i = 0; i < plan.n_preempt; ++i) {
    const weft_preempt& p = plan.preempt[i];
    preempt(scratch_run_[p.index], p.mode == WEFT_PREEMPT_SWAP, now_us);
  }
  for (uint32_t i = 0; i < plan.n_run; ++i) {
    add_run(scratch_run_[plan.run[i].index], plan.run[i].rows, now_us);
  }
  for (uint32_t i = 0; i < plan.n_admit; ++i) {
    admit(scratch_wait_[plan.admit[i].index], plan.admit[i].rows, now_us);
  }
}

void Composer::preempt(Sequence* s, bool swap, uint64_t now_us) {
  if (s->loading != nullptr) {
    coordinator_->abandon(std::move(s->loading), std::move(s->cache));
    s->cache = SequenceCache(caches_);
  } else if (s->computed > 0 && !s->request.no_cache) {
    const PrefixView view{&s->chain, s->tokens, s->computed};
    s->chain.extend(s->tokens);
    if (swap) {
      s->swapped = coordinator_->swap_out(view, s->computed, &s->cache, &s->last_snapshot);
      swaps_ += s->swapped != 0 ? 1 : 0;
    } else {
      coordinator_->publish(view, s->computed, SnapshotKind::kPreempted, /*goes_on=*/false,
                            &s->cache, &s->last_snapshot);
    }
  }
  s->cache.clear();
  s->computed = 0;
  s->queued_us = now_us;
  s->probe_version = 0;
  ++s->preemptions;
  ++preemptions_;
  roster_->put_back(s);
}

// True when a sequence that was admitted in this very step begins like this one: it goes first
// alone.
bool Composer::follows_newcomer(const Sequence& s, uint32_t at_hand) {
  if (!coordinator_->keeps_prefixes() || s.request.no_cache) return false;
  for (Sequence* r : newcomers_) {
    const uint32_t common = std::min(common_prefix(s, *r), s.reusable());
    if (common <= r->computed || common < at_hand + kPromiseGain) continue;
    if (r->boundaries.size() < kBoundariesMax) {
      r->add_boundary(std::min(common, r->prompt_tokens), SnapshotKind::kBranch);
      return true;
    }
  }
  return false;
}

void Composer::admit(Sequence* s, uint32_t rows, uint64_t now_us) {
  if (roster_->running().size() >= options_.max_sequences) return;
  s->chain.extend(s->tokens);
  const PrefixView view = s->view();
  const CacheProbe probe = coordinator_->probe(view);
  if (follows_newcomer(*s, std::max(probe.device, probe.host))) return;
  const auto spare = static_cast<uint32_t>(roster_->running().size());
  CacheAdmission admission = coordinator_->admit(view, s->length(), spare, &s->cache);
  if (!admission.ok) return;  // the pool moved since the view: it waits for the next step
  if (s->swapped != 0) coordinator_->release(std::exchange(s->swapped, 0));
  roster_->admit(s);
  if (!s->request.no_cache) newcomers_.push_back(s);
  s->admitted_output = s->generated();
  s->progress_us = now_us;
  s->last_snapshot = admission.snapshot;
  const uint32_t reached = admission.local + admission.host;
  // Someone was here before and left the prompt's path at this point: the next one shall find it.
  const uint32_t branch = std::min(probe.common, s->prompt_tokens - 1);
  if (!s->request.no_cache && branch >= reached + kBranchGain &&
      s->boundaries.size() < kBoundariesMax) {
    s->add_boundary(branch, SnapshotKind::kBranch);
  }
  if (admission.loading != nullptr) {
    s->loading = std::move(admission.loading);
    s->loading_tokens = reached;
    if (!s->counted) {
      s->cached_local = admission.local;
      s->cached_host = admission.host;
    }
    ++loading_;
    return;
  }
  s->computed = reached;
  count(s, admission.local, 0, now_us);
  if (rows == 0) return;
  rows = std::min(rows, s->pending());
  const uint32_t boundary = s->next_boundary(s->computed);
  if (boundary != 0) rows = std::min(rows, boundary - s->computed);
  add_run(s, rows, now_us);
}

// Once per request, when its prefix is in place for the first time.
void Composer::count(Sequence* s, uint32_t local, uint32_t host, uint64_t now_us) {
  if (s->counted) return;
  s->counted = true;
  s->cached_local = std::min(local, s->prompt_tokens);
  s->cached_host = std::min(host, s->prompt_tokens - s->cached_local);
  s->high_water = s->cached_local + s->cached_host;
  s->admitted_us = std::max<uint64_t>(now_us, 1);
  queries_ += s->prompt_tokens;
  hits_local_ += s->cached_local;
  hits_host_ += s->cached_host;
}

uint32_t Composer::within_logit_rows(const Sequence& s, uint32_t rows) {
  if (s.request.sampling.prompt_logprobs < 0) return rows;
  for (uint32_t i = 0; i < rows; ++i) {
    if (!s.wants_prompt_row(s.computed + i)) continue;
    if (prompt_logit_rows_left_ == 0) return i;
    --prompt_logit_rows_left_;
  }
  return rows;
}

void Composer::add_run(Sequence* s, uint32_t rows, uint64_t now_us) {
  rows = within_logit_rows(*s, rows);
  if (rows == 0 || !coordinator_->grow(&s->cache, s->computed + rows)) return;
  const uint32_t end = s->computed + rows;
  const uint32_t fresh = end > s->high_water ? end - s->high_water : 0;
  recomputed_ += rows - std::min(rows, fresh);
  tenants_->serve(s->tenant, std::min(rows, fresh));
  s->high_water = std::max(s->high_water, end);
  s->progress_us = now_us;
  runs_.push_back({s, rows});
}

// Nothing of what was planned could be done. The youngest gives way; the oldest, once alone, always
// has room, because nothing is accepted that the whole pool cannot hold.
void Composer::make_way(uint64_t now_us) {
  if (roster_->running().size() < 2) return;
  preempt(roster_->running().back().get(), /*swap=*/false, now_us);
}

// ---- after the step ---------------------------------------------------------------------------

void Composer::stepped(uint32_t rows, uint64_t ns) {
  ++steps_;
  costs_.add(rows, ns);
  coordinator_->set_prefill_rate(costs_.prefill_rate());
}

void Composer::keep(Sequence* s) {
  s->cache.stepped();
  if (s->request.no_cache) return;
  for (const Boundary& b : s->boundaries) {
    if (b.length != s->computed) continue;
    s->chain.extend(s->tokens);
    const uint64_t made = coordinator_->stats().made;
    coordinator_->publish({&s->chain, s->tokens, s->computed}, s->computed, b.kind,
                          /*goes_on=*/true, &s->cache, &s->last_snapshot);
    if (coordinator_->stats().made != made) s->left.push_back(s->last_snapshot);
    return;
  }
}

void Composer::leave(Sequence* s, bool keep, weft_status why, uint64_t now_us) {
  if (s->swapped != 0) coordinator_->release(std::exchange(s->swapped, 0));
  if (s->loading != nullptr) {
    coordinator_->abandon(std::move(s->loading), std::move(s->cache));
    s->cache = SequenceCache(caches_);
  } else if (keep && s->computed > 0 && !s->request.no_cache) {
    s->chain.extend(s->tokens);
    coordinator_->publish({&s->chain, s->tokens, s->computed}, s->computed, SnapshotKind::kOutput,
                          /*goes_on=*/false, &s->cache, &s->last_snapshot);
  }
  // An error puts in doubt what it left on the way, too.
  if (!keep) {
    for (const uint64_t id : s->left) coordinator_->discard(id);
  }
  s->cache.clear();
  tenants_->end(s->tenant, now_us);
  planner_->finished(s->id(), why, steps_);
}

void Composer::describe(wire::WorkerStats* stats) const {
  wire::SchedulerStats* scheduler = stats->mutable_scheduler();
  planner_->describe(scheduler);
  scheduler->set_swaps_total(swaps_);
  scheduler->set_stalled(roster_->running().empty() ? 0 : stalled_);
  wire::CacheStats* c = stats->mutable_cache();
  c->set_queries_tokens(queries_);
  c->set_hits_local_tokens(hits_local_);
  c->set_hits_host_tokens(hits_host_);
  c->set_computed_tokens(queries_ - hits_local_ - hits_host_);
  c->set_recomputed_tokens(recomputed_);
  c->set_snapshots(coordinator_->snapshots());
  c->set_snapshots_made_total(coordinator_->stats().made);
  c->set_snapshots_evicted_total(coordinator_->stats().evicted);
  const cache::HostTier& host = coordinator_->host();
  c->set_host_bytes_used(host.budget().used);
  c->set_host_bytes_total(host.budget().total);
  c->set_saved_bytes_total(host.saved_bytes());
  c->set_loaded_bytes_total(host.loaded_bytes());
  c->set_disk_bytes_used(host.budget().disk_used);
  c->set_copy_failures_total(host.queue().failures() + host.budget().disk_failures);
  uint32_t swapped = 0;
  for (const auto& s : roster_->waiting()) swapped += s->swapped != 0 ? 1 : 0;
  stats->set_swapped(swapped);
  stats->set_loading(loading_);
}

}  // namespace weft::engine
