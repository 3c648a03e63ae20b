#include "engine/worker_server.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <mutex>
#include <thread>

#include "engine/startup.h"
#include "unit/engine/collector.h"
#include "unit/engine/fake_model.h"
#include "unit/engine/requests.h"
#include "unit/engine/test_rng.h"

using namespace weft;
using namespace weft::engine;

namespace {

class FakeSession : public ModelSession {
 public:
  FakeSession(FakeModel* model, bool blocks) : model_(model), blocks_(blocks) {}
  StepModel model() override { return model_->ref(); }
  Status load_weights(const BytesProgress& progress, const std::atomic<bool>& cancel) override {
    progress(0, 100);
    progress(100, 100);
    while (blocks_ && !cancel.load()) std::this_thread::yield();
    if (cancel.load()) return Error(ErrorCode::kCancelled, "cancelled");
    return {};
  }
  void describe(wire::Ready* ready) override { ready->set_kernels("fake"); }

 private:
  FakeModel* model_;
  bool blocks_;
};

class FakeSource : public ModelSource {
 public:
  explicit FakeSource(FakeOptions options) : model(options) {}
  Result<std::unique_ptr<ModelSession>> open(const wire::Configure& configure) override {
    if (configure.model_dir() == "missing") {
      return Error(ErrorCode::kNotFound, "no such model directory: missing");
    }
    if (configure.model_dir() == "flaky") return Error(ErrorCode::kIo, "the disk went away");
    return std::unique_ptr<ModelSession>(
        std::make_unique<FakeSession>(&model, configure.model_dir() == "slow"));
  }
  FakeModel model;
};

// The weftd end of a link to a worker that runs in this process.
class Peer {
 public:
  explicit Peer(FakeOptions fake = {}, WorkerOptions options = {}, int send_buffer = 0)
      : source(fake) {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    if (send_buffer > 0) {
      REQUIRE(::setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof(send_buffer)) == 0);
    }
    fd_.reset(fds[0]);
    server_ = std::make_unique<WorkerServer>(UniqueFd(fds[1]), &source, options);
    thread_ = std::thread([this] { exit_ = server_->run(); });
  }
  ~Peer() {
    if (thread_.joinable()) close();
  }

  void send_bytes(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // the worker has gone; tests see that elsewhere
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void send(const wire::Envelope& e) {
    std::string frame;
    REQUIRE(wire::append_frame(e, &frame).ok());
    send_bytes(frame);
  }
  void generate(const wire::Generate& g) {
    wire::Envelope e;
    *e.mutable_generate() = g;
    send(e);
  }
  void cancel(uint64_t id) {
    wire::Envelope e;
    e.mutable_cancel()->set_id(id);
    send(e);
  }
  void configure(const std::string& dir = "fake") {
    wire::Envelope e;
    wire::Configure* c = e.mutable_configure();
    c->set_model_dir(dir);
    c->set_memory_bytes(64 << 10);
    c->set_max_sequences(4);
    c->set_max_batch_tokens(16);
    send(e);
  }
  // False at the end of the stream.
  bool receive(wire::Envelope* e) {
    for (;;) {
      const Result<bool> more = decoder_.next(e);
      REQUIRE(more.ok());
      if (*more) return true;
      char buffer[4096];
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (n <= 0) return false;
      decoder_.feed({buffer, static_cast<size_t>(n)});
    }
  }
  // Reads until a message satisfies `wanted`; everything goes to the collector.
  template <class Predicate>
  wire::Envelope until(Predicate wanted) {
    wire::Envelope e;
    for (;;) {
      REQUIRE(receive(&e));
      got.take(e);
      if (wanted(e)) return e;
    }
  }
  wire::Envelope until_ready() {
    return until([](const wire::Envelope& e) { return e.has_ready(); });
  }
  void until_finished(size_t requests) {
    const auto all_done = [&](const wire::Envelope&) {
      size_t done = 0;
      for (const auto& [id, c] : got.requests) done += c.finish != wire::FINISH_NONE ? 1u : 0u;
      return done == requests;
    };
    until(all_done);
  }
  WorkerExit wait_exit() {
    thread_.join();
    return exit_;
  }
  WorkerExit close() {
    fd_.reset();
    return wait_exit();
  }

  FakeSource source;
  Collector got;

 private:
  UniqueFd fd_;
  wire::FrameDecoder decoder_;
  std::unique_ptr<WorkerServer> server_;
  std::thread thread_;
  WorkerExit exit_ = WorkerExit::kFault;
};

void check_answer(const FakeOptions& fake, const Collector& got, const wire::Generate& request,
                  uint32_t max_context) {
  const Collected& c = got.requests.at(request.id());
  const OracleResult want = oracle_generate(fake, request, max_context);
  CAPTURE(request.id());
  if (c.finish == wire::FINISH_CANCELLED) {
    REQUIRE(c.tokens.size() <= want.tokens.size());
    CHECK(std::equal(c.tokens.begin(), c.tokens.end(), want.tokens.begin()));
  } else {
    CHECK(c.finish == want.finish);
    CHECK(c.tokens == want.tokens);
  }
}

}  // namespace

TEST_CASE("a worker says hello, loads, becomes ready, answers, and ends with its link") {
  Peer peer;
  wire::Envelope e;
  REQUIRE(peer.receive(&e));
  REQUIRE(e.has_hello());
  CHECK(e.hello().protocol() == wire::kProtocolVersion);
  CHECK(e.hello().pid() > 0);
  peer.configure();
  bool weights = false;
  const wire::Envelope ready = peer.until([&](const wire::Envelope& m) {
    weights |= m.has_load_progress() && m.load_progress().bytes_done() == 100;
    return m.has_ready();
  });
  CHECK(weights);
  CHECK(ready.ready().vocab_size() == 61);
  CHECK(ready.ready().max_sequences() == 4);
  CHECK(ready.ready().max_context() == 200);
  CHECK(ready.ready().groups_size() == 3);
  CHECK(ready.ready().groups(1).kind() == "state");
  CHECK(ready.ready().kernels() == "fake");
  const wire::Generate request = make_request(7, {1, 2, 3}, 6);
  peer.generate(request);
  peer.until_finished(1);
  check_answer({}, peer.got, request, 200);
  CHECK(peer.close() == WorkerExit::kClosed);
}

TEST_CASE("many requests with cancels from one thread while another reads") {
  Peer peer;
  peer.configure();
  const uint32_t max_context = peer.until_ready().ready().max_context();
  constexpr uint64_t kRequests = 120;
  std::vector<wire::Generate> sent;
  TestRng rng(21);
  for (uint64_t id = 1; id <= kRequests; ++id) sent.push_back(random_request(rng, id, 30, 20));
  std::thread sender([&] {
    TestRng order(22);
    for (const wire::Generate& g : sent) {
      peer.generate(g);
      if (order.below(3) == 0) peer.cancel(1 + order.below(static_cast<uint32_t>(g.id())));
    }
  });
  peer.until_finished(kRequests);
  sender.join();
  CHECK(peer.close() == WorkerExit::kClosed);
  for (const wire::Generate& g : sent) check_answer({}, peer.got, g, max_context);
  for (const std::string& v : peer.source.model.violations) FAIL_CHECK(v);
}

TEST_CASE("queues of a few bytes and a slow reader lose nothing") {
  WorkerOptions options;
  options.inbox_bytes = 64;
  options.outbox_bytes = 64;
  Peer peer({}, options, 4608);
  peer.configure();
  const uint32_t max_context = peer.until_ready().ready().max_context();
  std::vector<wire::Generate> sent;
  TestRng rng(5);
  for (uint64_t id = 1; id <= 30; ++id) sent.push_back(random_request(rng, id, 30, 100));
  std::thread sender([&] {
    for (const wire::Generate& g : sent) peer.generate(g);
  });
  // Nothing is read until the worker has had to stop: its socket, of a few KiB, is readable and the
  // engine has run.
  while (peer.source.model.steps < 5) std::this_thread::yield();
  peer.until_finished(sent.size());
  sender.join();
  CHECK(peer.close() == WorkerExit::kClosed);
  for (const wire::Generate& g : sent) check_answer({}, peer.got, g, max_context);
}

TEST_CASE("a load that fails says why and whether trying again makes sense") {
  Peer permanent;
  permanent.configure("missing");
  const wire::Envelope why = permanent.until([](const wire::Envelope& e) { return e.has_fault(); });
  CHECK(why.fault().permanent());
  CHECK(why.fault().where() == "load");
  CHECK(why.fault().message().find("missing") != std::string::npos);
  CHECK(permanent.wait_exit() == WorkerExit::kPermanent);

  Peer flaky;
  flaky.configure("flaky");
  CHECK_FALSE(
      flaky.until([](const wire::Envelope& e) { return e.has_fault(); }).fault().permanent());
  CHECK(flaky.wait_exit() == WorkerExit::kFault);
}

TEST_CASE("a configuration that cannot work is a permanent fault with numbers") {
  const auto fault_of = [](auto change) {
    Peer peer;
    wire::Envelope e;
    e.mutable_configure()->set_model_dir("fake");
    change(e.mutable_configure());
    peer.send(e);
    const wire::Envelope got = peer.until([](const wire::Envelope& m) { return m.has_fault(); });
    CHECK(got.fault().permanent());
    CHECK(peer.wait_exit() == WorkerExit::kPermanent);
    return got.fault().message();
  };
  CHECK(fault_of([](auto* c) { c->set_max_context(201); }).find("200") != std::string::npos);
  CHECK(fault_of([](auto* c) { c->set_memory_bytes(10); }).find("10") != std::string::npos);
  CHECK(fault_of([](auto* c) { c->set_max_sequences(1u << 30); }).find("65536") !=
        std::string::npos);
}

TEST_CASE("closing the link ends a worker that is loading, running or waiting") {
  Peer loading;
  loading.configure("slow");
  loading.until([](const wire::Envelope& e) {
    return e.has_load_progress() && e.load_progress().bytes_done() == 100;
  });
  CHECK(loading.close() == WorkerExit::kClosed);

  Peer running;
  running.configure();
  running.until_ready();
  for (uint64_t id = 1; id <= 50; ++id) running.generate(make_request(id, {1, 2}, 150));
  running.until([](const wire::Envelope& e) { return e.has_tokens(); });
  CHECK(running.close() == WorkerExit::kClosed);

  Peer waiting;
  CHECK(waiting.close() == WorkerExit::kClosed);
}

TEST_CASE("closing the link ends a worker whose inbox is full and whose outbox nobody reads") {
  WorkerOptions options;
  options.inbox_bytes = 1;
  options.outbox_bytes = 1;
  Peer peer({}, options, 4608);
  peer.configure();
  peer.until_ready();
  for (uint64_t id = 1; id <= 20; ++id) peer.generate(make_request(id, {1, 2}, 150));
  while (peer.source.model.steps < 3) std::this_thread::yield();
  CHECK(peer.close() == WorkerExit::kClosed);
}

TEST_CASE("shutdown ends the worker") {
  Peer peer;
  peer.configure();
  peer.until_ready();
  peer.generate(make_request(1, {1, 2}, 150));
  wire::Envelope e;
  e.mutable_shutdown();
  peer.send(e);
  while (peer.receive(&e)) {
  }
  CHECK(peer.wait_exit() == WorkerExit::kClosed);
}

TEST_CASE("drain over the link") {
  Peer peer;
  peer.configure();
  peer.until_ready();
  peer.generate(make_request(1, {1, 2}, 20));
  wire::Envelope e;
  e.mutable_drain()->set_deadline_ms(60'000);
  peer.send(e);
  peer.until([](const wire::Envelope& m) { return m.has_drained(); });
  CHECK(peer.got.requests.at(1).finish == wire::FINISH_LENGTH);
  CHECK(peer.close() == WorkerExit::kClosed);
}

TEST_CASE("a broken model ends the worker after it has said so") {
  FakeOptions fake;
  fake.fail_token = 59;
  fake.fail_status = WEFT_E_DEVICE;
  Peer peer(fake);
  peer.configure();
  peer.until_ready();
  peer.generate(make_request(1, {59}, 20));
  peer.until([](const wire::Envelope& m) { return m.has_fault(); });
  CHECK(peer.got.requests.at(1).finish == wire::FINISH_ERROR);
  CHECK(peer.wait_exit() == WorkerExit::kFault);
}

TEST_CASE("an answer that no frame can hold is a fault, not a silent loss") {
  WorkerOptions options;
  options.frame_limit = 2000;
  Peer peer({}, options);
  peer.configure();
  peer.until_ready();
  wire::Generate g = make_request(1, std::vector<int32_t>(100, 1), 2);
  g.mutable_sampling()->set_prompt_logprobs(20);
  peer.generate(g);
  const wire::Envelope e = peer.until([](const wire::Envelope& m) { return m.has_fault(); });
  CHECK(e.fault().where() == "link");
  CHECK(peer.wait_exit() == WorkerExit::kFault);
}

TEST_CASE("a peer that breaks the protocol is left") {
  Peer garbage;
  garbage.send_bytes(std::string("\x03\0\0\0abc", 7));
  CHECK(garbage.wait_exit() == WorkerExit::kLink);

  Peer huge;
  huge.send_bytes("\xff\xff\xff\xff");
  CHECK(huge.wait_exit() == WorkerExit::kLink);

  Peer twice;
  twice.configure();
  twice.configure();
  twice.until([](const wire::Envelope& m) { return m.has_fault(); });
  CHECK(twice.wait_exit() == WorkerExit::kLink);

  Peer early;
  early.generate(make_request(1, {1}, 1));
  early.until([](const wire::Envelope& m) { return m.has_fault(); });
  CHECK(early.wait_exit() == WorkerExit::kFault);
}

TEST_CASE("an engine that does not return is reported after the grace time") {
  FakeOptions fake;
  std::atomic<bool> release{false};
  std::atomic<int> stuck{0};
  WorkerOptions options;
  options.stop_grace_ms = 1;
  options.on_stuck = [&] {
    ++stuck;
    release = true;
  };
  Peer peer(fake, options);
  std::atomic<bool> armed{false}, inside{false};
  peer.source.model.before_step = [&](const weft_batch&) {
    if (!armed) return;
    inside = true;
    while (!release) std::this_thread::yield();
  };
  peer.configure();
  peer.until_ready();
  armed = true;
  peer.generate(make_request(1, {1}, 1));
  while (!inside) std::this_thread::yield();
  CHECK(peer.close() == WorkerExit::kClosed);
  CHECK(stuck == 1);
}

TEST_CASE("a full outbox makes its producer wait until frames are written or it is closed") {
  int wakes = 0;
  Outbox outbox(10, [&] { ++wakes; });
  REQUIRE(outbox.push("0123456789"));
  CHECK(wakes == 1);
  std::atomic<int> pushed{0};
  std::thread producer([&] {
    while (outbox.push("0123456789")) ++pushed;
  });
  std::vector<std::string> frames;
  outbox.take(&frames);
  CHECK(frames.size() == 1);
  CHECK(pushed == 0);  // taken is not written: no room yet
  CHECK_FALSE(outbox.drained());
  outbox.written(10);
  while (pushed == 0) std::this_thread::yield();
  outbox.close();
  producer.join();
  CHECK(pushed == 1);
  CHECK_FALSE(outbox.push("x"));
}

TEST_CASE("permanent faults are those that a restart cannot cure") {
  CHECK(is_permanent(ErrorCode::kNotFound));
  CHECK(is_permanent(ErrorCode::kCorrupt));
  CHECK_FALSE(is_permanent(ErrorCode::kIo));
  CHECK_FALSE(is_permanent(ErrorCode::kInternal));
  CHECK_FALSE(is_permanent(ErrorCode::kUnavailable));
}
