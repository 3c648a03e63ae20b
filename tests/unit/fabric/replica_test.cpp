// Supervision of a worker process: its lives, its deaths, and what requests hear of them.
#include "fabric/replica.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>

#include "fake_orders.h"
#include "temp_dir.h"

using namespace weft;          // NOLINT test file
using namespace weft::fabric;  // NOLINT test file
using fabric_test::Order;
using gateway::ReplicaState;

namespace {

struct Recorder final : gateway::GenerationListener {
  void on_tokens(const wire::SequenceTokens& u) override {
    CHECK_FALSE(over);
    tokens.insert(tokens.end(), u.tokens().begin(), u.tokens().end());
    admitted = admitted || u.admitted();
    if (u.finish() != wire::FINISH_NONE) {
      over = true;
      finish = u.finish();
    }
    if (on_event) on_event();
  }
  void on_lost(const Error& why) override {
    CHECK_FALSE(over);
    over = true;
    ++lost;
    reason = why.message;
    if (on_event) on_event();
  }
  std::vector<int32_t> tokens;
  bool admitted = false, over = false;
  wire::Finish finish = wire::FINISH_NONE;
  int lost = 0;
  std::string reason;
  std::function<void()> on_event;
};

struct Bench {
  explicit Bench(const char* mode, int64_t stall_ms = 600'000,
                 const char* program = WEFT_FAKE_WORKER) {
    REQUIRE(::mkfifo(dir.file("alive").c_str(), 0600) == 0);
    alive = UniqueFd(::open(dir.file("alive").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    ::setenv("FAKE_WORKER_MODE", mode, 1);
    ::setenv("FAKE_WORKER_DIR", dir.path().c_str(), 1);
    loop = std::move(Loop::make()).value();
    reaper = std::move(ChildReaper::make(*loop)).value();
    ReplicaOptions options;
    options.deployment.name = "fake";
    options.deployment.model = "/no/model";
    options.deployment.max_context = 77;
    options.deployment.isa_max = "ref";
    options.deployment.restart_backoff_ms = 10;
    options.deployment.restart_backoff_max_ms = 40;
    options.deployment.stall_timeout_ms = stall_ms;
    options.deployment.cache.host_memory_bytes = 1 << 20;
    options.deployment.scheduler.policy = "fcfs";
    options.deployment.scheduler.itl_target_ms = 3;
    options.deployment.scheduler.prefill_chunk = 64;
    options.deployment.scheduler.trace = "/trace";
    options.deployment.scheduler.params = {{"k", "v"}};
    options.audit_timeout_ms = 100;
    options.worker_program = program;
    ReplicaEvents events;
    events.on_change = [this] {
      const ReplicaState state = replica->info().state;
      if (states.empty() || states.back() != state) states.push_back(state);
    };
    events.on_cancel_freed = [this](double) { ++freed; };
    events.on_step = [this](uint64_t) { ++steps; };
    replica = std::make_unique<Replica>(*loop, *reaper, std::move(options), std::move(events));
    replica->start();
  }
  // Whatever a test did: no zombie and no process of ours may be left.
  ~Bench() {
    replica.reset();
    until([&] { return reaper->watched() == 0; });
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
    CHECK(errno == ECHILD);
    if (lives() > 0) CHECK(all_gone());
    reaper.reset();
  }
  bool all_gone() {  // the last writer of the FIFO is dead
    pollfd p{alive.get(), POLLIN, 0};
    return ::poll(&p, 1, 30'000) == 1 && (p.revents & POLLHUP) != 0;
  }
  size_t lives() const {
    std::error_code none;
    const auto size = std::filesystem::file_size(dir.file("lives"), none);
    return none ? 0 : static_cast<size_t>(size);
  }
  void until(const std::function<bool()>& condition) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      REQUIRE_MESSAGE(
          std::chrono::steady_clock::now() < limit,
          "state " << gateway::to_string(replica->info().state) << " " << replica->info().reason);
      uv_run(loop->raw(), UV_RUN_ONCE);
    }
  }
  void until_state(ReplicaState state) {
    until([&] { return replica->info().state == state; });
  }
  uint64_t submit(Order order, Recorder& listener, std::vector<int32_t> rest = {}) {
    wire::Generate g;
    g.add_prompt(static_cast<int32_t>(order));
    for (int32_t id : rest) g.add_prompt(id);
    auto id = replica->submit(std::move(g), &listener);
    REQUIRE(id.ok());
    return *id;
  }
  void stop(uint64_t grace_ms = 600'000) {
    bool stopped = false;
    replica->stop(grace_ms, [&] { stopped = true; });
    CHECK_FALSE(stopped);  // never inside the call
    until([&] { return stopped; });
    CHECK(replica->info().state == ReplicaState::kStopped);
    CHECK(replica->info().worker_pid == 0);
    CHECK(reaper->watched() == 0);
  }

  TempDir dir;
  UniqueFd alive;
  std::unique_ptr<Loop> loop;
  std::unique_ptr<ChildReaper> reaper;
  std::unique_ptr<Replica> replica;
  std::vector<ReplicaState> states;
  int freed = 0;
  int steps = 0;
};

using AuditResult = std::optional<Result<wire::AuditReport>>;
AuditResult audit(Bench& b, bool drop_cache = false) {
  AuditResult out;
  b.replica->audit(drop_cache, [&](Result<wire::AuditReport> r) { out = std::move(r); });
  b.until([&] { return out.has_value(); });
  return out;
}

}  // namespace

TEST_CASE("a worker loads, becomes ready, serves, and stops") {
  Bench b("normal");
  Recorder early;
  wire::Generate g;
  g.add_prompt(1);
  const auto refused = b.replica->submit(g, &early);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::kUnavailable);
  b.until_state(ReplicaState::kReady);
  CHECK(b.states ==
        std::vector{ReplicaState::kStarting, ReplicaState::kLoading, ReplicaState::kReady});
  CHECK(b.replica->info().ready.max_context() == 77);
  CHECK(b.replica->info().ready.kernels() == "ref");
  CHECK(b.replica->info().ready.max_sequences() == 64);
  CHECK(b.replica->making_progress());
  Recorder one, two;
  const uint64_t first = b.submit(Order::kEcho, one, {10, 11, 12});
  const uint64_t second = b.submit(Order::kEcho, two, {20});
  CHECK(first != second);
  CHECK(b.replica->in_flight() == 2);
  b.until([&] { return one.over && two.over; });
  CHECK(one.tokens == std::vector<int32_t>{10, 11, 12});
  CHECK(one.admitted);
  CHECK(one.finish == wire::FINISH_STOP);
  CHECK(two.tokens == std::vector<int32_t>{20});
  CHECK(b.replica->in_flight() == 0);
  Recorder held;
  b.submit(Order::kHold, held);
  b.stop();
  CHECK(held.over);
  CHECK((held.finish == wire::FINISH_CANCELLED || held.lost == 1));
  CHECK(b.replica->info().restarts == 0);
  CHECK(b.lives() == 1);
  CHECK_FALSE(b.replica->submit(g, &early).ok());
}

TEST_CASE("cancel ends a sequence and says when its blocks are free") {
  Bench b("normal");
  b.until_state(ReplicaState::kReady);
  Recorder one, two, natural;
  const uint64_t id = b.submit(Order::kHold, one);
  b.submit(Order::kHold, two);
  b.replica->cancel(id, "test");
  b.replica->cancel(id, "again");
  b.replica->cancel(999, "unknown");
  CHECK_FALSE(one.over);
  b.until([&] { return one.over; });
  CHECK(one.finish == wire::FINISH_CANCELLED);
  CHECK(b.freed == 1);
  CHECK_FALSE(two.over);
  b.submit(Order::kEcho, natural, {1});
  b.until([&] { return natural.over; });
  CHECK(b.freed == 1);
  b.replica->cancel(id, "long gone");
  CHECK(b.replica->in_flight() == 1);
}

TEST_CASE("a forgotten listener is never called again") {
  Bench b("normal");
  b.until_state(ReplicaState::kReady);
  auto gone = std::make_unique<Recorder>();
  const uint64_t id = b.submit(Order::kHold, *gone);
  b.replica->forget(id, "test");
  gone.reset();
  b.until([&] { return b.freed == 1; });
  CHECK(b.replica->in_flight() == 0);
  // One that ends by itself at the same moment.
  gone = std::make_unique<Recorder>();
  const uint64_t echo = b.submit(Order::kEcho, *gone, {1, 2, 3});
  b.replica->forget(echo, "test");
  gone.reset();
  b.until([&] { return b.replica->in_flight() == 0; });
  CHECK(b.freed == 2);
}

TEST_CASE("a crash in mid-stream: everybody hears it once, the next life serves") {
  for (const Order order : {Order::kExit, Order::kGarbage, Order::kCloseAndHang}) {
    CAPTURE(static_cast<int>(order));
    Bench b("normal");
    b.until_state(ReplicaState::kReady);
    Recorder held[3], crash, forgotten;
    for (Recorder& r : held) b.submit(Order::kHold, r);
    const uint64_t id = b.submit(Order::kHold, forgotten);
    b.replica->forget(id, "test");
    b.submit(order, crash);
    b.until([&] { return crash.over; });
    b.until([&] { return held[0].over && held[1].over && held[2].over; });
    for (const Recorder& r : held) {
      CHECK(r.lost == 1);
      CHECK(r.reason.find("model fake was lost") != std::string::npos);
    }
    CHECK(crash.lost == 1);
    CHECK_FALSE(forgotten.over);
    CHECK(b.replica->in_flight() == 0);
    CHECK(b.replica->info().state != ReplicaState::kReady);
    b.until_state(ReplicaState::kReady);
    CHECK(b.lives() == 2);
    CHECK(b.replica->info().restarts == 1);
    CHECK(b.replica->backoff_ms() == 10);
    Recorder again;
    CHECK(b.submit(Order::kEcho, again, {5}) > id);  // ids are not used twice
    b.until([&] { return again.over; });
    CHECK(again.tokens == std::vector<int32_t>{5});
    b.stop();
  }
}

TEST_CASE("what a worker said before it was killed still counts") {
  for (int round = 0; round < 10; ++round) {
    Bench b("normal");
    b.until_state(ReplicaState::kReady);
    Recorder held, last;
    b.submit(Order::kHold, held);
    b.submit(Order::kLastWords, last);
    b.until([&] { return last.over; });
    CHECK(held.finish == wire::FINISH_STOP);
    CHECK(held.tokens == std::vector<int32_t>{42});
    CHECK(last.lost == 1);
  }
}

TEST_CASE("a listener that is told of a loss may forget the others") {
  Bench b("normal");
  b.until_state(ReplicaState::kReady);
  auto one = std::make_unique<Recorder>(), two = std::make_unique<Recorder>();
  Recorder crash;
  const uint64_t first = b.submit(Order::kHold, *one), second = b.submit(Order::kHold, *two);
  one->on_event = [&] {
    if (!one->over || two == nullptr) return;
    b.replica->forget(second, "with me");
    two.reset();
  };
  two->on_event = [&] {
    if (!two->over || one == nullptr) return;
    b.replica->forget(first, "with me");
    one.reset();
  };
  b.submit(Order::kExit, crash);
  b.until([&] { return crash.over && (one == nullptr || two == nullptr); });
  b.until_state(ReplicaState::kReady);
  CHECK((one == nullptr) != (two == nullptr));
}

TEST_CASE("failures on the way to ready back off further, up to the limit") {
  for (const char* mode : {"die", "die-loading"}) {
    CAPTURE(mode);
    Bench b(mode);
    std::vector<uint64_t> backoffs;
    for (uint64_t n = 1; n <= 5; ++n) {
      b.until([&] { return b.replica->info().restarts >= n; });
      backoffs.push_back(b.replica->backoff_ms());
    }
    CHECK(backoffs == std::vector<uint64_t>{10, 20, 40, 40, 40});
    CHECK(b.replica->info().reason.find(mode == std::string("die")
                                            ? "exited with status 9"
                                            : "exited with status 4") != std::string::npos);
    b.stop();
    const size_t lives = b.lives();
    b.until([&, n = 0]() mutable { return ++n > 3; });
    CHECK(b.lives() == lives);  // nothing starts after a stop
  }
}

TEST_CASE("garbage and a foreign protocol are told from a crash") {
  struct Expect {
    const char* mode;
    const char* reason;
  };
  for (const Expect& e : {Expect{"garbage-once", "broke the protocol"},
                          Expect{"protocol-once", "speaks protocol 99, expected 1"}}) {
    CAPTURE(e.mode);
    Bench b(e.mode);
    b.until([&] { return b.replica->info().state == ReplicaState::kRestarting; });
    CHECK(b.replica->info().reason.find(e.reason) != std::string::npos);
    b.until_state(ReplicaState::kReady);
    CHECK(b.lives() == 2);
    CHECK(b.replica->info().reason.empty());
  }
}

TEST_CASE("a permanent fault is final") {
  for (int round = 0; round < 5; ++round) {
    Bench b("permanent");
    b.until_state(ReplicaState::kFailed);
    CHECK(b.replica->info().reason == "open: no model in /no/model");
    CHECK(b.replica->info().restarts == 0);
    CHECK(b.replica->info().worker_pid == 0);
    CHECK(b.lives() == 1);
    b.stop();
  }
}

TEST_CASE("a worker without progress is killed and started again") {
  for (const Order order : {Order::kHang, Order::kForgetful}) {
    CAPTURE(static_cast<int>(order));
    Bench b("normal", 1'500);
    b.until_state(ReplicaState::kReady);
    const uint64_t restarts = b.replica->info().restarts;
    Recorder stuck;
    b.submit(order, stuck);
    b.until([&] { return stuck.over; });
    CHECK(stuck.lost == 1);
    b.until([&] { return b.replica->info().restarts > restarts; });
    b.until_state(ReplicaState::kReady);
    b.stop();
  }
}

TEST_CASE("a load without progress is killed too") {
  Bench b("hang-loading-once", 1'500);
  b.until_state(ReplicaState::kReady);
  CHECK(b.replica->info().restarts >= 1);
}

TEST_CASE("a stubborn worker is killed after the grace period") {
  Bench b("stubborn");
  b.until_state(ReplicaState::kReady);
  Recorder held;
  b.submit(Order::kHold, held);
  b.stop(1);
  CHECK(held.lost == 1);
  CHECK(b.lives() == 1);
}

TEST_CASE("stop before the worker has said anything, and twice without one") {
  {
    Bench b("normal");
    b.stop();
    CHECK(b.replica->info().restarts == 0);
  }
  Bench b("permanent");
  b.until_state(ReplicaState::kFailed);
  b.stop();
  b.stop();
}

TEST_CASE("a stop that nobody waits for") {
  Bench b("normal");
  b.until_state(ReplicaState::kReady);
  b.replica->stop(600'000, [] { FAIL("the replica is gone"); });
}

TEST_CASE("destroying a replica kills the worker and its children") {
  Bench b("child");
  b.until_state(ReplicaState::kReady);
  Recorder held;
  b.submit(Order::kHold, held);
  b.replica.reset();
  CHECK_FALSE(held.over);
}

TEST_CASE("a missing worker program is reported and tried again") {
  Bench b("normal", 600'000, "/no/such/weft-worker");
  b.until([&] { return b.replica->info().restarts >= 3; });
  CHECK(b.replica->info().state == ReplicaState::kRestarting);
  CHECK(b.replica->info().reason.find("/no/such/weft-worker") != std::string::npos);
  CHECK(b.replica->backoff_ms() == 40);
  CHECK(b.lives() == 0);
  b.stop();
}

TEST_CASE("settings of cache and scheduler reach the worker") {
  Bench b("normal");
  b.until_state(ReplicaState::kReady);
  const wire::Ready& ready = b.replica->info().ready;
  REQUIRE(ready.groups_size() == 1);
  CHECK(ready.groups(0).name() == "/trace");
  CHECK(ready.groups(0).units_total() == 1 << 20);
  CHECK(ready.groups(0).unit_bytes() == 3000);
  CHECK(ready.groups(0).tokens_per_unit() == 64);
  REQUIRE(ready.plugins_size() == 1);
  CHECK(ready.plugins(0).name() == "scheduler_fcfs");
  CHECK(ready.plugins(0).interfaces(0) == "weft.scheduler/1");
  CHECK(ready.plugins(0).interfaces(1) == "kv");
}

TEST_CASE("an audit is answered by the worker, or says why not") {
  Bench b("normal");
  const AuditResult early = audit(b);
  REQUIRE_FALSE(early->ok());
  CHECK(early->error().code == ErrorCode::kUnavailable);
  CHECK(early->error().message.find("nothing to audit") != std::string::npos);
  b.until_state(ReplicaState::kReady);
  Recorder held;
  b.submit(Order::kHold, held);
  const AuditResult busy = audit(b);
  REQUIRE(busy->ok());
  CHECK((*busy)->running() == 1);
  CHECK((*busy)->groups(0).free() == 8);
  CHECK((*audit(b, true))->groups(0).cached() == 0);
  Recorder deaf;
  b.submit(Order::kAuditless, deaf);
  const AuditResult none = audit(b);
  REQUIRE_FALSE(none->ok());
  CHECK(none->error().code == ErrorCode::kTimeout);
  CHECK(none->error().message.find("did not answer within 100 ms") != std::string::npos);
  // A worker that dies answers no more.
  AuditResult lost;
  b.replica->audit(false, [&](Result<wire::AuditReport> r) { lost = std::move(r); });
  Recorder crash;
  b.submit(Order::kExit, crash);
  b.until([&] { return lost.has_value(); });
  CHECK_FALSE(lost->ok());
}

TEST_CASE("a worker that only copies caches is left alone; its steps are counted") {
  Bench b("normal", 1000);
  b.until_state(ReplicaState::kReady);
  Recorder copying;
  b.submit(Order::kCopying, copying);
  b.until([&] { return copying.over; });
  CHECK(copying.lost == 0);
  CHECK(b.replica->info().restarts == 0);
  CHECK(b.steps == 1);
}
