#include "engine/worker_server.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "engine/request.h"
#include "engine/startup.h"

namespace weft::engine {
namespace {

constexpr size_t kReadBytes = 256 << 10;
constexpr int kPollForever = -1;

uint64_t monotonic_us() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

WorkerServer::WorkerServer(UniqueFd socket, ModelSource* source, WorkerOptions options)
    : socket_(std::move(socket)),
      source_(source),
      options_(std::move(options)),
      inbox_(options_.inbox_bytes, [this] { wake(); }),
      outbox_(options_.outbox_bytes, [this] { wake(); }),
      decoder_(options_.frame_limit),
      // Holds only what the outbox has counted already.
      writes_(SIZE_MAX) {}

WorkerServer::~WorkerServer() = default;

// ---- link thread ------------------------------------------------------------------------------

Status WorkerServer::open() {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
    return make_error(ErrorCode::kIo, "descriptor {} is no usable socket: {}", socket_.get(),
                      std::strerror(errno));
  }
  wake_fd_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_fd_.valid()) {
    return make_error(ErrorCode::kIo, "cannot make an event descriptor: {}", std::strerror(errno));
  }
  return {};
}

void WorkerServer::wake() {
  const uint64_t one = 1;
  // A full counter means that a wake-up is pending already.
  [[maybe_unused]] const ssize_t n = ::write(wake_fd_.get(), &one, sizeof(one));
}

void WorkerServer::send_hello() {
  wire::Envelope hello;
  hello.mutable_hello()->set_protocol(wire::kProtocolVersion);
  hello.mutable_hello()->set_weft_version(WEFT_VERSION);
  hello.mutable_hello()->set_pid(::getpid());
  emit(hello);
}

WorkerExit WorkerServer::run() {
  const Status opened = open();
  if (!opened.ok()) {
    log_error("{}", opened.error().message);
    return WorkerExit::kLink;
  }
  send_hello();
  std::thread engine([this] { engine_main(); });
  while (state_ == LinkState::kOpen && !engine_done_.load(std::memory_order_acquire)) poll_once();
  if (state_ == LinkState::kOpen) end(LinkState::kEnding);  // the engine ended by itself
  wait_for_engine();
  engine.join();
  socket_.reset();  // the peer sees the end of the stream only after everything else has ended
  return broken_protocol_ ? WorkerExit::kLink : exit_.load(std::memory_order_acquire);
}

void WorkerServer::end(LinkState state) {
  state_ = state;
  cancel_.store(true, std::memory_order_relaxed);
  inbox_.close();
  if (state == LinkState::kGone) outbox_.close();
}

// The engine stops at its next step boundary; its last frames (a fault, final tokens) still leave
// while there is a peer.
void WorkerServer::wait_for_engine() {
  const uint64_t deadline = monotonic_us() + options_.stop_grace_ms * 1000;
  bool told = false;
  for (;;) {
    const bool done = engine_done_.load(std::memory_order_acquire);
    if (done && (state_ == LinkState::kGone || outbox_.drained())) return;
    const uint64_t now = monotonic_us();
    if (now >= deadline) {
      if (done) return;
      if (!told && options_.on_stuck) options_.on_stuck();
      told = true;
    }
    struct pollfd fds[2] = {{wake_fd_.get(), POLLIN, 0}, {socket_.get(), 0, 0}};
    if (state_ != LinkState::kGone && !writes_.empty()) fds[1].events = POLLOUT;
    const int wait_ms = now >= deadline ? 50 : static_cast<int>((deadline - now) / 1000 + 1);
    ::poll(fds, state_ == LinkState::kGone ? 1 : 2, wait_ms);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = ::read(wake_fd_.get(), &count, sizeof(count));
    if (state_ == LinkState::kGone) continue;
    if ((fds[1].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0 || !write_socket()) {
      end(LinkState::kGone);
    }
  }
}

void WorkerServer::poll_once() {
  struct pollfd fds[2] = {{socket_.get(), POLLRDHUP, 0}, {wake_fd_.get(), POLLIN, 0}};
  const bool reads = inbox_.has_room();
  if (reads) fds[0].events |= POLLIN;
  if (!writes_.empty()) fds[0].events |= POLLOUT;
  if (::poll(fds, 2, kPollForever) < 0 && errno != EINTR) {
    log_error("poll failed: {}", std::strerror(errno));
    end(LinkState::kGone);
    return;
  }
  if (fds[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = ::read(wake_fd_.get(), &count, sizeof(count));
  }
  if ((fds[0].revents & POLLIN) != 0 && !read_socket()) {
    end(broken_protocol_ ? LinkState::kEnding : LinkState::kGone);
    return;
  }
  if (state_ != LinkState::kOpen) return;  // Shutdown
  // With a full inbox nothing is read, so the peer's end shows only here.
  if ((fds[0].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0 ||
      (!reads && (fds[0].revents & POLLRDHUP) != 0) || !write_socket()) {
    end(LinkState::kGone);
  }
}

// False when the link is over.
bool WorkerServer::read_socket() {
  static thread_local std::vector<char> buffer(kReadBytes);
  while (state_ == LinkState::kOpen && inbox_.has_room()) {
    const ssize_t n = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    decoder_.feed({buffer.data(), static_cast<size_t>(n)});
    const Status status = dispatch();
    if (!status.ok()) {
      log_error("link: {}", status.error().message);
      broken_protocol_ = true;
      return false;
    }
  }
  return true;
}

Status WorkerServer::dispatch() {
  for (;;) {
    wire::Envelope message;
    WEFT_ASSIGN(const bool more, decoder_.next(&message));
    if (!more) return {};
    if (message.has_shutdown()) {
      end(LinkState::kEnding);
      return {};
    }
    inbox_.push(std::move(message));
  }
}

bool WorkerServer::write_socket() {
  outbox_.take(&frames_);
  for (std::string& frame : frames_) {
    const bool queued = writes_.push(std::move(frame));
    WEFT_CHECK(queued);
  }
  const size_t before = writes_.bytes();
  if (before == 0) return true;
  const Result<wire::WriteQueue::Flushed> flushed = writes_.flush(socket_.get());
  outbox_.written(before - writes_.bytes());
  return flushed.ok();
}

// ---- engine thread ----------------------------------------------------------------------------

void WorkerServer::emit(const wire::Envelope& message) {
  std::string frame;
  const Status status = wire::append_frame(message, &frame, options_.frame_limit);
  if (!status.ok()) {
    log_error("link: {}", status.error().message);
    emit_failed_ = true;
    return;
  }
  outbox_.push(std::move(frame));  // false: the link is gone and the inbox says so too
}

void WorkerServer::emit_fault(const char* where, const Error& error, bool permanent) {
  log_error("{}: {}", where, error.message);
  wire::Envelope message;
  wire::WorkerFault* fault = message.mutable_fault();
  fault->set_where(where);
  fault->set_message(error.message);
  fault->set_code(error_word(error.code));
  fault->set_permanent(permanent);
  emit(message);
}

void WorkerServer::engine_main() {
  ::pthread_setname_np(::pthread_self(), "engine");
  const Result<WorkerExit> result = serve();
  if (result.ok()) {
    exit_.store(*result, std::memory_order_relaxed);
  } else {
    const bool permanent = is_permanent(result.error().code);
    emit_fault("load", result.error(), permanent);
    exit_.store(permanent ? WorkerExit::kPermanent : WorkerExit::kFault, std::memory_order_relaxed);
  }
  engine_done_.store(true, std::memory_order_release);
  wake();
}

Result<WorkerExit> WorkerServer::serve() {
  std::vector<wire::Envelope> messages;
  if (!inbox_.take(&messages, true)) return WorkerExit::kClosed;
  if (!messages.front().has_configure()) {
    return Error(ErrorCode::kPeer, "the first message must be Configure");
  }
  StartupHooks hooks;
  hooks.emit = [this](const wire::Envelope& message) { emit(message); };
  hooks.now_us = monotonic_us;
  hooks.cancel = &cancel_;
  Result<RunningModel> started = start_model(messages.front().configure(), *source_, hooks);
  if (cancel_.load(std::memory_order_relaxed)) return WorkerExit::kClosed;
  if (!started.ok()) return std::move(started).error();
  RunningModel model = std::move(started).value();
  wire::Envelope ready;
  *ready.mutable_ready() = model.ready;
  emit(ready);
  log_info("ready: {} sequences of up to {} tokens, {:.2f} s", model.ready.max_sequences(),
           model.ready.max_context(), model.ready.load_seconds());

  engine_ = model.engine.get();
  messages.erase(messages.begin());  // what else came with Configure
  for (;;) {
    for (wire::Envelope& message : messages) {
      if (handle(std::move(message))) continue;
      emit_fault("link", Error(ErrorCode::kPeer, "a worker is configured once"), false);
      return WorkerExit::kLink;
    }
    engine_->step();
    if (emit_failed_) {
      emit_fault("link", Error(ErrorCode::kInternal, "a message was over the frame limit"), false);
      return WorkerExit::kFault;
    }
    if (engine_->faulted()) return WorkerExit::kFault;
    if (!inbox_.take(&messages, !engine_->has_work())) return WorkerExit::kClosed;
  }
}

// False when the message has no place here.
bool WorkerServer::handle(wire::Envelope message) {
  switch (message.body_case()) {
    case wire::Envelope::kGenerate:
      engine_->generate(std::move(*message.mutable_generate()));
      break;
    case wire::Envelope::kCancel:
      engine_->cancel(message.cancel().id(), message.cancel().reason());
      break;
    case wire::Envelope::kDrain:
      engine_->drain(message.drain().deadline_ms());
      break;
    case wire::Envelope::kAudit:
      engine_->report_audit(message.audit().id(), message.audit().drop_cache());
      break;
    case wire::Envelope::kConfigure:
      return false;
    default:
      break;  // a newer weftd may say more
  }
  return true;
}

}  // namespace weft::engine
