// ThreadLabel: marks the current thread with the ABI's thread labels while it lives, so that
// plugins and the checked wrappers can ask "is this the engine thread?". Nested labels add up. Use
// one in each thread that calls into plugins.
#pragma once

#include <weft/threads.h>

#include <cstdint>

namespace weft::plugin {

class ThreadLabel {
 public:
  explicit ThreadLabel(uint32_t labels) : before_(current_) { current_ |= labels; }
  ~ThreadLabel() { current_ = before_; }
  ThreadLabel(const ThreadLabel&) = delete;
  ThreadLabel& operator=(const ThreadLabel&) = delete;

  static uint32_t current() { return current_; }

 private:
  inline static thread_local uint32_t current_ = 0;
  uint32_t before_;
};

}  // namespace weft::plugin
