// One rule each, on small views.
#include <doctest/doctest.h>

#include "policy_fixture.h"

namespace scheduler_continuous_test {
namespace {

constexpr uint64_t kMs = 1'000'000;

// A step takes 5 ms and 0.1 ms for each row.
void add_costs(ViewData* data) {
  for (const uint32_t rows : {1u, 100u, 400u})
    data->costs.push_back({rows, 10, 5 * kMs + rows * kMs / 10});
}

}  // namespace

TEST_CASE("decodes come before prompts, and prompts share what is left") {
  Policy policy;
  ViewData data;
  data.view.token_budget = 300;
  data.run = {running(data, 1, 5000, 128), decoding(data, 2, 50, 3), decoding(data, 3, 50, 3)};
  data.wait = {waiting(4, 100)};
  const weft_sched_plan& plan = policy.plan(data.get());
  CHECK(fault_of(data.view, plan) == "");
  CHECK(rows_of_run(plan, 1) == 1);
  CHECK(rows_of_run(plan, 2) == 1);
  CHECK(rows_of_admit(plan, 0) == 100);  // short: before the second piece of a long one
  CHECK(rows_of_run(plan, 0) == 128);    // 198 rows are left, the grain is 128
}

TEST_CASE("short prompts take at most half of what prompts have") {
  Policy policy;
  ViewData data;
  data.view.chunk_grain = 1;
  data.run = {running(data, 1, 50000, 128)};
  for (uint64_t id = 2; id < 12; ++id) data.wait.push_back(waiting(id, 100));
  const weft_sched_plan& plan = policy.plan(data.get());
  CHECK(fault_of(data.view, plan) == "");
  uint32_t rows = 0;
  for (uint32_t i = 0; i < plan.n_admit; ++i) rows += plan.admit[i].rows;
  CHECK(rows_of_run(plan, 0) >= 512 / 2 * 3 / 4);
  CHECK(rows + rows_of_run(plan, 0) == 512);
}

TEST_CASE("a long prompt leaves a quarter, and gets it back when nobody wants it") {
  Policy policy;
  ViewData data;
  data.view.chunk_grain = 1;
  data.wait = {waiting(1, 50000), waiting(2, 40000)};
  CHECK(text_of(policy.plan(data.get())) == "admit 0 384;admit 1 128;");
  data.wait.pop_back();
  CHECK(text_of(policy.plan(data.get())) == "admit 0 512;");
  data.wait.push_back(waiting(2, 30));
  CHECK(text_of(policy.plan(data.get())) == "admit 0 482;admit 1 30;");
}

TEST_CASE("pieces end at boundaries, else at the grain, else where the prompt ends") {
  Policy policy, chunked({{"prefill_chunk", 200}});
  ViewData data;
  data.wait = {waiting(1, 1000, 10)};
  CHECK(text_of(policy.plan(data.get())) == "admit 0 502;");  // to 512
  data.wait[0].boundary = 77;
  CHECK(text_of(policy.plan(data.get())) == "admit 0 67;");
  data.wait[0].boundary = 600;  // out of reach
  CHECK(text_of(policy.plan(data.get())) == "admit 0 502;");
  CHECK(text_of(chunked.plan(data.get())) == "admit 0 118;");  // to 128
  data.wait[0] = waiting(1, 300, 10);
  CHECK(text_of(policy.plan(data.get())) == "admit 0 290;");
}

TEST_CASE("the wished step time limits prompts while somebody generates") {
  Policy policy;
  ViewData data;
  data.view.chunk_grain = 1;
  data.view.step_target_ns = 15 * kMs;  // 100 rows
  add_costs(&data);
  data.wait = {waiting(2, 5000)};
  CHECK(text_of(policy.plan(data.get())) == "admit 0 512;");
  data.run = {decoding(data, 1, 50, 3)};
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;admit 0 99;");
  data.view.step_target_ns = 45 * kMs;  // in the last measured piece
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;admit 0 399;");
  data.view.step_target_ns = 50 * kMs;  // beyond it
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;admit 0 449;");
  data.view.step_target_ns = kMs;  // impossible
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;admit 0 16;");
}

TEST_CASE("bands are strict; the least served tenant comes first within one") {
  Policy policy;
  ViewData data;
  data.view.token_budget = 100;
  data.view.chunk_grain = 1;
  data.wait = {waiting(1, 1000), waiting(2, 1000), waiting(3, 1000)};
  data.wait[2].priority = 1;
  data.wait[0].tenant = 7;
  data.wait[1].tenant = 9;
  data.wait[2].tenant = 7;
  data.tenants = {{7, 1, 100'000}, {9, 1, 10}};
  CHECK(text_of(policy.plan(data.get())) == "admit 2 100;");
  data.wait[2].priority = 0;
  CHECK(text_of(policy.plan(data.get())) == "admit 1 100;");
  data.tenants = {{7, 4, 40}, {9, 1, 12}};  // 10 per weight against 12
  CHECK(rows_of_admit(policy.plan(data.get()), 0) >= 75);
}

TEST_CASE("who waits for long moves up one band") {
  Policy policy({{"max_wait", 100 * static_cast<int64_t>(kMs)}});
  ViewData data;
  data.view.token_budget = 64;
  data.wait = {waiting(1, 64), waiting(2, 64), waiting(3, 64)};
  data.wait[0].priority = -10;
  data.wait[0].queued_ns = data.view.now_ns - 150 * kMs;
  data.wait[1].priority = 3;
  data.wait[2].priority = 50;
  data.wait[2].queued_ns = data.wait[1].queued_ns = data.view.now_ns;
  CHECK(text_of(policy.plan(data.get())) == "admit 2 64;");  // up to 3, not to 50
  data.wait[0].queued_ns = data.view.now_ns - 250 * kMs;
  CHECK(text_of(policy.plan(data.get())) == "admit 0 64;");
}

TEST_CASE("a preempted sequence comes back before new ones of its band") {
  Policy policy;
  ViewData data;
  data.view.run_budget = 1;
  data.wait = {waiting(1, 60), waiting(2, 60)};
  data.wait[0].tenant = 1;
  data.wait[0].flags = WEFT_SEQ_PREEMPTED;
  data.tenants = {{0, 1, 5}, {1, 1, 500'000}};
  CHECK(text_of(policy.plan(data.get())) == "admit 0 60;");
}

TEST_CASE("near deadlines come first, unless their tenant is far ahead; late ones are dropped") {
  Policy policy;
  ViewData data;
  add_costs(&data);
  data.view.run_budget = 1;
  data.wait = {waiting(1, 500), waiting(2, 100)};
  data.wait[1].deadline_ns = data.view.now_ns + 10'000 * kMs;
  CHECK(text_of(policy.plan(data.get())) == "admit 0 500;");
  data.wait[1].deadline_ns = data.view.now_ns + 50 * kMs;
  CHECK(text_of(policy.plan(data.get())) == "admit 1 100;");
  data.wait[1].tenant = 1;
  data.tenants = {{0, 1, 0}, {1, 1, 1'000'000}};
  CHECK(rows_of_admit(policy.plan(data.get()), 0) == 500);
  data.wait[1].deadline_ns = data.view.now_ns - 1;
  CHECK(text_of(policy.plan(data.get())) == "admit 0 500;drop 1;");
  data.wait[1].output = 3;  // its first token came in time: it is only preempted
  data.wait[1].flags = WEFT_SEQ_PREEMPTED;
  CHECK(text_of(policy.plan(data.get())) == "admit 1 100;");
}

TEST_CASE("an admission finds room for what it knows, for growth and for the watermark") {
  Policy policy({{"growth_tokens", 32}});
  ViewData data;
  data.run = {decoding(data, 1, 63, 1)};  // may want 2 units more soon
  data.wait = {waiting(2, 160)};          // 10 units and 2 for growth
  data.groups[0].free = 13;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;");
  data.groups[0].free = 15;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;admit 0 160;");
  data.groups[0].watermark = 2;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;");
  data.run.clear();
  data.groups[0].free = 10;
  CHECK(text_of(policy.plan(data.get())) == "admit 0 160;");  // nobody to leave room for
}

TEST_CASE("one that can never fit does not hold up the others") {
  Policy policy;
  ViewData data;
  data.groups[0].free = data.groups[0].total = 20;
  data.wait = {waiting(1, 1000), waiting(2, 50)};
  CHECK(text_of(policy.plan(data.get())) == "admit 1 50;");
}

TEST_CASE("who shares a prefix waits for the one that computes it, others do not") {
  Policy policy;
  ViewData data;
  data.run = {running(data, 1, 1000, 128)};
  data.wait = {waiting(2, 400), waiting(3, 100)};
  data.wait[0].promised = 384;
  const weft_sched_plan& plan = policy.plan(data.get());
  CHECK(rows_of_admit(plan, 0) == 0);
  CHECK(rows_of_admit(plan, 1) == 100);
  data.wait[0].promised = 127;  // too little to wait for
  CHECK(rows_of_admit(policy.plan(data.get()), 0) > 0);
  data.wait[0].promised = 384;
  data.run.clear();
  CHECK(rows_of_admit(policy.plan(data.get()), 0) > 0);
}

TEST_CASE("a prefix that has to be copied in starts with no rows") {
  Policy policy;
  ViewData data;
  data.view.run_budget = 1;
  data.wait = {waiting(1, 500, 400), waiting(2, 50)};
  data.wait[0].restore_ns = 3 * kMs;
  CHECK(text_of(policy.plan(data.get())) == "admit 0 0;");
}

TEST_CASE("the lowest priority, then the newest, gives its cache back") {
  Policy policy;
  ViewData data;
  for (uint64_t id = 1; id <= 4; ++id) data.run.push_back(decoding(data, id, 44, 20));
  for (weft_seq& seq : data.run) seq.context = 64, seq.known = 65, seq.held[0] = 4;
  data.groups[0].free = 2;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;run 1 1;run 2 1;preempt 3 0;");
  data.run[1].priority = -1;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;run 2 1;run 3 1;preempt 1 0;");
  data.run[1].flags = WEFT_SEQ_PINNED;
  data.run[1].priority = 0;
  data.run[3].output = 95;  // nearly done
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;run 1 1;run 3 1;preempt 2 0;");
  data.run[2].fresh = 3;  // came back a moment ago
  data.run[2].preemptions = 1;
  CHECK(text_of(policy.plan(data.get())) == "run 1 1;run 2 1;run 3 1;preempt 0 0;");
  data.run = {data.run[0]};
  data.groups[0].free = 0;
  CHECK(text_of(policy.plan(data.get())) == "");  // the only one: nobody to take from
}

TEST_CASE("a copy to host memory when it is faster than computing again") {
  Policy policy;
  ViewData data;
  add_costs(&data);
  for (uint64_t id = 1; id <= 2; ++id) data.run.push_back(decoding(data, id, 44, 20));
  for (weft_seq& seq : data.run) seq.context = 64, seq.known = 65, seq.held[0] = 4;
  data.groups[0].free = 1;
  data.run[1].swap_bytes = 10'000'000;  // 1 ms each way against 11 ms
  data.view.swap_free = 20'000'000;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;preempt 1 1;");
  data.view.swap_free = 9'000'000;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;preempt 1 0;");
  data.view.swap_free = UINT64_MAX;
  data.run[1].swap_bytes = 100'000'000;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;preempt 1 0;");
}

TEST_CASE("a higher band takes a place, from one that has had its time") {
  Policy policy;
  ViewData data;
  data.view.run_budget = 2;
  data.run = {decoding(data, 1, 50, 40), decoding(data, 2, 50, 40)};
  data.wait = {waiting(3, 60)};
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;run 1 1;");
  data.wait[0].priority = 1;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;preempt 1 0;");
  data.run[1].fresh = 20;
  CHECK(text_of(policy.plan(data.get())) == "run 1 1;preempt 0 0;");
  data.run[0].flags = WEFT_SEQ_PINNED;
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;run 1 1;");
}

TEST_CASE("tenants above their share leave some places to others") {
  Policy policy;
  ViewData data;
  data.view.run_budget = 10;
  for (uint64_t id = 1; id <= 8; ++id) data.run.push_back(decoding(data, id, 50, 40));
  data.wait = {waiting(20, 60)};
  CHECK(policy.plan(data.get()).n_admit == 1);
  data.tenants = {{0, 1, 50}, {1, 1, 60}};  // somebody else may come
  CHECK(policy.plan(data.get()).n_admit == 0);
  data.wait.push_back(waiting(21, 60));
  data.wait[1].tenant = 1;
  const weft_sched_plan& plan = policy.plan(data.get());
  CHECK(plan.n_admit == 1);
  CHECK(rows_of_admit(plan, 1) == 60);
}

TEST_CASE("a tenant above its share gives a place to one that is not, and does not take it back") {
  Policy policy;
  ViewData data;
  data.view.run_budget = 4;
  for (uint64_t id = 1; id <= 4; ++id) data.run.push_back(decoding(data, id, 50, 40));
  data.wait = {waiting(20, 60)};
  data.wait[0].tenant = 1;
  data.tenants = {{0, 1, 50}, {1, 1, 60}};
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;run 1 1;run 2 1;preempt 3 0;");
  data.run.pop_back();
  data.wait.insert(data.wait.begin(), waiting(4, 90));
  data.wait[0].flags = WEFT_SEQ_PREEMPTED;
  data.wait[0].preemptions = 1;
  data.tenants = {{0, 1, 70}, {1, 1, 60}};
  CHECK(text_of(policy.plan(data.get())) == "run 0 1;run 1 1;run 2 1;admit 1 60;");
}

TEST_CASE("an overloaded queue says when to ask again") {
  Policy open, strict({{"max_queue", 100 * static_cast<int64_t>(kMs)}});
  ViewData data;
  add_costs(&data);
  uint64_t retry_ns = 7;
  const weft_seq seq = waiting(9, 10);
  for (uint64_t id = 1; id <= 4; ++id) data.wait.push_back(waiting(id, 512));
  CHECK(open.admit(data.get(), seq, &retry_ns) == WEFT_OK);
  CHECK(strict.admit(data.get(), seq, &retry_ns) == WEFT_AGAIN);
  CHECK(retry_ns > 50 * kMs);  // four steps of 56 ms are ahead
  CHECK(retry_ns < 200 * kMs);
  weft_seq other = seq;  // another tenant's queue is not in its way
  other.tenant = 5;
  CHECK(strict.admit(data.get(), other, &retry_ns) == WEFT_OK);
  data.wait.resize(1);
  CHECK(strict.admit(data.get(), seq, &retry_ns) == WEFT_OK);
  other = seq;
  other.flags = WEFT_SEQ_SHEDDABLE;  // meets half the patience
  CHECK(strict.admit(data.get(), other, &retry_ns) == WEFT_AGAIN);
}

TEST_CASE("more decodes than the step takes: all get their turn") {
  Policy policy;
  ViewData data;
  data.view.token_budget = 3;
  for (uint64_t id = 0; id < 8; ++id) data.run.push_back(decoding(data, id, 50, 40));
  std::vector<int> turns(8, 0);
  for (data.view.step = 0; data.view.step < 8; ++data.view.step) {
    const weft_sched_plan& plan = policy.plan(data.get());
    CHECK(plan.n_run == 3);
    for (uint32_t i = 0; i < plan.n_run; ++i) ++turns[plan.run[i].index];
  }
  for (const int n : turns) CHECK(n == 3);
}

}  // namespace scheduler_continuous_test
