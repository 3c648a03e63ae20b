// Thousands of random views: every plan keeps the contract, and depends on the view alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "engine/plan/plan_check.h"
#include "policy_fixture.h"

namespace scheduler_continuous_test {
namespace {

class RandomViews {
 public:
  explicit RandomViews(uint64_t seed) : random_(seed) {}

  ViewData next() {
    ViewData data;
    weft_sched_view& view = data.view;
    view.token_budget = below(2) ? 1 + below(64) : 1 + below(4096);
    view.run_budget = 1 + below(below(4) == 0 ? 256 : 24);
    view.seq_budget = below(4) == 0 ? 1 + below(view.run_budget) : view.run_budget;
    view.chunk_grain = below(3) == 0 ? 1 : 128;
    view.step = below(1000);
    view.now_ns = 100'000'000'000;
    view.seed = below(1u << 30);
    view.swap_free = below(2) ? 0 : below(1u << 30);
    view.step_target_ns = below(2) ? 0 : 1'000'000 + below(50'000'000);
    bands_ = below(8) == 0 ? 1000 : 1 + below(3);
    tenants_ = 1 + below(below(4) == 0 ? 200 : 4);
    starved_ = below(3) == 0;
    if (below(5) == 0) data.groups.erase(data.groups.begin() + below(2));
    if (below(4) == 0) data.groups.push_back({WEFT_CACHE_ROWS, 64, 5000, 5000, 0, 10});
    for (uint32_t i = below(view.run_budget + 1); i > 0; --i) data.run.push_back(run(data));
    for (uint32_t i = below(below(4) == 0 ? 200 : 20); i > 0; --i) data.wait.push_back(wait(data));
    for (weft_sched_group& group : data.groups) {
      uint64_t held = 0;
      const size_t g = static_cast<size_t>(&group - data.groups.data());
      for (const weft_seq& seq : data.run) held += seq.held[g] - seq.shared[g];
      group.free = starved_ ? below(8) : below(4000);
      group.total = static_cast<uint32_t>(held) + group.free + below(100);
      group.watermark = below(group.total / 8 + 1);
    }
    for (uint32_t rows = 1, ns = 100'000; rows < 4096 && below(6) != 0; rows *= 2) {
      ns += below(2'000'000);
      data.costs.push_back({rows, below(3), ns});
    }
    if (below(2))
      for (uint32_t id = 0; id < tenants_; ++id)
        if (below(5) != 0) data.tenants.push_back({id, 1 + below(4), below(1u << 20)});
    return data;
  }

 private:
  uint32_t below(uint32_t n) { return n == 0 ? 0 : static_cast<uint32_t>(random_() % n); }

  weft_seq any(uint32_t prompt, uint32_t context) {
    weft_seq seq = waiting(++id_, prompt, context);
    seq.arrive_ns = 1'000'000'000ull * below(101);
    seq.queued_ns = std::max<uint64_t>(seq.arrive_ns, 1'000'000'000ull * below(101));
    if (below(3) == 0) seq.deadline_ns = 95'000'000'000ull + 1'000'000ull * below(10'000);
    seq.tenant = below(tenants_);
    seq.weight = 1 + seq.tenant % 3;
    seq.priority = static_cast<int32_t>(below(bands_)) - 1;
    seq.output_max = 1 + below(600);
    seq.swap_bytes = below(2) ? 0 : below(1u << 28);
    seq.preemptions = below(4) == 0 ? 1 + below(3) : 0;
    if (below(3) == 0 && prompt > context) seq.boundary = context + 1 + below(prompt - context);
    if (below(10) == 0) seq.flags |= WEFT_SEQ_SHEDDABLE;
    return seq;
  }

  weft_seq run(const ViewData& data) {
    const uint32_t prompt = 1 + below(3000);
    weft_seq seq = any(prompt, below(prompt));
    if (below(2)) {
      seq.output = seq.fresh = 1 + below(seq.output_max);
      seq.known = prompt + seq.output;
      seq.context = seq.known - 1;
      seq.rows_max = 1;
      seq.boundary = 0;
    }
    if (below(12) == 0) seq.rows_max = 0;
    if (below(12) == 0) seq.flags |= WEFT_SEQ_PINNED;
    if (below(12) == 0) seq.flags |= WEFT_SEQ_LOADING, seq.rows_max = 0;
    if (seq.context > 0 || below(2)) hold(data.groups, &seq);
    for (uint32_t g = 0; g < data.groups.size(); ++g)
      seq.shared[g] = below(3) == 0 ? below(seq.held[g] + 1) : 0;
    return seq;
  }

  weft_seq wait(const ViewData& data) {
    const uint32_t prompt = 1 + below(3000);
    weft_seq seq = any(prompt, below(2) ? 0 : below(prompt));
    if (below(6) == 0) seq.flags |= WEFT_SEQ_PREEMPTED, seq.output = 1;
    if (below(12) == 0) seq.flags |= WEFT_SEQ_SWAPPED;
    if (seq.context > 0 && below(4) == 0) seq.restore_ns = 1 + below(10'000'000);
    if (below(8) == 0) seq.promised = below(prompt);
    if (below(4) == 0) hold(data.groups, &seq);
    return seq;
  }

  std::mt19937_64 random_;
  uint64_t id_ = 0;
  uint32_t bands_ = 1, tenants_ = 1;
  bool starved_ = false;
};

}  // namespace

TEST_CASE("plans of random views keep every rule of the contract") {
  RandomViews views(7);
  Policy policy, chunked({{"prefill_chunk", 64}, {"growth_tokens", 0}});
  weft::engine::PlanCheck host;
  for (int i = 0; i < 4000; ++i) {
    CAPTURE(i);
    ViewData data = views.next();
    Policy& used = i % 4 == 0 ? chunked : policy;
    const weft_sched_plan& plan = used.plan(data.get());
    REQUIRE(fault_of(data.view, plan) == "");
    const weft::Status status = host.check(data.view, plan);
    REQUIRE_MESSAGE(status.ok(), (status.ok() ? "" : status.error().message));
  }
}

TEST_CASE("the same view gives the same plan, whatever was planned before") {
  RandomViews views(8);
  Policy first;
  for (int i = 0; i < 500; ++i) {
    ViewData data = views.next();
    Policy fresh;
    const std::string plan = text_of(first.plan(data.get()));
    CHECK(text_of(first.plan(data.view)) == plan);
    CHECK(text_of(fresh.plan(data.view)) == plan);
  }
}

}  // namespace scheduler_continuous_test
