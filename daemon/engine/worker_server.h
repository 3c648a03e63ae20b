// A worker without its process: the link to weftd and the engine behind it.
//
// Two threads. The one that calls run() is the link: it polls the socket and an event descriptor,
// decodes, queues and writes, and never waits for the model. The engine thread loads the model and
// steps. They share an Inbox and an Outbox and nothing else. The worker's life is the socket's:
// when weftd closes it (or dies), run() returns, whatever the engine is doing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/mailbox.h"
#include "engine/model_source.h"
#include "wire/framing.h"

namespace weft::engine {

enum class WorkerExit {
  kClosed = 0,     // weftd closed the link or asked for the end
  kFault = 1,      // a WorkerFault was sent; restarting may help
  kPermanent = 2,  // a WorkerFault was sent; restarting will not help
  kLink = 3,       // the peer broke the protocol
};

struct WorkerOptions {
  uint32_t frame_limit = wire::kFrameLimitDefault;
  size_t inbox_bytes = 64u << 20;
  size_t outbox_bytes = 64u << 20;
  // How long run() waits for the engine thread to notice that it is over, and for the last frames
  // to leave.
  uint64_t stop_grace_ms = 3000;
  // Called when that time is over: a model call that does not return. A process ends itself here
  // (there is no other way to stop a thread in foreign code); by default run() goes on waiting.
  std::function<void()> on_stuck;
};

class WorkerServer {
 public:
  // socket: connected stream socket. source: borrowed, used by the engine thread until run()
  // returns.
  WorkerServer(UniqueFd socket, ModelSource* source, WorkerOptions options);
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  WorkerExit run();

 private:
  enum class LinkState { kOpen, kEnding, kGone };

  // Link thread.
  Status open();
  void send_hello();
  void poll_once();
  bool read_socket();
  Status dispatch();
  bool write_socket();
  void end(LinkState state);
  void wait_for_engine();
  void wake();

  // Engine thread.
  void engine_main();
  Result<WorkerExit> serve();
  bool handle(wire::Envelope message);
  void emit(const wire::Envelope& message);
  void emit_fault(const char* where, const Error& error, bool permanent);

  UniqueFd socket_;
  UniqueFd wake_fd_;  // eventfd
  ModelSource* const source_;
  const WorkerOptions options_;
  Inbox inbox_;
  Outbox outbox_;

  // Link thread only.
  wire::FrameDecoder decoder_;
  wire::WriteQueue writes_;
  std::vector<std::string> frames_;  // scratch
  LinkState state_ = LinkState::kOpen;
  bool broken_protocol_ = false;

  // Engine thread only.
  Engine* engine_ = nullptr;
  bool emit_failed_ = false;

  std::atomic<bool> cancel_{false};       // link -> engine: stop loading
  std::atomic<bool> engine_done_{false};  // engine -> link, released after exit_ and the last push
  std::atomic<WorkerExit> exit_{WorkerExit::kClosed};
};

}  // namespace weft::engine
