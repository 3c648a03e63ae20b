#include "loop/loop.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "loop/address.h"
#include "loop/lane.h"
#include "loop/stream.h"
#include "loop_thread.h"

using namespace weft;  // NOLINT test file

namespace {

struct Fixture {
  std::unique_ptr<Loop> loop = std::move(Loop::make()).value();
};

std::string temp_dir() {
  char path[] = "/tmp/weft-loop-XXXXXX";
  REQUIRE(mkdtemp(path) != nullptr);
  return path;
}

struct Pair {
  UniqueFd ours;
  UniqueFd theirs;
};

Pair socket_pair() {
  int fds[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

}  // namespace

TEST_CASE("posted closures run on the loop in order and never inside post") {
  Fixture f;
  std::string order;
  f.loop->post([&] {
    order += "a";
    f.loop->post([&] {
      order += "c";
      f.loop->stop();
    });
    order += "b";
  });
  CHECK(order.empty());
  f.loop->run();
  CHECK(order == "abc");
}

TEST_CASE("closures from many threads all arrive") {
  Fixture f;
  constexpr int kThreads = 4;
  constexpr int kEach = 1000;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        f.loop->post([&] {
          CHECK(f.loop->on_loop_thread());
          if (++count == kThreads * kEach) f.loop->stop();
        });
      }
    });
  }
  f.loop->run();
  for (auto& t : threads) t.join();
  CHECK(count == kThreads * kEach);
  CHECK(!f.loop->on_loop_thread());
}

TEST_CASE("a loop is destroyed with closures that never ran and what they own") {
  auto owned = std::make_shared<int>(1);
  {
    Fixture f;
    auto timer = std::make_unique<Timer>(*f.loop);
    f.loop->post([owned, t = std::move(timer)] { FAIL("must not run"); });
    CHECK(owned.use_count() == 2);
  }
  CHECK(owned.use_count() == 1);
}

TEST_CASE("timers fire once or repeatedly, and may restart, stop and destroy themselves") {
  Fixture f;
  int once = 0;
  int repeated = 0;
  int restarted = 0;
  Timer a(*f.loop);
  Timer b(*f.loop);
  Timer c(*f.loop);
  auto d = std::make_unique<Timer>(*f.loop);
  a.start(1, [&] { ++once; });
  b.repeat(1, [&] {
    if (++repeated == 3) b.stop();
  });
  c.start(1, [&] {
    ++restarted;
    c.start(1, [&] { ++restarted; });
  });
  d->start(1, [&] { d.reset(); });
  Timer end(*f.loop);
  end.repeat(1, [&] {
    if (once > 0 && repeated >= 3 && restarted == 2 && d == nullptr) f.loop->stop();
  });
  f.loop->run();
  CHECK(once == 1);
  CHECK(repeated == 3);
  CHECK(!b.active());
}

TEST_CASE("health shows ticks, and a stuck callback as lag") {
  Fixture f;
  Timer wait(*f.loop);
  wait.repeat(5, [&] {
    if (f.loop->health().ticks >= 1) f.loop->stop();
  });
  f.loop->run();
  CHECK(f.loop->health().ticks >= 1);
  CHECK(f.loop->health().worst_lag_ms < 60'000);
  const uint64_t until = uv_hrtime() + (2 * Loop::kTickPeriodMs + 50) * 1'000'000;
  const uint64_t before = f.loop->health().ticks;
  f.loop->post([&] {
    while (uv_hrtime() < until) {
    }
    CHECK(f.loop->health().tick_age_ms >= Loop::kTickPeriodMs);
  });
  wait.repeat(5, [&] {
    if (f.loop->health().ticks > before && uv_hrtime() >= until) f.loop->stop();
  });
  f.loop->run();
  CHECK(f.loop->health().worst_lag_ms >= Loop::kTickPeriodMs / 2);
}

TEST_CASE("signals arrive on the loop") {
  Fixture f;
  int got = 0;
  auto watch = SignalWatch::make(*f.loop, SIGUSR1, [&] {
    ++got;
    f.loop->stop();
  });
  REQUIRE(watch.ok());
  f.loop->post([] { raise(SIGUSR1); });
  f.loop->run();
  CHECK(got == 1);
}

TEST_CASE("children are reaped with their status, also those gone before watch()") {
  Fixture f;
  auto reaper = std::move(ChildReaper::make(*f.loop)).value();
  const auto spawn = [](int code) {
    const pid_t pid = fork();
    if (pid == 0) {
      if (code < 0) {
        while (true) pause();
      }
      _exit(code);
    }
    return pid;
  };
  const pid_t early = spawn(3);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(early), &info, WEXITED | WNOWAIT) == 0);
  const pid_t killed = spawn(-1);
  std::vector<ChildExit> exits;
  const auto on_exit = [&](const ChildExit& e) {
    exits.push_back(e);
    if (exits.size() == 1) {
      kill(killed, SIGKILL);
    } else {
      f.loop->stop();
    }
  };
  reaper->watch(killed, on_exit);
  reaper->watch(early, on_exit);
  f.loop->run();
  REQUIRE(exits.size() == 2);
  CHECK(exits[0].pid == early);
  CHECK(exits[0].code == 3);
  CHECK(exits[0].signal == 0);
  CHECK(exits[1].pid == killed);
  CHECK(exits[1].signal == SIGKILL);
  CHECK(reaper->watched() == 0);
}

TEST_CASE("a lane runs work off the loop and the follow-up on it") {
  Fixture f;
  Lane lane(*f.loop, {"test", 2, 64});
  int sum = 0;
  int done = 0;
  f.loop->post([&] {
    for (int i = 1; i <= 10; ++i) {
      const bool taken = lane.compute(
          [&f, i] {
            CHECK(!f.loop->on_loop_thread());
            return std::make_unique<int>(i);  // move-only results are fine
          },
          [&](std::unique_ptr<int> v) {
            CHECK(f.loop->on_loop_thread());
            sum += *v;
            if (++done == 10) f.loop->stop();
          });
      CHECK(taken);
    }
  });
  f.loop->run();
  CHECK(sum == 55);
}

TEST_CASE("a lane's queue is bounded and its destructor drops what has not started") {
  Fixture f;
  std::promise<void> started;
  std::promise<void> release;
  auto held = std::make_shared<int>(0);
  int ran = 0;
  {
    Lane lane(*f.loop, {"test", 1, 2});
    CHECK(lane.run(
        [&] {
          started.set_value();
          release.get_future().wait();
        },
        [] {}));
    started.get_future().wait();
    CHECK(lane.run([&] { ++ran; }, [held] {}));
    CHECK(!lane.full());
    CHECK(lane.run([&] { ++ran; }, [held] {}));
    CHECK(lane.full());
    CHECK(!lane.run([&] { ++ran; }, [held] {}));
    CHECK(lane.queued() == 2);
    std::thread releaser([&] { release.set_value(); });
    // Nothing orders the release against the destructor: the queued jobs may run or be dropped,
    // never both or neither.
    releaser.join();
  }
  CHECK(ran <= 2);
  f.loop.reset();
  CHECK(held.use_count() == 1);
}

TEST_CASE("addresses are parsed, printed and refused with a reason") {
  for (const char* text :
       {"127.0.0.1:8000", "[::1]:0", "unix:/run/weft/weft.sock", "0.0.0.0:65535"}) {
    auto a = parse_address(text);
    REQUIRE_MESSAGE(a.ok(), text);
    CHECK(to_string(*a) == text);
  }
  CHECK(to_string(*parse_address("localhost:80")) == "127.0.0.1:80");
  for (const char* text :
       {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:8x", "::1:80",
        "example.com:80", "[::1:80", "unix:", "unix:relative", "127.0.0.1:-1"}) {
    const auto a = parse_address(text);
    CHECK_MESSAGE(!a.ok(), text);
    if (!a.ok()) CHECK(a.error().message.find("expected") != std::string::npos);
  }
  CHECK(!parse_address("unix:/" + std::string(108, 'x')).ok());
}

TEST_CASE(
    "a Unix listener sets the mode, replaces a stale file, refuses a live one and removes its "
    "own") {
  Fixture f;
  const std::string dir = temp_dir();
  const std::string path = dir + "/s";
  const std::string address = "unix:" + path;
  { const UniqueFd stale(bind_address(*parse_address(address), 0600).value().release()); }
  CHECK(std::filesystem::exists(path));
  {
    auto listener = Listener::listen(*f.loop, address, {16, 0640}, [](std::unique_ptr<Stream>) {});
    REQUIRE(listener.ok());
    CHECK((*listener)->address() == address);
    struct stat st {};
    REQUIRE(stat(path.c_str(), &st) == 0);
    CHECK((st.st_mode & 0777) == 0640);
    auto second = Listener::listen(*f.loop, address, {}, [](std::unique_ptr<Stream>) {});
    REQUIRE(!second.ok());
    CHECK(second.error().message.find("in use") != std::string::npos);
    CHECK(std::filesystem::exists(path));
  }
  CHECK(!std::filesystem::exists(path));
  { const UniqueFd file(creat(path.c_str(), 0600)); }
  auto over_file = Listener::listen(*f.loop, address, {}, [](std::unique_ptr<Stream>) {});
  REQUIRE(!over_file.ok());
  CHECK(over_file.error().message.find("not a socket") != std::string::npos);
  std::filesystem::remove_all(dir);
}

TEST_CASE("a stream stops its producer at the high mark, drains, and delivers every byte") {
  Fixture f;
  Pair pair = socket_pair();
  auto stream = std::move(Stream::adopt(*f.loop, std::move(pair.ours))).value();
  stream->set_watermarks({64 << 10, 16 << 10});
  std::string sent;
  bool stopped = false;
  int drains = 0;
  StreamCallbacks callbacks;
  callbacks.on_drain = [&] {
    ++drains;
    CHECK(stream->buffered() <= (16u << 10));
    f.loop->stop();
  };
  stream->set_callbacks(std::move(callbacks));
  f.loop->post([&] {
    for (int i = 0; i < 10'000 && !stopped; ++i) {
      const std::string piece(1000, static_cast<char>('a' + i % 26));
      sent += piece;
      stopped = !stream->write(piece);
    }
    CHECK(stopped);
    CHECK(stream->buffered() >= (64u << 10));
    CHECK(stream->bytes_written() + stream->buffered() == sent.size());
  });
  std::string received;
  std::thread reader([&] {
    char buffer[4096];
    ssize_t n = 0;
    while ((n = read(pair.theirs.get(), buffer, sizeof(buffer))) > 0)
      received.append(buffer, static_cast<size_t>(n));
  });
  f.loop->run();
  CHECK(drains == 1);
  StreamCallbacks flush;
  flush.on_flushed = [&] { f.loop->stop(); };
  stream->set_callbacks(std::move(flush));
  if (stream->buffered() > 0) f.loop->run();
  stream.reset();
  f.loop.reset();
  reader.join();
  CHECK(received == sent);
}

TEST_CASE(
    "a stream reports end of file, pauses reading, and may be destroyed in its own callback") {
  Fixture f;
  Pair pair = socket_pair();
  auto stream = std::move(Stream::adopt(*f.loop, std::move(pair.ours))).value();
  std::string got;
  StreamCallbacks callbacks;
  callbacks.on_data = [&](std::string_view bytes) {
    got += bytes;
    stream->pause_reading();
    CHECK(!stream->reading());
    f.loop->post([&] { stream->resume_reading(); });
  };
  callbacks.on_eof = [&] {
    stream.reset();
    f.loop->stop();
  };
  stream->set_callbacks(std::move(callbacks));
  stream->resume_reading();
  REQUIRE(write(pair.theirs.get(), "hello", 5) == 5);
  pair.theirs.reset();
  f.loop->run();
  CHECK(got == "hello");
  CHECK(stream == nullptr);
}

TEST_CASE("writing to a peer that is gone gives an error from the loop, not from write()") {
  Fixture f;
  Pair pair = socket_pair();
  auto stream = std::move(Stream::adopt(*f.loop, std::move(pair.ours))).value();
  bool failed = false;
  bool in_write = false;
  StreamCallbacks callbacks;
  callbacks.on_error = [&](const Error& e) {
    CHECK(!in_write);
    CHECK(e.code == ErrorCode::kPeer);
    failed = true;
    stream.reset();
    f.loop->stop();
  };
  stream->set_callbacks(std::move(callbacks));
  pair.theirs.reset();
  f.loop->post([&] {
    in_write = true;
    stream->write("x");
    stream->write("y");
    in_write = false;
  });
  f.loop->run();
  CHECK(failed);
}

TEST_CASE("streams destroyed with queued bytes leave nothing open") {
  Fixture f;
  Pair pair = socket_pair();
  auto stream = std::move(Stream::adopt(*f.loop, std::move(pair.ours))).value();
  f.loop->post([&] {
    while (stream->write(std::string(100'000, 'x'))) {
    }
    stream->shutdown_write();
    stream.reset();
    f.loop->stop();
  });
  f.loop->run();
  f.loop.reset();  // aborts unless uv_loop_close finds every handle closed
  CHECK(stream == nullptr);
}

TEST_CASE("LoopThread runs calls on the loop") {
  test::LoopThread t;
  CHECK(t.call([&] { return t.loop().on_loop_thread(); }));
}
