// LoopThread: runs a Loop on its own thread for tests of blocking clients against loop objects.
// call() runs a closure on the loop and waits for it; objects made there must be destroyed there
// too, before the LoopThread.
#pragma once

#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "loop/loop.h"

namespace weft::test {

class LoopThread {
 public:
  LoopThread() : loop_(std::move(Loop::make()).value()), thread_([this] { loop_->run(); }) {}
  ~LoopThread() {
    loop_->stop();
    thread_.join();
    loop_.reset();  // checks that every handle was closed
  }

  Loop& loop() { return *loop_; }

  template <class F>
  auto call(F fn) -> std::invoke_result_t<F&> {
    using R = std::invoke_result_t<F&>;
    std::promise<R> promise;
    auto future = promise.get_future();
    loop_->post([&] {
      if constexpr (std::is_void_v<R>) {
        fn();
        promise.set_value();
      } else {
        promise.set_value(fn());
      }
    });
    return future.get();
  }

 private:
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace weft::test
