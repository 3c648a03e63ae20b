// The plugin as the host sees it: descriptor, settings, what it claims, views it cannot read.
#include <doctest/doctest.h>

#include <cstring>

#include "policy_fixture.h"

namespace scheduler_continuous_test {
namespace {

struct Opened {
  weft_host host{};
  weft_err err{sizeof(weft_err), 0, 0, ""};
  weft_plugin* plugin = nullptr;
  weft_instance* self = nullptr;
  const weft_interface& face = Policy::desc().interfaces[0];
  const weft_scheduler_v1* table = reinterpret_cast<const weft_scheduler_v1*>(face.table);

  Opened() {
    host.struct_size = sizeof host;
    REQUIRE(Policy::desc().open(&host, &plugin, &err) == WEFT_OK);
  }
  ~Opened() {
    if (self != nullptr) face.life->destroy(self);
    Policy::desc().close(plugin);
  }
  weft_status create(const char* name, int64_t i, double r = 0) {
    weft_param param{};
    param.name = name;
    param.i = i;
    param.r = r;
    return face.life->create(plugin, &param, 1, &self, &err);
  }
};

}  // namespace

TEST_CASE("the descriptor names one scheduler and what it looks at") {
  const weft_desc& desc = Policy::desc();
  CHECK(std::string(desc.name) == "scheduler_continuous");
  CHECK(std::string(desc.interfaces[0].id) == WEFT_SCHEDULER_ID);
  CHECK(desc.interfaces[1].id == nullptr);
  const Policy policy;
  CHECK((policy.caps() & WEFT_SCHEDULER_CAP_DEADLINES) != 0);
  CHECK((policy.caps() & WEFT_SCHEDULER_CAP_TENANTS) != 0);
  CHECK((policy.caps() & WEFT_SCHEDULER_CAP_DRAFTS) == 0);
}

TEST_CASE("settings outside their range are refused with their name and range") {
  for (const auto& [name, value] : std::vector<std::pair<const char*, int64_t>>{
           {"min_prefill", 0}, {"tenant_reserve", 91}, {"prefill_chunk", -1}, {"max_wait", -1}}) {
    CAPTURE(name);
    Opened opened;
    CHECK(opened.create(name, value) == WEFT_E_CONFIG);
    CHECK(std::strstr(opened.err.msg, name) != nullptr);
    CHECK(std::strstr(opened.err.msg, "expected") != nullptr);
  }
  Opened opened;
  CHECK(opened.create("swap_gbps", 0, -1.0) == WEFT_E_CONFIG);
  CHECK(std::strstr(opened.err.msg, "swap_gbps") != nullptr);
}

TEST_CASE("views that it cannot read are the host's mistake") {
  Opened opened;
  REQUIRE(opened.create("quantum", 100) == WEFT_OK);
  ViewData data;
  weft_sched_view view = data.get();
  weft_share share{};
  weft_preempt preempt{};
  uint32_t drop = 0;
  weft_sched_plan plan{sizeof plan, 1, 0, 0, 0, 0, &share, &share, &preempt, &drop};
  view.n_groups = WEFT_CACHE_GROUPS_MAX + 1;
  CHECK(opened.table->plan(opened.self, &view, &plan) == WEFT_E_ARG);
  weft_seq seq = waiting(1, 10);
  uint64_t retry_ns = 0;
  CHECK(opened.table->admit(opened.self, &view, &seq, &retry_ns, &opened.err) == WEFT_E_ARG);
  view = data.get();
  view.struct_size = 16;
  CHECK(opened.table->plan(opened.self, &view, &plan) == WEFT_E_ARG);
  view = data.get();
  CHECK(opened.table->plan(opened.self, &view, &plan) == WEFT_OK);
  CHECK(plan.n_run + plan.n_admit + plan.n_preempt + plan.n_drop == 0);
}

TEST_CASE("a host without the table of tenants is served") {
  Policy policy;
  ViewData data;
  data.wait = {waiting(1, 100), waiting(2, 100)};
  data.wait[1].tenant = 5;
  weft_sched_view view = data.get();
  view.struct_size = offsetof(weft_sched_view, tenants);
  CHECK(text_of(policy.plan(view)) == "admit 0 100;admit 1 100;");
}

}  // namespace scheduler_continuous_test
