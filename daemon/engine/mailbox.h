// The two queues between a worker's link thread and its engine thread, each bounded in bytes.
//
// Inbox: messages from weftd. When it is full the link stops reading its socket, and the bound
// travels to weftd by the socket's own flow control. Outbox: frames to weftd. When it is full the
// engine waits, that is, stops stepping: weftd always reads, so a full outbox means that weftd is
// in trouble and more tokens would not help. Closing either one wakes whoever waits. All members
// may be called from any thread; `wake` of the link must be cheap and must not call back.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "wire/weft.pb.h"

namespace weft::engine {

class Inbox {
 public:
  // wake: called (outside the lock) when a full inbox has been emptied.
  Inbox(size_t max_bytes, std::function<void()> wake)
      : max_bytes_(max_bytes), wake_(std::move(wake)) {}

  // Always takes the message: callers ask has_room() before they read the next one.
  void push(wire::Envelope message);
  bool has_room() const;
  // Moves everything out. wait: block until there is something. False when closed.
  bool take(std::vector<wire::Envelope>* out, bool wait);
  void close();

 private:
  const size_t max_bytes_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::vector<wire::Envelope> messages_;
  size_t bytes_ = 0;
  bool closed_ = false;
};

class Outbox {
 public:
  // wake: called (outside the lock) when the first frame arrives in an empty outbox.
  Outbox(size_t max_bytes, std::function<void()> wake)
      : max_bytes_(max_bytes), wake_(std::move(wake)) {}

  // Waits while the outbox is full. False when closed: the frame is dropped.
  bool push(std::string frame);
  // Moves all frames out; they count until written() says that they have left.
  void take(std::vector<std::string>* out);
  void written(size_t bytes);
  bool drained() const;  // nothing queued and nothing on its way
  void close();

 private:
  const size_t max_bytes_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable room_;
  std::vector<std::string> frames_;
  size_t bytes_ = 0;  // queued, and taken but not yet written
  bool closed_ = false;
};

}  // namespace weft::engine
