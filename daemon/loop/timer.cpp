#include "loop/loop.h"

namespace weft {

struct Timer::State {
  uv_timer_t handle{};
  std::function<void()> fn;
};

Timer::Timer(Loop& loop) : state_(new State) {
  WEFT_CHECK(uv_timer_init(loop.raw(), &state_->handle) == 0);
  state_->handle.data = state_;
}

Timer::~Timer() {
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->handle),
           [](uv_handle_t* h) { delete static_cast<State*>(h->data); });
}

namespace {

// The state outlives the callback even if the callback destroys the timer: it is freed in the close
// callback only.
template <class S>
void fire(uv_timer_t* h) {
  auto* state = static_cast<S*>(h->data);
  std::function<void()> fn = std::move(state->fn);
  state->fn = nullptr;
  fn();
  const bool closing = uv_is_closing(reinterpret_cast<uv_handle_t*>(h)) != 0;
  const bool restarted = static_cast<bool>(state->fn);
  if (!closing && !restarted && uv_is_active(reinterpret_cast<uv_handle_t*>(h)) != 0) {
    state->fn = std::move(fn);
  }
}

}  // namespace

void Timer::start(uint64_t after_ms, std::function<void()> fn) {
  state_->fn = std::move(fn);
  uv_update_time(state_->handle.loop);  // a callback that ran long must not shorten the wait
  WEFT_CHECK(uv_timer_start(&state_->handle, fire<State>, after_ms, 0) == 0);
}

void Timer::repeat(uint64_t every_ms, std::function<void()> fn) {
  WEFT_CHECK(every_ms > 0);
  state_->fn = std::move(fn);
  uv_update_time(state_->handle.loop);
  WEFT_CHECK(uv_timer_start(&state_->handle, fire<State>, every_ms, every_ms) == 0);
}

void Timer::stop() {
  uv_timer_stop(&state_->handle);
  state_->fn = nullptr;
}

bool Timer::active() const {
  return uv_is_active(reinterpret_cast<const uv_handle_t*>(&state_->handle)) != 0;
}

}  // namespace weft
