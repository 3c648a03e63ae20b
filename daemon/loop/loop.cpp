#include "loop/loop.h"

#include <csignal>

namespace weft {
namespace {

template <class T>
void close_and_delete(T* handle) {
  uv_close(reinterpret_cast<uv_handle_t*>(handle),
           [](uv_handle_t* h) { delete reinterpret_cast<T*>(h); });
}

}  // namespace

Result<std::unique_ptr<Loop>> Loop::make() {
  std::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<Loop> loop(new Loop());
  const int rc = uv_loop_init(&loop->loop_);
  if (rc != 0) {
    loop->open_ = false;
    loop->loop_.data = nullptr;
    return make_error(ErrorCode::kIo,
                      "cannot create an event loop: {}; check the limit of open files",
                      uv_strerror(rc));
  }
  loop->loop_.data = loop.get();
  loop->read_buffer_ = std::make_unique<char[]>(kReadBufferBytes);
  loop->wake_ = new uv_async_t{};
  WEFT_CHECK(uv_async_init(&loop->loop_, loop->wake_,
                           [](uv_async_t* h) { static_cast<Loop*>(h->data)->run_posted(); }) == 0);
  loop->wake_->data = loop.get();
  loop->heartbeat_ = new uv_timer_t{};
  WEFT_CHECK(uv_timer_init(&loop->loop_, loop->heartbeat_) == 0);
  loop->heartbeat_->data = loop.get();
  uv_timer_start(
      loop->heartbeat_, [](uv_timer_t* h) { static_cast<Loop*>(h->data)->tick(); }, kTickPeriodMs,
      kTickPeriodMs);
  loop->last_tick_ns_ = uv_hrtime();
  return loop;
}

Loop::~Loop() {
  if (loop_.data == nullptr) return;
  std::vector<Task> rest;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
    rest.swap(posted_);
  }
  rest.clear();  // closures may own streams and timers: they close before the loop does
  close_and_delete(wake_);
  close_and_delete(heartbeat_);
  // Each turn runs the close callbacks that are due; a closed stream needs one turn, chains a few.
  for (int turn = 0; turn < 16 && uv_loop_alive(&loop_) != 0; ++turn) {
    uv_run(&loop_, UV_RUN_NOWAIT);
  }
  WEFT_CHECK(uv_loop_close(&loop_) == 0);
}

void Loop::run() {
  thread_ = std::this_thread::get_id();
  last_tick_ns_ = uv_hrtime();
  while (!stop_requested_) uv_run(&loop_, UV_RUN_DEFAULT);
  stop_requested_ = false;
  thread_ = std::thread::id();
}

void Loop::stop() {
  post([this] {
    stop_requested_ = true;
    uv_stop(&loop_);
  });
}

void Loop::post(Task task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!open_) return;
  posted_.push_back(std::move(task));
  uv_async_send(wake_);
}

void Loop::run_posted() {
  std::vector<Task> batch;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    batch.swap(posted_);
  }
  for (Task& task : batch) {
    task();
    task = Task();  // what it owned goes now, not at the end of the batch
  }
}

void Loop::tick() {
  const uint64_t now = uv_hrtime();
  const uint64_t gap_ms = (now - last_tick_ns_.load()) / 1'000'000;
  const uint64_t lag = gap_ms > kTickPeriodMs ? gap_ms - kTickPeriodMs : 0;
  last_tick_ns_ = now;
  last_lag_ms_ = lag;
  if (lag > worst_lag_ms_.load()) worst_lag_ms_ = lag;
  ++ticks_;
}

LoopHealth Loop::health() const {
  LoopHealth h;
  h.ticks = ticks_.load();
  const uint64_t last = last_tick_ns_.load();
  const uint64_t now = uv_hrtime();
  h.tick_age_ms = now > last ? (now - last) / 1'000'000 : 0;
  h.last_lag_ms = last_lag_ms_.load();
  h.worst_lag_ms = worst_lag_ms_.load();
  return h;
}

bool Loop::on_loop_thread() const { return thread_.load() == std::this_thread::get_id(); }

uint64_t Loop::now_ms() const { return uv_now(&loop_); }

}  // namespace weft
