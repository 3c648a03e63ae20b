#include "engine/mailbox.h"

#include "base/check.h"

namespace weft::engine {

void Inbox::push(wire::Envelope message) {
  const size_t bytes = message.ByteSizeLong() + sizeof(message);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    bytes_ += bytes;
    messages_.push_back(std::move(message));
  }
  changed_.notify_one();
}

bool Inbox::has_room() const {
  const std::lock_guard lock(mutex_);
  return bytes_ < max_bytes_;
}

bool Inbox::take(std::vector<wire::Envelope>* out, bool wait) {
  out->clear();
  bool was_full = false;
  {
    std::unique_lock lock(mutex_);
    if (wait) changed_.wait(lock, [this] { return closed_ || !messages_.empty(); });
    if (closed_) return false;
    out->swap(messages_);
    was_full = bytes_ >= max_bytes_;
    bytes_ = 0;
  }
  if (was_full) wake_();
  return true;
}

void Inbox::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    messages_.clear();
  }
  changed_.notify_all();
}

bool Outbox::push(std::string frame) {
  bool first = false;
  {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return closed_ || bytes_ < max_bytes_; });
    if (closed_) return false;
    first = frames_.empty();
    bytes_ += frame.size();
    frames_.push_back(std::move(frame));
  }
  if (first) wake_();
  return true;
}

void Outbox::take(std::vector<std::string>* out) {
  out->clear();
  const std::lock_guard lock(mutex_);
  out->swap(frames_);
}

void Outbox::written(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    WEFT_CHECK(bytes <= bytes_);
    bytes_ -= bytes;
  }
  room_.notify_all();
}

bool Outbox::drained() const {
  const std::lock_guard lock(mutex_);
  return bytes_ == 0;
}

void Outbox::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  room_.notify_all();
}

}  // namespace weft::engine
