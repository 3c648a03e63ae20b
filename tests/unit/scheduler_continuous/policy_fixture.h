// The plugin through its ABI, arrays for its plans, and an independent check of a plan, written
// from weft/scheduler.h. For the tests of this directory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weft/host.h"
#include "weft/scheduler.h"

namespace scheduler_continuous_test {

// An instance with settings such as {"prefill_chunk", 64}.
class Policy {
 public:
  explicit Policy(const std::map<std::string, int64_t>& settings = {});
  ~Policy();
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // The plan stays valid until the next call.
  const weft_sched_plan& plan(const weft_sched_view& view);
  weft_status admit(const weft_sched_view& view, const weft_seq& seq, uint64_t* retry_after_ns);
  uint64_t caps() const { return table_->head.caps; }
  static const weft_desc& desc();

 private:
  weft_host host_{};
  weft_err err_{sizeof(weft_err), 0, 0, ""};
  const weft_scheduler_v1* table_ = nullptr;
  const weft_life* life_ = nullptr;
  weft_plugin* plugin_ = nullptr;
  weft_instance* self_ = nullptr;
  weft_sched_plan plan_{};
  std::vector<weft_share> run_, admit_;
  std::vector<weft_preempt> preempt_;
  std::vector<uint32_t> drop_;
};

// A view that owns its arrays. Call get() after every change.
struct ViewData {
  weft_sched_view view{};
  std::vector<weft_seq> wait, run;
  std::vector<weft_sched_group> groups;
  std::vector<weft_sched_cost> costs;
  std::vector<weft_sched_tenant> tenants;

  // Budgets that do not bind, one group of rows and one of states, no costs.
  ViewData();
  const weft_sched_view& get();
};

// A waiting sequence with a prompt of which `context` tokens are cached.
weft_seq waiting(uint64_t id, uint32_t prompt, uint32_t context = 0);
// A running one with `context` tokens computed, of `known`; holds the units for them.
weft_seq running(const ViewData& data, uint64_t id, uint32_t prompt, uint32_t context);
// As running(), past its prompt: `output` tokens generated.
weft_seq decoding(const ViewData& data, uint64_t id, uint32_t prompt, uint32_t output);
void hold(const std::vector<weft_sched_group>& groups, weft_seq* seq);

// What is wrong with a plan, empty when nothing: the rules of the contract and of this policy.
std::string fault_of(const weft_sched_view& view, const weft_sched_plan& plan);
// The plan as text, for comparisons.
std::string text_of(const weft_sched_plan& plan);
uint32_t rows_of_run(const weft_sched_plan& plan, uint32_t index);
uint32_t rows_of_admit(const weft_sched_plan& plan, uint32_t index);

}  // namespace scheduler_continuous_test
