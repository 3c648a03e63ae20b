#include "simulator_fixture.h"

#include <algorithm>
#include <set>

namespace scheduler_continuous_test {
namespace {

constexpr uint64_t kBytesPerToken = 1000;

struct Live {
  weft_seq seq{};
  size_t fate = 0;
  uint64_t loaded_ns = 0;  // end of a copy in flight
  uint32_t charged = 0;    // tokens of the prompt that its tenant has paid
  uint64_t last_ns = 0;    // of its newest token
  std::set<uint32_t> ends;
};
using Queue = std::vector<std::unique_ptr<Live>>;

class Host {
 public:
  Host(const Machine& machine, const std::map<std::string, int64_t>& settings)
      : machine_(machine), policy_(settings) {
    data_.view.token_budget = machine.token_budget;
    data_.view.run_budget = data_.view.seq_budget = machine.run_budget;
    data_.view.step_target_ns = machine.step_target_ns;
    data_.view.now_ns = 0;
    data_.view.step = 0;
    data_.groups[0] = {
        WEFT_CACHE_ROWS,  machine.unit_tokens, machine.row_units, machine.row_units, 0,
        machine.watermark};
    data_.groups[1] = {WEFT_CACHE_STATE, 0, machine.states, machine.states, 0, 0};
    for (uint32_t rows = 1; rows <= 256; rows *= 2)
      data_.costs.push_back({rows, 10, machine.step_ns + rows * machine.row_ns});
    data_.view.swap_free = machine.swap_bytes;
  }

  Run run(std::vector<Request> requests, uint64_t most_steps) {
    std::stable_sort(requests.begin(), requests.end(),
                     [](const Request& a, const Request& b) { return a.arrive_ns < b.arrive_ns; });
    for (Request& request : requests) {
      result_.fates.emplace_back();
      result_.fates.back().request = std::move(request);
    }
    while (result_.steps < most_steps && result_.fault.empty()) {
      arrive();
      if (wait_.empty() && run_.empty()) {
        if (next_ == result_.fates.size()) break;
        now() = std::max(now(), result_.fates[next_].request.arrive_ns);
        continue;
      }
      step();
    }
    return std::move(result_);
  }

 private:
  uint64_t& now() { return data_.view.now_ns; }

  void arrive() {
    for (; next_ < result_.fates.size() && result_.fates[next_].request.arrive_ns <= now();
         ++next_) {
      const Request& request = result_.fates[next_].request;
      auto live = std::make_unique<Live>();
      live->fate = next_;
      weft_seq& seq = live->seq;
      seq = waiting(next_ + 1, request.prompt, request.cached);
      seq.arrive_ns = seq.queued_ns = request.arrive_ns;
      seq.deadline_ns = request.deadline_ns == 0 ? 0 : request.arrive_ns + request.deadline_ns;
      seq.tenant = request.tenant;
      seq.weight = request.weight;
      seq.priority = request.priority;
      seq.flags = request.flags;
      seq.output_max = request.output;
      live->charged = request.cached;
      welcome(request);
      wait_.push_back(std::move(live));
    }
  }

  // A tenant that comes (back) starts a little before the least served of the active ones.
  void welcome(const Request& request) {
    if (!machine_.tell_tenants) return;
    uint64_t least = UINT64_MAX;
    const auto look = [&](const Queue& queue) {
      for (const auto& live : queue) {
        const weft_sched_tenant& tenant = served_[live->seq.tenant];
        if (live->seq.tenant == request.tenant) least = 0;
        least = std::min(least, tenant.served / tenant.weight);
      }
    };
    look(run_);
    look(wait_);
    weft_sched_tenant& tenant = served_[request.tenant];
    tenant.id = request.tenant;
    tenant.weight = request.weight;
    if (least == UINT64_MAX) return;
    const uint64_t start = least > machine_.credit ? least - machine_.credit : 0;
    tenant.served = std::max(tenant.served, start * tenant.weight);
  }

  const weft_sched_view& look() {
    data_.wait.clear();
    data_.run.clear();
    data_.tenants.clear();
    data_.groups[0].free = machine_.row_units;
    data_.groups[1].free = machine_.states;
    for (auto& live : wait_) data_.wait.push_back(live->seq);
    for (auto& live : run_) {
      weft_seq& seq = live->seq;
      seq.flags &= ~WEFT_SEQ_LOADING;
      if (live->loaded_ns > now()) seq.flags |= WEFT_SEQ_LOADING;
      seq.rows_max = live->loaded_ns > now() ? 0 : seq.known - seq.context;
      seq.boundary = 0;
      for (const uint32_t b : result_.fates[live->fate].request.boundaries)
        if (b > seq.context && (seq.boundary == 0 || b < seq.boundary)) seq.boundary = b;
      seq.swap_bytes = machine_.swap_bytes == 0 ? 0 : seq.context * kBytesPerToken;
      for (uint32_t g = 0; g < 2; ++g) data_.groups[g].free -= seq.held[g];
      data_.run.push_back(seq);
    }
    for (auto& seq : data_.wait)
      for (const uint32_t b : result_.fates[seq.id - 1].request.boundaries)
        if (b > seq.context && (seq.boundary == 0 || b < seq.boundary)) seq.boundary = b;
    for (const auto& [id, tenant] : served_) data_.tenants.push_back(tenant);
    return data_.get();
  }

  void step() {
    const weft_sched_view& view = look();
    const weft_sched_plan& plan = policy_.plan(view);
    result_.fault = fault_of(view, plan);
    result_.trace += text_of(plan) + "\n";
    uint32_t rows = 0;
    bool decodes = false;
    std::vector<Live*> worked;
    for (uint32_t i = 0; i < plan.n_run; ++i) {
      Live* live = run_[plan.run[i].index].get();
      decodes = decodes || live->seq.known - live->seq.context == 1;
      compute(live, plan.run[i].rows);
      rows += plan.run[i].rows;
      worked.push_back(live);
    }
    Queue admitted;
    for (uint32_t i = 0; i < plan.n_admit; ++i) {
      admitted.push_back(std::move(wait_[plan.admit[i].index]));
      Live* live = admitted.back().get();
      enter(live);
      compute(live, plan.admit[i].rows);
      rows += plan.admit[i].rows;
      if (plan.admit[i].rows > 0) worked.push_back(live);
    }
    const uint64_t took = machine_.step_ns + rows * machine_.row_ns;
    now() += took;
    if (decodes)
      result_.slowest_step_with_decode_ns = std::max(result_.slowest_step_with_decode_ns, took);
    for (Live* live : worked) generate(live);
    leave(plan, std::move(admitted));
    ++result_.steps;
    ++data_.view.step;
    result_.rows += rows;
    if (rows == 0 && plan.n_preempt + plan.n_admit + plan.n_drop == 0) ++result_.empty_steps;
    result_.most_running = std::max<uint64_t>(result_.most_running, run_.size());
  }

  void enter(Live* live) {
    weft_seq& seq = live->seq;
    if (seq.flags & WEFT_SEQ_SWAPPED) data_.view.swap_free += seq.context * kBytesPerToken;
    if (seq.restore_ns > 0) live->loaded_ns = now() + seq.restore_ns;
    seq.restore_ns = 0;
    seq.flags &= ~(WEFT_SEQ_PREEMPTED | WEFT_SEQ_SWAPPED);
    seq.fresh = 0;
    hold(data_.groups, &seq);
  }

  void compute(Live* live, uint32_t rows) {
    weft_seq& seq = live->seq;
    seq.context += rows;
    live->ends.insert(seq.context);
    hold(data_.groups, &seq);
    const uint32_t paid = std::min(seq.context, seq.prompt);
    if (machine_.tell_tenants && paid > live->charged)
      served_[seq.tenant].served += paid - live->charged;
    live->charged = std::max(live->charged, paid);
  }

  void generate(Live* live) {
    weft_seq& seq = live->seq;
    if (seq.context != seq.known) return;
    Fate& fate = result_.fates[live->fate];
    if (seq.output == 0) fate.first_ns = now();
    if (seq.output > 0) fate.longest_gap_ns = std::max(fate.longest_gap_ns, now() - live->last_ns);
    live->last_ns = now();
    ++seq.output;
    ++seq.known;
    ++seq.fresh;
    if (machine_.tell_tenants) ++served_[seq.tenant].served;
    if (seq.output < seq.output_max) return;
    fate.end_ns = now();
    for (const uint32_t b : fate.request.boundaries)
      if (b > fate.request.cached && !live->ends.contains(b)) fate.missed.push_back(b);
  }

  void leave(const weft_sched_plan& plan, Queue admitted) {
    Queue back;
    for (uint32_t i = 0; i < plan.n_preempt; ++i) {
      auto live = std::move(run_[plan.preempt[i].index]);
      weft_seq& seq = live->seq;
      ++seq.preemptions;
      ++result_.fates[live->fate].preemptions;
      ++result_.preemptions;
      seq.flags |= WEFT_SEQ_PREEMPTED;
      seq.queued_ns = now();
      seq.held[0] = seq.held[1] = 0;
      if (plan.preempt[i].mode == WEFT_PREEMPT_SWAP) {
        ++result_.swaps;
        seq.flags |= WEFT_SEQ_SWAPPED;
        seq.restore_ns = std::max<uint64_t>(seq.context * kBytesPerToken / 10, 1);
        data_.view.swap_free -= seq.context * kBytesPerToken;
      } else {
        seq.context = 0;
      }
      seq.rows_max = seq.known - seq.context;
      back.push_back(std::move(live));
    }
    for (uint32_t i = 0; i < plan.n_drop; ++i) {
      result_.fates[wait_[plan.drop[i]]->fate].dropped = true;
      wait_[plan.drop[i]].reset();
    }
    const auto gone = [&](const std::unique_ptr<Live>& live) {
      return live == nullptr || live->seq.output == live->seq.output_max;
    };
    for (auto& live : admitted) run_.push_back(std::move(live));
    std::erase_if(run_, gone);
    std::erase_if(wait_, gone);
    // Preempted ones stand first, the longest there before the others.
    const auto first_new = std::find_if(wait_.begin(), wait_.end(), [](const auto& live) {
      return (live->seq.flags & WEFT_SEQ_PREEMPTED) == 0;
    });
    wait_.insert(first_new, std::make_move_iterator(back.begin()),
                 std::make_move_iterator(back.end()));
  }

  const Machine machine_;
  Policy policy_;
  ViewData data_;
  Run result_;
  Queue wait_, run_;
  size_t next_ = 0;
  std::map<uint32_t, weft_sched_tenant> served_;
};

}  // namespace

Run simulate(const Machine& machine, std::vector<Request> requests,
             const std::map<std::string, int64_t>& settings, uint64_t most_steps) {
  return Host(machine, settings).run(std::move(requests), most_steps);
}

uint64_t ttft_quantile(const Run& run, double q,
                       const std::function<bool(const Request&)>& chosen) {
  std::vector<uint64_t> times;
  for (const Fate& fate : run.fates)
    if (chosen(fate.request)) times.push_back(fate.first_ns == 0 ? UINT64_MAX : fate.ttft_ns());
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return times[std::min(times.size() - 1,
                        static_cast<size_t>(q * static_cast<double>(times.size())))];
}

}  // namespace scheduler_continuous_test
