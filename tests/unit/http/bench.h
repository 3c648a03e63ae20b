// Bench: an HTTP server on its own loop thread with routes that the tests steer; shared by the
// server and stream tests.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "http/client.h"
#include "http/router.h"
#include "http/server.h"
#include "http/sse.h"
#include "loop_thread.h"
#include "raw_client.h"

namespace weft::test {

using namespace weft::http;  // NOLINT test support

inline constexpr std::string_view kGet = "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n";

// A server on its own loop thread, with routes that the tests steer.
struct Bench {
  explicit Bench(Limits limits = {}, const std::string& wanted = "127.0.0.1:0") {
    routes();
    t.call([&] {
      server = std::make_unique<Server>(t.loop(), limits, router.handler());
      auto bound = server->listen(wanted);
      REQUIRE(bound.ok());
      address = *bound;
    });
  }
  ~Bench() {
    t.call([&] {
      held.clear();
      writers.clear();
      server.reset();
    });
  }

  void routes() {
    const auto echo = [](Request r, Responder out) {
      out.send(200, {{"X-Path", r.path}}, r.method + " " + r.target + " " + r.body);
    };
    for (const char* method : {"GET", "POST"}) router.add(method, "/echo", echo);
    router.add("GET", "/hold", [this](Request r, Responder out) {
      out.on_disconnect([this] { ++disconnects; });
      requests.push_back(std::move(r));
      held.push_back(std::move(out));
      ++held_total;
    });
    router.add("GET", "/drop", [](Request, Responder) {});
    router.add("GET", "/peer", [](Request r, Responder out) {
      out.send(200, {},
               fmt::format("{} {} {}", r.peer.address, r.peer.pid, r.peer.uid.value_or(99999)));
    });
    router.add("GET", "/stream", [this](Request, Responder out) {
      writers.push_back(std::make_unique<StreamWriter>(out.begin_stream(200, sse_headers())));
      writers.back()->on_disconnect([this] { ++disconnects; });
      writers.back()->write("first;");
    });
    router.add("GET", "/flood", [this](Request, Responder out) { flood(std::move(out)); });
    router.add("GET", "/flood-deaf", [this](Request, Responder out) {
      auto w = out.begin_stream(200, {});
      w.on_disconnect([this] { ++disconnects; });
      for (int i = 0; i < 1'000'000 && w.alive(); ++i) {
        w.write(std::string(64 << 10, 'x'));
        deaf_max = std::max(deaf_max, w.buffered());
      }
      writers.push_back(std::make_unique<StreamWriter>(std::move(w)));
    });
    router.add("GET", "/big",
               [](Request, Responder out) { out.send(200, {}, std::string(8 << 20, 'b')); });
    router.add("GET", "/m/{id}",
               [](Request r, Responder out) { out.send(200, {}, "id=" + r.params["id"]); });
    router.add("GET", "/m/list", [](Request, Responder out) { out.send(200, {}, "list"); });
    router.add("DELETE", "/m/{id}", [](Request, Responder out) { out.send(204, {}, ""); });
    router.add("GET", "/models/{model*}",
               [](Request r, Responder out) { out.send(200, {}, r.params["model"]); });
  }

  // Writes for ever, as fast as the client takes it.
  void flood(Responder out) {
    writers.push_back(std::make_unique<StreamWriter>(out.begin_stream(200, {})));
    StreamWriter* w = writers.back().get();
    w->on_disconnect([this] { ++disconnects; });
    const auto pump = [this, w] {
      while (w->write(std::string(16 << 10, 'x'))) {
      }
      flood_max = std::max(flood_max, w->buffered());
      ++stops;
    };
    w->on_drain(pump);
    pump();
  }

  ServerStats stats() {
    return t.call([&] { return server->stats(); });
  }
  // Spins on a condition evaluated on the loop; only a hang ends it otherwise.
  template <class F>
  void wait_for(F condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kHangMs);
    while (!t.call(condition)) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::yield();
    }
  }

  Router router;
  LoopThread t;
  std::unique_ptr<Server> server;
  std::string address;
  // Loop thread:
  std::vector<Request> requests;
  std::vector<Responder> held;
  std::vector<std::unique_ptr<StreamWriter>> writers;
  int held_total = 0;
  int disconnects = 0;
  int stops = 0;
  size_t flood_max = 0;
  size_t deaf_max = 0;
};

inline std::string temp_dir() {
  char path[] = "/tmp/weft-http-XXXXXX";
  REQUIRE(mkdtemp(path) != nullptr);
  return path;
}

inline std::string one_shot(Bench& b, std::string_view bytes) {
  RawClient c(b.address);
  c.send(bytes);
  c.shutdown_write();
  return c.read_all();
}

}  // namespace weft::test
