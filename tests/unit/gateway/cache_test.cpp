// What the gateway tells the worker for its cache and its scheduler, and what it counts of the
// answer.
#include "gateway_fixture.h"

using namespace weft;        // NOLINT test file
using namespace weft::test;  // NOLINT test file

namespace {

const wire::Generate& generate(GatewayBench& b, uint64_t id) {
  return b.backend.sequences[id].generate;
}

}  // namespace

TEST_CASE("tenant, weight, salt, priority and deadline travel with every sequence of a request") {
  GatewayBench b;
  b.tenant = "acme";
  b.tenant_weight = 4;
  b.chat({{"n", 2}, {"cache_salt", "s"}, {"priority", -3}, {"deadline_ms", 60'000}});
  b.wait_sequences(2);
  for (uint64_t id = 1; id <= 2; ++id) {
    const wire::Generate& g = generate(b, id);
    CHECK(g.tenant() == "acme");
    CHECK(g.tenant_weight() == 4);
    CHECK(g.cache_salt() == "s");
    CHECK(g.priority() == -3);
    CHECK(g.deadline_ms() > 0);
    CHECK(g.deadline_ms() <= 60'000);  // the preparation counts
    CHECK_FALSE(g.no_cache());
    b.backend.finish(id, wire::FINISH_STOP);
  }
  CHECK(b.gateway->list().empty());
  b.tenant.clear();
  b.tenant_weight = 1;
  b.complete({{"prompt", {1, 2, 3}}});
  b.wait_sequences(3);
  CHECK(generate(b, 3).tenant().empty());
  CHECK(generate(b, 3).deadline_ms() == 0);
  CHECK(generate(b, 3).boundaries_size() == 0);  // raw text has no parts that we know
  b.backend.finish(3, wire::FINISH_STOP);
  b.check_idle();
}

TEST_CASE("the boundary behind system message and tools is the same for every conversation") {
  GatewayBench b;
  const Json system{{"role", "system"}, {"content", "You are a parrot."}};
  const Json tools = Json::parse(
      R"([{"type":"function","function":{"name":"fly","parameters":{"type":"object","properties":{}}}}])");
  b.chat({{"messages", {system, {{"role", "user"}, {"content", "Hello!"}}}}, {"tools", tools}});
  b.wait_sequences(1);
  b.chat(
      {{"messages", {system, {{"role", "user"}, {"content", "Fly, please."}}}}, {"tools", tools}});
  b.wait_sequences(2);
  const wire::Generate &one = generate(b, 1), &two = generate(b, 2);
  REQUIRE(one.boundaries_size() == 1);
  REQUIRE(two.boundaries_size() == 1);
  const int at = static_cast<int>(one.boundaries(0));
  CHECK(two.boundaries(0) == one.boundaries(0));
  REQUIRE(at < std::min(one.prompt_size(), two.prompt_size()));
  CHECK(std::equal(one.prompt().begin(), one.prompt().begin() + at, two.prompt().begin()));
  const Ids head(one.prompt().begin(), one.prompt().begin() + at);
  const std::string text = text::decode(*micro_model()->tokenizer, head, false);
  CHECK(text.find("parrot") != std::string::npos);
  CHECK(text.find("fly") != std::string::npos);
  CHECK(text.find("Hello") == std::string::npos);
  b.backend.finish(1, wire::FINISH_STOP);
  b.backend.finish(2, wire::FINISH_STOP);
  b.check_idle();
}

TEST_CASE("a deadline that passed in the queue is 504, and bad deadlines are refused") {
  GatewayBench b;
  FakeClient& late = b.chat({{"deadline_ms", 50}});
  b.wait_sequences(1);
  b.backend.error(1, "deadline", "waited 51 ms for a place, its deadline was 50 ms");
  REQUIRE(late.done());
  CHECK(late.status == 504);
  CHECK(late.json()["error"]["code"] == "deadline_exceeded");
  CHECK(late.body.find("its deadline was 50 ms") != std::string::npos);
  CHECK(late.header("retry-after").empty());
  for (const Json& bad : {Json(0), Json(-1), Json("soon"), Json(1.5), Json(86'400'001)}) {
    CAPTURE(bad.dump());
    FakeClient& client = b.chat({{"deadline_ms", bad}});
    b.until([&] { return client.done(); });
    CHECK(client.status == 400);
    CHECK(client.json()["error"]["param"] == "deadline_ms");
  }
  b.check_idle();
  CHECK(b.model_metric("vllm:prompt_tokens_total") == 0);  // it was never taken in
}

TEST_CASE("the request id of a body names the request unless a header does") {
  GatewayBench b;
  FakeClient& client = b.chat({{"request_id", "trace-7"}});
  b.wait_sequences(1);
  b.backend.tokens(1, turn("", "x"), wire::FINISH_STOP);
  REQUIRE(client.done());
  CHECK(client.header("x-request-id") == "trace-7");
  b.check_idle();
}

TEST_CASE("cached tokens are counted once, from the record of the admission") {
  GatewayBench b;
  FakeClient& client = b.chat();
  b.wait_sequences(1);
  const int prompt = generate(b, 1).prompt_size();
  b.backend.admit(1, 8, 3);
  b.backend.admit(1, 0, 0);  // taken in again after a preemption
  b.backend.admit(1, 9, 9);
  b.backend.tokens(1, turn("", "x"), wire::FINISH_STOP);
  REQUIRE(client.done());
  const Json usage = client.json()["usage"];
  CHECK(usage["prompt_tokens_details"]["cached_tokens"] == 8);
  CHECK(usage["cached_tokens"] == 8);
  CHECK(b.from("local_cache_hit") == 5);
  CHECK(b.from("external_kv_transfer") == 3);
  CHECK(b.from("local_compute") == prompt - 8);
  b.check_idle();

  // More than the prompt cannot be, whoever says so; the reported prompt has no opener.
  FakeClient& all = b.chat();
  b.wait_sequences(2);
  b.backend.admit(2, 1'000'000, 2'000'000);
  b.backend.tokens(2, turn("", "x"), wire::FINISH_STOP);
  REQUIRE(all.done());
  CHECK(all.json()["usage"]["prompt_tokens"] == prompt - 3);
  CHECK(all.json()["usage"]["cached_tokens"] == prompt - 3);
  CHECK(b.from("external_kv_transfer") == 3 + prompt);
  b.check_idle();
}

TEST_CASE("n samples count their prompt once, with the record of the first one taken in") {
  GatewayBench b;
  FakeClient& client =
      b.complete({{"prompt", {{1, 2, 3, 4}, {5, 6, 7}}}, {"n", 2}, {"max_tokens", 4}});
  b.wait_sequences(4);
  b.backend.admit(2, 1);  // the second sample comes first
  b.backend.admit(1, 3);  // and could already use what it left
  b.backend.admit(3, 2);
  b.backend.admit(4, 2);
  for (uint64_t id = 1; id <= 4; ++id) b.backend.tokens(id, Ids(id, 9), wire::FINISH_LENGTH);
  REQUIRE(client.done());
  const Json usage = client.json()["usage"];
  CHECK(usage["prompt_tokens"] == 7);
  CHECK(usage["prompt_tokens_details"]["cached_tokens"] == 3);
  CHECK(b.from("local_cache_hit") == 3);
  CHECK(b.from("local_compute") == 4);
  CHECK(b.model_metric("vllm:request_params_max_tokens_sum") == 8);
  CHECK(b.model_metric("vllm:request_max_num_generation_tokens_sum") == 2 + 4);
  b.check_idle();
}

TEST_CASE("requests that were refused, cancelled or left while they waited are not counted") {
  GatewayBench b;
  for (int i = 0; i < 4; ++i) {
    b.chat({{"stream", i % 2 == 0}});
    b.wait_sequences(static_cast<size_t>(i) + 1);
  }
  b.backend.error(1, "unavailable", "the queue is full");
  b.clients[1]->disconnect();
  b.gateway->cancel(b.gateway->list().front().id);
  b.check_tokens_add_up();
  CHECK(b.model_metric("vllm:prompt_tokens_total") == 0);
  for (const auto& view : b.gateway->list()) b.gateway->cancel(view.id);
  b.settle();
  // Taken in, then given up: what was taken from the cache was taken.
  FakeClient& taken = b.chat();
  b.wait_sequences(5);
  b.backend.admit(5, 4);
  taken.disconnect();
  FakeClient& failed = b.chat();
  b.wait_sequences(6);
  b.backend.admit(6, 1, 1);
  b.backend.error(6, "internal", "x");
  CHECK(failed.done());
  CHECK(b.model_metric("vllm:prompt_tokens_total") == 2 * generate(b, 5).prompt_size());
  CHECK(b.model_metric("vllm:prompt_tokens_cached_total") == 5);
  b.check_idle();
}

TEST_CASE("what a worker says of its cache and its scheduler becomes metrics, across its lives") {
  config::Config config;
  config.deployments.resize(1);
  config.deployments[0].name = "micro";
  config.deployments[0].cache.host_memory_bytes = 512;
  GatewayBench b(config);
  gateway::ReplicaInfo& info = b.backend.mutable_info();
  wire::CacheGroup& rows = *info.ready.add_groups();
  rows.set_name("mla");
  rows.set_kind("rows");
  rows.set_units_total(10);
  rows.set_tokens_per_unit(64);
  wire::WorkerStats& s = info.stats;
  s.set_waiting(5);
  s.set_swapped(2);
  wire::GroupUse& use = *s.add_groups();
  use.set_name("mla");
  use.set_units_total(10);
  use.set_units_used(2);
  use.set_units_cached(5);
  s.mutable_cache()->set_snapshots(3);
  s.mutable_cache()->set_recomputed_tokens(7);
  s.mutable_cache()->set_host_bytes_used(100);
  s.mutable_cache()->set_host_bytes_total(512);
  s.mutable_scheduler()->set_plans_total(20);
  s.mutable_scheduler()->set_stalled(1);
  s.set_preemptions_total(4);
  const auto blocks = [&](const char* state) {
    return b.metric(
        fmt::format("weft_kv_blocks{{group=\"mla\",model_name=\"micro\",state=\"{}\"}}", state));
  };
  const auto waiting = [&](const char* reason) {
    return b.metric(fmt::format(
        "vllm:num_requests_waiting_by_reason{{model_name=\"micro\",reason=\"{}\"}}", reason));
  };
  CHECK(b.model_metric("vllm:kv_cache_usage_perc") == 0.2);  // cached units are not used
  CHECK(blocks("free") == 3);
  CHECK(blocks("cached") == 5);
  CHECK(blocks("active") == 2);
  CHECK(waiting("capacity") == 3);
  CHECK(waiting("swapped") == 2);
  CHECK(b.model_metric("weft_cache_snapshots") == 3);
  CHECK(b.metric("weft_cache_host_bytes{model_name=\"micro\",state=\"free\"}") == 412);
  CHECK(b.model_metric("vllm:prompt_tokens_recomputed_total") == 7);
  CHECK(b.model_metric("weft_sched_plans_total") == 20);
  CHECK(b.model_metric("weft_sched_stalled") == 1);
  CHECK(b.metric("vllm:cache_config_info{block_size=\"64\",enable_prefix_caching=\"True\","
                 "host_memory_bytes=\"512\",model_name=\"micro\",num_gpu_blocks=\"10\"}") == 1);
  s.mutable_scheduler()->set_plans_total(25);
  CHECK(b.model_metric("weft_sched_plans_total") == 25);
  // The next life counts from zero; the totals go on.
  s.Clear();
  s.mutable_scheduler()->set_plans_total(2);
  s.mutable_cache()->set_recomputed_tokens(1);
  CHECK(b.model_metric("weft_sched_plans_total") == 27);
  CHECK(b.model_metric("vllm:prompt_tokens_recomputed_total") == 8);
  CHECK(b.model_metric("vllm:num_preemptions_total") == 4);
  b.gateway->metrics().step("micro", 300);
  CHECK(b.model_metric("vllm:iteration_tokens_total_sum") == 300);
}

TEST_CASE("random admissions: local + host + computed = prompt, whatever becomes of the requests") {
  std::mt19937 rng(11);
  GatewayBench b;
  int64_t prompts = 0, cached = 0;
  for (uint64_t id = 1; id <= 60; ++id) {
    FakeClient& client = b.chat({{"stream", rng() % 2 == 0}});
    b.wait_sequences(id);
    const auto size = static_cast<uint32_t>(generate(b, id).prompt_size());
    const auto fate = rng() % 5;
    if (fate == 0) {
      b.backend.error(id, "unavailable", "full");
      continue;
    }
    const auto found = static_cast<uint32_t>(rng() % size);
    const auto host = static_cast<uint32_t>(rng() % (found + 1));
    for (unsigned times = 0; times <= rng() % 2; ++times) b.backend.admit(id, found, host);
    prompts += size;
    cached += found;
    b.check_tokens_add_up();
    if (fate == 1)
      client.disconnect();
    else if (fate == 2)
      b.backend.error(id, "internal", "x");
    else
      b.backend.tokens(id, turn("", "x"), wire::FINISH_STOP);
  }
  CHECK(b.model_metric("vllm:prompt_tokens_total") == static_cast<double>(prompts));
  CHECK(b.model_metric("vllm:prompt_tokens_cached_total") == static_cast<double>(cached));
  b.check_idle();
}
