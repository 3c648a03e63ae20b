// The real thing, small: the weft-worker program with the real plugins and micro-k3, spoken to over
// a socket pair. Token ids must equal the golden continuations, one by one and together in one
// batch.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "unit/engine/collector.h"
#include "unit/engine/requests.h"
#include "wire/framing.h"

extern char** environ;

using namespace weft;
using namespace weft::engine;

namespace {

const std::string kWorker = std::string(WEFT_BIN_DIR) + "/weft-worker";
const std::string kModel = std::string(WEFT_SOURCE_DIR) + "/models/micro-k3";
constexpr int32_t kEndOfText = 1793;     // ends raw text
constexpr int32_t kEndOfMessage = 1794;  // ends a chat message

class WorkerProcess {
 public:
  WorkerProcess() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    fd_.reset(fds[0]);
    UniqueFd theirs(::fcntl(fds[1], F_DUPFD_CLOEXEC, 100));
    ::close(fds[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 9);
    std::string program = kWorker, option = "--fd", number = "9";
    char* argv[] = {program.data(), option.data(), number.data(), nullptr};
    REQUIRE(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~WorkerProcess() {
    if (pid_ > 0) close();
  }
  // The exit status after the link is closed.
  int close() {
    fd_.reset();
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void send(const wire::Envelope& e) {
    std::string frame;
    REQUIRE(wire::append_frame(e, &frame).ok());
    for (std::string_view rest = frame; !rest.empty();) {
      const ssize_t n = ::send(fd_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      REQUIRE(n > 0);
      rest.remove_prefix(static_cast<size_t>(n));
    }
  }
  void configure(const std::string& model, uint64_t memory_bytes = 64 << 20,
                 const std::string& isa_max = "", const std::string& scheduler = "") {
    wire::Envelope e;
    wire::Configure* c = e.mutable_configure();
    c->set_model_dir(model);
    c->set_plugin_dir(WEFT_PLUGIN_DIR);
    c->set_memory_bytes(memory_bytes);
    c->set_max_sequences(8);
    c->set_max_batch_tokens(128);
    c->set_max_context(2048);
    c->set_threads(2);
    c->set_isa_max(isa_max);
    c->set_allow_untrusted_plugins(true);
    if (!scheduler.empty()) {
      wire::PluginChoice* choice = c->add_plugins();
      choice->set_interface("weft.scheduler/1");
      choice->set_name(scheduler);
    }
    send(e);
  }
  void generate(const wire::Generate& g) {
    wire::Envelope e;
    *e.mutable_generate() = g;
    send(e);
  }
  template <class Predicate>
  wire::Envelope until(Predicate wanted) {
    wire::Envelope e;
    for (;;) {
      const Result<bool> more = decoder_.next(&e);
      REQUIRE(more.ok());
      if (*more) {
        got.take(e);
        if (wanted(e)) return e;
        if (e.has_fault()) FAIL(e.fault().message());
        continue;
      }
      char buffer[65536];
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      REQUIRE(n > 0);
      decoder_.feed({buffer, static_cast<size_t>(n)});
    }
  }
  void until_finished(size_t requests) {
    until([&](const wire::Envelope&) {
      size_t done = 0;
      for (const auto& [id, c] : got.requests) done += c.finish != wire::FINISH_NONE ? 1u : 0u;
      return done == requests;
    });
  }
  pid_t pid() const { return pid_; }

  Collector got;

 private:
  pid_t pid_ = -1;
  UniqueFd fd_;
  wire::FrameDecoder decoder_;
};

struct GoldenCase {
  std::string name;
  std::vector<int32_t> prompt, output;
  uint32_t max_tokens = 0;
  std::vector<double> prompt_logprobs;
};

// Text cases without near ties; under a sanitizer only a few of them.
#ifdef WEFT_SANITIZED
constexpr size_t kCases = 4;
#else
constexpr size_t kCases = 27;
#endif

std::vector<GoldenCase> golden_cases(size_t most) {
  std::ifstream in(kModel + "/golden.json");
  REQUIRE(in.good());
  const nlohmann::json golden = nlohmann::json::parse(in);
  std::vector<GoldenCase> out;
  for (const auto& c : golden.at("cases")) {
    const bool text = !c.contains("images") && !c.contains("image");
    if (!text || !c.at("close_steps").empty()) continue;
    if (out.size() == most) break;
    GoldenCase g;
    g.name = c.at("name");
    g.prompt = c.at("prompt_ids").get<std::vector<int32_t>>();
    g.output = c.at("output_ids").get<std::vector<int32_t>>();
    g.max_tokens = c.at("max_tokens");
    if (c.contains("prompt_logprobs") && c.at("prompt_logprobs").is_array()) {
      g.prompt_logprobs = c.at("prompt_logprobs").get<std::vector<double>>();
    }
    out.push_back(std::move(g));
  }
  return out;
}

wire::Generate request_of(uint64_t id, const GoldenCase& c) {
  wire::Generate g = make_request(id, c.prompt, c.max_tokens);
  g.mutable_sampling()->set_temperature(0.0f);
  g.mutable_sampling()->add_stop_ids(kEndOfMessage);
  g.mutable_sampling()->add_stop_ids(kEndOfText);
  if (!c.prompt_logprobs.empty()) g.mutable_sampling()->set_prompt_logprobs(0);
  return g;
}

// The recorded numbers are those of f32 arithmetic; kernels that round what products take in to
// bf16 stay this near.
constexpr double kExact = 1e-2, kRounded = 0.6;

void check(const Collector& got, uint64_t id, const GoldenCase& c, double tolerance = kRounded) {
  CAPTURE(c.name);
  const Collected& r = got.requests.at(id);
  CHECK(r.error == "");
  CHECK(r.tokens == c.output);
  if (c.prompt_logprobs.empty()) return;
  REQUIRE(r.prompt_logprobs.size() == c.prompt_logprobs.size());
  for (size_t i = 0; i < c.prompt_logprobs.size(); ++i) {
    CHECK(std::abs(static_cast<double>(r.prompt_logprobs[i]) - c.prompt_logprobs[i]) < tolerance);
  }
}

}  // namespace

TEST_CASE("weft-worker with micro-k3 and f32 kernels gives the golden probabilities") {
  const std::vector<GoldenCase> cases = golden_cases(kCases);
  WorkerProcess worker;
  worker.configure(kModel, 64 << 20, "avx512");
  for (size_t i = 0; i < cases.size(); ++i) worker.generate(request_of(10 + i, cases[i]));
  worker.until_finished(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) check(worker.got, 10 + i, cases[i], kExact);
}

TEST_CASE("weft-worker with micro-k3 gives the golden tokens") {
  const std::vector<GoldenCase> cases = golden_cases(kCases);
  REQUIRE(cases.size() == kCases);
  WorkerProcess worker;
  worker.configure(kModel);
  const wire::Envelope ready = worker.until([](const wire::Envelope& e) { return e.has_ready(); });
  CHECK(ready.ready().vocab_size() == 2048);
  CHECK(ready.ready().max_context() == 2048);
  CHECK(ready.ready().accepts_images());
  CHECK(ready.ready().plugins_size() >= 3);
  CHECK(ready.ready().weight_bytes() > 1'000'000);

  worker.generate(request_of(1, cases[0]));  // alone
  worker.until_finished(1);
  check(worker.got, 1, cases[0]);
  for (size_t i = 0; i < cases.size(); ++i) worker.generate(request_of(10 + i, cases[i]));
  worker.until_finished(1 + cases.size());  // together
  for (size_t i = 0; i < cases.size(); ++i) check(worker.got, 10 + i, cases[i]);
  const wire::Envelope idle = worker.until(
      [](const wire::Envelope& e) { return e.has_stats() && e.stats().running() == 0; });
  for (const auto& group : idle.stats().groups()) CHECK(group.units_used() == 0);
  CHECK(worker.close() == 0);
}

#ifndef WEFT_SANITIZED  // needs the long cases
TEST_CASE("golden tokens survive preemption in a small cache") {
  std::vector<GoldenCase> cases = golden_cases(kCases);
  // Long answers: what was admitted with room to spare outgrows the pages.
  std::erase_if(cases,
                [](const GoldenCase& c) { return c.output.size() < 60 || c.prompt.size() > 300; });
  REQUIRE(cases.size() >= 8);
  WorkerProcess worker;
  // 7 states, 29 pages of 32 tokens in f32. The plain policy admits what the pages hold now; a more
  // careful one would preempt nobody.
  worker.configure(kModel, 1'800'000, "avx512", "built-in");
  worker.until([](const wire::Envelope& e) { return e.has_ready(); });
  for (size_t i = 0; i < cases.size(); ++i) worker.generate(request_of(10 + i, cases[i]));
  worker.until_finished(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) check(worker.got, 10 + i, cases[i], kExact);
  const wire::Envelope idle = worker.until([](const wire::Envelope& e) {
    return e.has_stats() && e.stats().running() == 0 && e.stats().generated_tokens_total() > 0;
  });
  for (const auto& group : idle.stats().groups()) CHECK(group.units_used() == 0);
  CHECK(idle.stats().preemptions_total() > 0);
  CHECK(worker.close() == 0);
}
#endif

TEST_CASE("weft-worker ends with its link, not with SIGTERM") {
  WorkerProcess worker;
  worker.until([](const wire::Envelope& e) { return e.has_hello(); });
  REQUIRE(::kill(worker.pid(), SIGTERM) == 0);
  worker.configure(kModel);
  worker.until([](const wire::Envelope& e) { return e.has_ready(); });
  CHECK(worker.close() == 0);
}

TEST_CASE("weft-worker says what is wrong with a model directory") {
  WorkerProcess worker;
  worker.configure(kModel + "/images");
  const wire::Envelope e = worker.until([](const wire::Envelope& m) { return m.has_fault(); });
  CHECK(e.fault().permanent());
  CHECK(e.fault().message().find("config.json") != std::string::npos);
  CHECK(worker.close() == 2);
}
