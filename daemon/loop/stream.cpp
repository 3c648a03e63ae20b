#include "loop/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace weft {
namespace {

Error stream_error(const char* what, int rc) {
  const ErrorCode code = rc == UV_ECONNRESET || rc == UV_EPIPE ? ErrorCode::kPeer : ErrorCode::kIo;
  return make_error(code, "{}: {}", what, uv_strerror(rc));
}

union AnySocket {
  uv_handle_t handle;
  uv_stream_t stream;
  uv_tcp_t tcp;
  uv_pipe_t pipe;
};

int init_socket(uv_loop_t* loop, AnySocket* socket, bool is_unix) {
  return is_unix ? uv_pipe_init(loop, &socket->pipe, 0) : uv_tcp_init(loop, &socket->tcp);
}

int open_socket(AnySocket* socket, bool is_unix, int fd) {
  return is_unix ? uv_pipe_open(&socket->pipe, fd) : uv_tcp_open(&socket->tcp, fd);
}

}  // namespace

struct Stream::State {
  AnySocket socket{};
  Loop* loop = nullptr;
  Stream* owner = nullptr;  // null once the stream is destroyed; callbacks then do nothing
  StreamCallbacks callbacks;
  Watermarks marks;
  uint64_t submitted = 0;
  bool above_high = false;
  bool failed = false;
  bool reading = false;
  bool saw_eof = false;
  bool shutdown_sent = false;
  uv_shutdown_t shutdown_request{};

  static State* of(uv_handle_t* h) { return static_cast<State*>(h->data); }
  size_t queued() const { return uv_stream_get_write_queue_size(&socket.stream); }

  void close() {
    owner = nullptr;
    uv_close(&socket.handle, [](uv_handle_t* h) { delete of(h); });
  }
  void fail(const char* what, int rc) {
    if (owner == nullptr || failed) return;
    failed = true;
    reading = false;
    uv_read_stop(&socket.stream);
    const auto on_error =
        callbacks.on_error;  // the callback may destroy the stream and set new ones
    if (on_error) on_error(stream_error(what, rc));
  }
  void on_read(ssize_t n, const char* data) {
    if (owner == nullptr || n == 0) return;
    if (n > 0) {
      if (callbacks.on_data) callbacks.on_data(std::string_view(data, static_cast<size_t>(n)));
    } else if (n == UV_EOF) {
      reading = false;
      saw_eof = true;
      uv_read_stop(&socket.stream);
      if (callbacks.on_eof) callbacks.on_eof();
    } else {
      fail("reading from the peer", static_cast<int>(n));
    }
  }
  void on_written(int rc) {
    if (owner == nullptr) return;
    if (rc < 0) return fail("writing to the peer", rc);
    const size_t left = queued();
    if (above_high && left <= marks.low) {
      above_high = false;
      if (callbacks.on_drain) callbacks.on_drain();
    }
    if (owner != nullptr && queued() == 0 && callbacks.on_flushed) callbacks.on_flushed();
  }
};

struct Stream::WriteRequest {
  uv_write_t request{};
  std::string bytes;
};

Result<std::unique_ptr<Stream>> Stream::adopt(Loop& loop, UniqueFd fd) {
  WEFT_ASSIGN(const Address local, bound_address(fd.get()));
  auto* state = new State;
  const int rc = init_socket(loop.raw(), &state->socket, local.is_unix());
  if (rc != 0) {
    delete state;
    return stream_error("creating a stream", rc);
  }
  state->loop = &loop;
  state->socket.handle.data = state;
  std::unique_ptr<Stream> stream(new Stream(state));
  state->owner = stream.get();
  const int opened = open_socket(&state->socket, local.is_unix(), fd.get());
  if (opened != 0) return stream_error("adopting a socket", opened);
  fd.release();
  return stream;
}

Stream::~Stream() { state_->close(); }

void Stream::set_callbacks(StreamCallbacks callbacks) { state_->callbacks = std::move(callbacks); }

void Stream::set_watermarks(Watermarks marks) {
  WEFT_CHECK(marks.low < marks.high);
  state_->marks = marks;
}

void Stream::resume_reading() {
  if (state_->failed || state_->saw_eof || state_->reading) return;
  state_->reading = true;
  uv_read_start(
      &state_->socket.stream,
      [](uv_handle_t* h, size_t, uv_buf_t* buf) {
        *buf = uv_buf_init(State::of(h)->loop->read_buffer(), Loop::kReadBufferBytes);
      },
      [](uv_stream_t* s, ssize_t n, const uv_buf_t* buf) {
        State::of(reinterpret_cast<uv_handle_t*>(s))->on_read(n, buf->base);
      });
}

void Stream::pause_reading() {
  state_->reading = false;
  uv_read_stop(&state_->socket.stream);
}

bool Stream::reading() const { return state_->reading; }

bool Stream::write(std::string bytes) {
  State* s = state_;
  if (s->failed || bytes.empty()) return !s->above_high;
  s->submitted += bytes.size();
  size_t sent = 0;
  if (s->queued() == 0) {
    const uv_buf_t buf = uv_buf_init(bytes.data(), static_cast<unsigned>(bytes.size()));
    const int n = uv_try_write(&s->socket.stream, &buf, 1);
    // An error here comes again from uv_write, in its callback: write() itself never calls back.
    if (n > 0) sent = static_cast<size_t>(n);
    if (sent == bytes.size()) return true;
  }
  auto request = std::make_unique<WriteRequest>();
  request->bytes = std::move(bytes);
  const uv_buf_t buf = uv_buf_init(request->bytes.data() + sent,
                                   static_cast<unsigned>(request->bytes.size() - sent));
  const int rc =
      uv_write(&request->request, &s->socket.stream, &buf, 1, [](uv_write_t* r, int status) {
        State* state = State::of(reinterpret_cast<uv_handle_t*>(r->handle));
        delete reinterpret_cast<WriteRequest*>(r);
        state->on_written(status);
      });
  if (rc == 0) request.release();  // freed in its callback, which always comes
  if (s->queued() >= s->marks.high) s->above_high = true;
  return !s->above_high;
}

size_t Stream::buffered() const { return state_->queued(); }

uint64_t Stream::bytes_written() const { return state_->submitted - state_->queued(); }

void Stream::shutdown_write() {
  if (state_->failed || state_->shutdown_sent) return;
  state_->shutdown_sent = true;
  uv_shutdown(&state_->shutdown_request, &state_->socket.stream, [](uv_shutdown_t*, int) {});
}

int Stream::fd() const {
  uv_os_fd_t fd = -1;
  uv_fileno(&state_->socket.handle, &fd);
  return fd;
}

struct Listener::State {
  AnySocket socket{};
  Loop* loop = nullptr;
  bool is_unix = false;
  OnAccept on_accept;
};

Result<std::unique_ptr<Listener>> Listener::listen(Loop& loop, std::string_view address,
                                                   const ListenOptions& options,
                                                   OnAccept on_accept) {
  WEFT_ASSIGN(const Address parsed, parse_address(address));
  WEFT_ASSIGN(UniqueFd fd, bind_address(parsed, options.unix_mode));
  auto made = adopt(loop, std::move(fd), options, std::move(on_accept));
  if (!parsed.unix_path.empty()) {
    if (made.ok()) {
      made.value()->unlink_path_ = parsed.unix_path;
    } else {
      unlink(parsed.unix_path.c_str());
    }
  }
  return made;
}

Result<std::unique_ptr<Listener>> Listener::adopt(Loop& loop, UniqueFd fd,
                                                  const ListenOptions& options,
                                                  OnAccept on_accept) {
  WEFT_ASSIGN(const Address local, bound_address(fd.get()));
  auto* state = new State;
  state->is_unix = local.is_unix();
  int rc = init_socket(loop.raw(), &state->socket, state->is_unix);
  if (rc != 0) {
    delete state;
    return stream_error("creating a listener", rc);
  }
  state->loop = &loop;
  state->on_accept = std::move(on_accept);
  state->socket.handle.data = state;
  std::unique_ptr<Listener> listener(new Listener(state, to_string(local), ""));
  rc = open_socket(&state->socket, state->is_unix, fd.get());
  if (rc != 0) return stream_error("adopting a listening socket", rc);
  fd.release();
  rc = uv_listen(&state->socket.stream, options.backlog, accept_one);
  if (rc != 0) {
    return make_error(ErrorCode::kIo, "cannot listen on {}: {}", listener->address_,
                      uv_strerror(rc));
  }
  return listener;
}

void Listener::accept_one(uv_stream_t* server, int status) {
  auto* state = static_cast<State*>(server->data);
  if (status < 0) {
    log_warning("accepting a connection failed: {}", uv_strerror(status));
    return;
  }
  auto* accepted = new Stream::State;
  if (init_socket(state->loop->raw(), &accepted->socket, state->is_unix) != 0) {
    delete accepted;
    return;
  }
  accepted->loop = state->loop;
  accepted->socket.handle.data = accepted;
  std::unique_ptr<Stream> stream(new Stream(accepted));
  accepted->owner = stream.get();
  if (uv_accept(server, &accepted->socket.stream) != 0) return;
  if (!state->is_unix) uv_tcp_nodelay(&accepted->socket.tcp, 1);
  state->on_accept(std::move(stream));
}

Listener::~Listener() {
  if (!unlink_path_.empty()) unlink(unlink_path_.c_str());
  uv_close(&state_->socket.handle, [](uv_handle_t* h) { delete static_cast<State*>(h->data); });
}

}  // namespace weft
