// A worker without a model, for tests of the supervision: speaks the link's protocol on descriptor
// 3 and misbehaves on request. FAKE_WORKER_MODE says how it starts; the first token of a prompt
// says what becomes of a request (see fake_orders.h). It holds the FIFO FAKE_WORKER_DIR/alive open
// for writing and adds a byte to FAKE_WORKER_DIR/lives, so that a test can count and await its
// lives.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "fake_orders.h"
#include "wire/framing.h"

namespace {

using weft::fabric_test::Order;
namespace wire = weft::wire;

constexpr int kFd = 3;

class FakeWorker {
 public:
  explicit FakeWorker(std::string mode) : mode_(std::move(mode)) {}

  int run() {
    if (mode_ == "die") return 9;
    if (mode_ == "garbage")
      raw("HTTP/1.1 200 OK\r\n\r\nthis is no envelope, and its length is absurd");
    wire::Envelope hello;
    hello.mutable_hello()->set_protocol(mode_ == "protocol" ? 99 : wire::kProtocolVersion);
    send(hello);
    wire::FrameDecoder decoder;
    char buffer[4096];
    for (;;) {
      const ssize_t n = ::read(kFd, buffer, sizeof(buffer));
      if (n <= 0) {
        if (mode_ == "stubborn") hang();
        return 0;
      }
      decoder.feed({buffer, static_cast<size_t>(n)});
      wire::Envelope envelope;
      for (;;) {
        const auto more = decoder.next(&envelope);
        if (!more.ok()) return 8;
        if (!*more) break;
        if (const int rc = take(envelope); rc >= 0) return rc;
      }
    }
  }

 private:
  [[noreturn]] static void hang() {
    for (;;) ::pause();
  }
  static void raw(const std::string& bytes) {
    if (::send(kFd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) ::_exit(7);
  }
  static void send(const wire::Envelope& envelope) {
    std::string frame;
    if (!wire::append_frame(envelope, &frame).ok()) ::_exit(7);
    raw(frame);
  }
  static void tokens(uint64_t id, std::initializer_list<int32_t> ids, wire::Finish finish,
                     bool admitted = false) {
    wire::Envelope e;
    wire::SequenceTokens& s = *e.mutable_tokens()->add_sequences();
    s.set_id(id);
    for (int32_t token : ids) s.add_tokens(token);
    s.set_finish(finish);
    s.set_admitted(admitted);
    send(e);
  }

  // The exit status, or -1 to go on.
  int take(const wire::Envelope& e) {
    if (e.has_configure()) return configure(e.configure());
    if (e.has_generate()) return generate(e.generate());
    if (e.has_cancel()) {
      if (held_.erase(e.cancel().id()) != 0) tokens(e.cancel().id(), {}, wire::FINISH_CANCELLED);
    } else if (e.has_audit()) {
      audit(e.audit());
    } else if (e.has_shutdown()) {
      if (mode_ == "stubborn") return -1;
      for (uint64_t id : held_) tokens(id, {}, wire::FINISH_CANCELLED);
      return 0;
    }
    return -1;
  }

  int configure(const wire::Configure& c) {
    wire::Envelope e;
    if (mode_ == "permanent") {
      e.mutable_fault()->set_where("open");
      e.mutable_fault()->set_message("no model in " + c.model_dir());
      e.mutable_fault()->set_permanent(true);
      send(e);
      return 78;
    }
    e.mutable_load_progress()->set_phase("weights");
    e.mutable_load_progress()->set_bytes_done(1);
    e.mutable_load_progress()->set_bytes_total(2);
    send(e);
    if (mode_ == "die-loading") return 4;
    if (mode_ == "hang-loading") hang();
    e.mutable_ready()->set_vocab_size(100);
    e.mutable_ready()->set_max_context(c.max_context());
    e.mutable_ready()->set_max_sequences(c.max_sequences());
    e.mutable_ready()->set_kernels(c.isa_max());
    // What the configuration said of cache and scheduler, for the test to see.
    wire::CacheGroup& seen = *e.mutable_ready()->add_groups();
    seen.set_name(c.scheduler().trace_file());
    seen.set_units_total(c.cache().host_bytes());
    seen.set_unit_bytes(c.scheduler().itl_target_us());
    seen.set_tokens_per_unit(c.scheduler().prefill_chunk());
    for (const wire::PluginChoice& p : c.plugins()) {
      wire::PluginInfo& info = *e.mutable_ready()->add_plugins();
      info.set_name(p.name());
      info.add_interfaces(p.interface());
      for (const wire::Parameter& one : p.params()) info.add_interfaces(one.name() + one.value());
    }
    send(e);
    return -1;
  }

  int generate(const wire::Generate& g) {
    tokens(g.id(), {}, wire::FINISH_NONE, true);
    switch (static_cast<Order>(g.prompt(0))) {
      case Order::kEcho:
        for (int i = 1; i < g.prompt_size(); ++i)
          tokens(g.id(), {g.prompt(i)},
                 i + 1 == g.prompt_size() ? wire::FINISH_STOP : wire::FINISH_NONE);
        return -1;
      case Order::kHold:
        held_.insert(g.id());
        return -1;
      case Order::kExit:
        return 5;
      case Order::kLastWords:
        for (uint64_t id : held_) tokens(id, {42}, wire::FINISH_STOP);
        ::raise(SIGKILL);
        return -1;
      case Order::kGarbage:
        raw(std::string("\xff\xff\xff\xff garbage", 12));
        hang();
      case Order::kHang:
        hang();
      case Order::kForgetful:
        idle_forever();
      case Order::kAuditless:
        answers_audits_ = false;
        held_.insert(g.id());
        return -1;
      case Order::kCopying:
        copy(g.id());
        return -1;
      case Order::kCloseAndHang:
        ::shutdown(kFd, SHUT_RDWR);
        ::close(kFd);
        hang();
    }
    return 6;
  }

  // Says that it has nothing to do, although it was given something.
  [[noreturn]] static void idle_forever() {
    for (;;) {
      wire::Envelope e;
      e.mutable_stats()->set_step(1);
      std::string frame;
      if (!wire::append_frame(e, &frame).ok() ||
          ::send(kFd, frame.data(), frame.size(), MSG_NOSIGNAL) < 0)
        ::_exit(0);
      ::usleep(10'000);
    }
  }

  // One step counter and ever more bytes, as when a long prefix comes in from host memory.
  static void copy(uint64_t id) {
    for (uint64_t bytes = 1; bytes <= 130; ++bytes) {
      wire::Envelope e;
      e.mutable_stats()->set_step(1);
      e.mutable_stats()->set_running(1);
      e.mutable_stats()->set_loading(1);
      e.mutable_stats()->mutable_cache()->set_loaded_bytes_total(bytes);
      send(e);
      ::usleep(10'000);
    }
    tokens(id, {}, wire::FINISH_STOP);
  }

  // Books as they would be: what is held is active, and one unit is cached until it is dropped.
  void audit(const wire::Audit& a) {
    if (!answers_audits_) return;
    cached_ = a.drop_cache() ? 0 : cached_;
    wire::Envelope e;
    wire::AuditReport& r = *e.mutable_audit_report();
    r.set_id(a.id());
    r.set_ok(true);
    r.set_running(static_cast<uint32_t>(held_.size()));
    wire::AuditGroup& g = *r.add_groups();
    g.set_name("rows");
    g.set_total(10);
    g.set_active(held_.size());
    g.set_cached(cached_);
    g.set_free(10 - held_.size() - cached_);
    send(e);
  }

  const std::string mode_;
  bool answers_audits_ = true;
  uint64_t cached_ = 1;
  std::set<uint64_t> held_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::string(argv[1]) != "--fd" || std::string(argv[2]) != "3") return 2;
  const char* mode = ::getenv("FAKE_WORKER_MODE");
  const char* dir = ::getenv("FAKE_WORKER_DIR");
  if (mode == nullptr || dir == nullptr) return 2;
  sigset_t blocked;
  ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
  if (::sigismember(&blocked, SIGTERM) != 0 || ::getpgrp() != ::getpid()) return 2;
  const int alive = ::open((std::string(dir) + "/alive").c_str(), O_WRONLY | O_NONBLOCK);
  if (alive < 0) return 2;
  size_t lives = 0;
  {
    std::ifstream in(std::string(dir) + "/lives", std::ios::binary);
    lives = static_cast<size_t>(std::distance(std::istreambuf_iterator<char>(in), {}));
    std::ofstream(std::string(dir) + "/lives", std::ios::binary | std::ios::app).put('x');
  }
  std::string how = mode;
  const std::string once = "-once";
  if (how.size() > once.size() && how.compare(how.size() - once.size(), once.size(), once) == 0)
    how = lives == 0 ? how.substr(0, how.size() - once.size()) : "normal";
  if (how == "child" && ::fork() == 0) {
    ::close(kFd);
    for (;;) ::pause();  // holds `alive` too
  }
  return FakeWorker(how).run();
}
