// Task: a move-only closure, so that work handed between threads can own what it carries (a
// responder, a buffer, a fd). Owned by whoever holds it; a Task moves to the thread that runs it.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace weft {

class Task {
 public:
  Task() = default;
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, Task>>>
  Task(F&& f)
      : body_(std::make_unique<Body<std::decay_t<F>>>(std::forward<F>(f))) {
  }  // NOLINT implicit on purpose

  explicit operator bool() const { return body_ != nullptr; }
  void operator()() { body_->run(); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void run() = 0;
  };
  template <class F>
  struct Body final : Base {
    explicit Body(F f) : fn(std::move(f)) {}
    void run() override { fn(); }
    F fn;
  };
  std::unique_ptr<Base> body_;
};

}  // namespace weft
