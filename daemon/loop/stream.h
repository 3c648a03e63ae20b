// Stream: one connected TCP or Unix socket on the loop, with a bounded write queue. Listener: the
// socket that accepts them.
//
// Owned by one object on the loop thread; all calls and callbacks happen there. Destroying a stream
// closes it: queued bytes are dropped and no callback runs any more. A callback may destroy its
// stream. write() never calls back.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "loop/address.h"
#include "loop/loop.h"

namespace weft {

struct StreamCallbacks {
  std::function<void(std::string_view)> on_data;  // bytes live until the callback returns
  std::function<void()> on_eof;                   // the peer will send no more
  std::function<void(Error)> on_error;  // read or write failed; the stream is dead, destroy it
  std::function<void()>
      on_drain;  // the queue fell to the low mark after it had reached the high one
  std::function<void()> on_flushed;  // the queue is empty after a write had to wait
};

class Stream {
 public:
  struct Watermarks {
    size_t high = 1 << 20;
    size_t low = 256 << 10;
  };

  // Takes a connected socket (accepted, socketpair half, inherited).
  static Result<std::unique_ptr<Stream>> adopt(Loop& loop, UniqueFd fd);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void set_callbacks(StreamCallbacks callbacks);
  void set_watermarks(Watermarks marks);
  void resume_reading();  // also the first start
  void pause_reading();   // while paused, EOF is not noticed either
  bool reading() const;

  // Queues the bytes and sends what the kernel takes. False when the queue is at or above the high
  // mark: stop, and go on at on_drain. The bytes are taken in either case.
  bool write(std::string bytes);
  size_t buffered() const;         // bytes not yet taken by the kernel
  uint64_t bytes_written() const;  // bytes taken by the kernel: grows = the peer makes progress
  void shutdown_write();           // sends FIN after the queue
  int fd() const;

 private:
  friend class Listener;
  struct State;
  struct WriteRequest;
  explicit Stream(State* state) : state_(state) {}
  State* state_;
};

struct ListenOptions {
  int backlog = 512;
  unsigned unix_mode = 0660;
};

class Listener {
 public:
  using OnAccept = std::function<void(std::unique_ptr<Stream>)>;
  static Result<std::unique_ptr<Listener>> listen(Loop& loop, std::string_view address,
                                                  const ListenOptions& options, OnAccept on_accept);
  // A bound or listening socket from elsewhere (systemd socket activation). Its file stays when we
  // go.
  static Result<std::unique_ptr<Listener>> adopt(Loop& loop, UniqueFd fd,
                                                 const ListenOptions& options, OnAccept on_accept);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& address() const { return address_; }  // with the real port

 private:
  struct State;
  Listener(State* state, std::string address, std::string unlink_path)
      : state_(state), address_(std::move(address)), unlink_path_(std::move(unlink_path)) {}
  static void accept_one(uv_stream_t* server, int status);
  State* state_;
  std::string address_;
  std::string unlink_path_;
};

}  // namespace weft
