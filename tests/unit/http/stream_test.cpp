// Streaming answers: end, disconnects, back-pressure, and crowds of them.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "bench.h"
#include "loop/lane.h"

using namespace weft;        // NOLINT test file
using namespace weft::http;  // NOLINT test file
using namespace weft::test;  // NOLINT test file

TEST_CASE("a stream is chunked, ends, and the connection lives on") {
  Bench b;
  RawClient c(b.address);
  c.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  REQUIRE(c.read_until("6\r\nfirst;\r\n"));
  CHECK(c.text().find("Transfer-Encoding: chunked") != std::string::npos);
  CHECK(c.text().find("text/event-stream") != std::string::npos);
  b.t.call([&] {
    b.writers[0]->write("");  // nothing, not the end
    b.writers[0]->write("second");
    b.writers[0]->end();
    CHECK(!b.writers[0]->alive());
    CHECK(!b.writers[0]->write("late"));
  });
  REQUIRE(c.read_until("6\r\nsecond\r\n0\r\n\r\n"));
  c.clear();
  c.send("HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  b.wait_for([&] { return b.writers.size() == 2; });
  b.t.call([&] { b.writers[1]->end(); });
  REQUIRE(c.read_until("\r\n\r\n"));
  CHECK(c.text().find("first") == std::string::npos);
  c.clear();
  c.send(kGet);
  CHECK(c.read_until("GET /echo"));
  CHECK(b.disconnects == 0);
}

TEST_CASE("disconnects are noticed at once: FIN, half-close and reset, waiting or streaming") {
  Bench b;
  int expected = 0;
  for (const char* path : {"/hold", "/stream"}) {
    for (int how = 0; how < 3; ++how) {
      CAPTURE(path);
      CAPTURE(how);
      RawClient c(b.address);
      c.send(fmt::format("GET {} HTTP/1.1\r\nHost: h\r\n\r\n", path));
      b.wait_for([&] { return b.server->stats().requests_in_flight == 1; });
      if (how == 0) c.close();
      if (how == 1) c.shutdown_write();
      if (how == 2) c.reset_connection();
      ++expected;
      b.wait_for([&] { return b.disconnects == expected; });
      b.t.call([&] {
        for (const Responder& r : b.held) CHECK(!r.alive());
        for (const auto& w : b.writers) CHECK(!w->alive());
        CHECK(b.server->stats().requests_in_flight == 0);
        CHECK(b.server->stats().connections == 0);
      });
    }
  }
  b.t.call([&] {
    b.held[0].send(200, {}, "to nobody");  // harmless
    CHECK(!b.writers[0]->write("to nobody"));
    b.writers[0]->end();
  });
  CHECK(b.disconnects == expected);
}

TEST_CASE("with allow_half_close a client that shut down its side still gets its answer") {
  Limits limits;
  limits.allow_half_close = true;
  Bench b(limits);
  RawClient c(b.address);
  c.send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\nGET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  c.shutdown_write();
  b.wait_for([&] { return b.held.size() == 1; });
  b.stats();
  b.t.call([&] {
    b.held[0].send(200, {}, "held");
    b.held.clear();
  });
  c.read_all();
  CHECK(test::count_of(c.text(), "HTTP/1.1 200") == 2);
  CHECK(b.disconnects == 0);
}

TEST_CASE("a responder destroyed unanswered sends 500, a stream destroyed without end is cut") {
  Bench b;
  RawClient c(b.address);
  c.send("GET /drop HTTP/1.1\r\nHost: h\r\n\r\n");
  REQUIRE(c.read_until("internal_error"));
  CHECK(c.status() == 500);
  c.clear();
  c.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  REQUIRE(c.read_until("first;"));
  b.t.call([&] { b.writers.clear(); });
  c.read_all();
  CHECK(c.text().find("0\r\n\r\n") == std::string::npos);
  CHECK(b.disconnects == 0);  // our own doing
  CHECK(b.stats().requests_in_flight == 0);
}

TEST_CASE("a slow reader stops the producer at the high mark and wakes it as it reads") {
  Limits limits;
  limits.stream_high = 256 << 10;
  limits.stream_low = 64 << 10;
  Bench b(limits);
  RawClient c(b.address, 4096);
  c.send("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
  b.wait_for([&] { return b.stops >= 1; });
  while (b.t.call([&] { return b.stops; }) < 4) {
    c.clear();
    REQUIRE(c.read_some(256 << 10));
  }
  b.t.call([&] { CHECK(b.flood_max < (256u << 10) + (64u << 10)); });
  CHECK(b.stats().stalled_total == 0);
}

TEST_CASE("a reader that takes nothing for the stall time is aborted") {
  Limits limits;
  limits.write_stall_ms = 50;
  Bench b(limits);
  RawClient c(b.address, 4096);
  c.send("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
  b.wait_for([&] { return b.disconnects == 1; });
  CHECK(b.stats().stalled_total == 1);
  CHECK(b.stats().connections == 0);
}

TEST_CASE("a producer that does not listen is cut at the hard limit") {
  Limits limits;
  limits.stream_hard = 4 << 20;
  Bench b(limits);
  RawClient c(b.address, 4096);
  c.send("GET /flood-deaf HTTP/1.1\r\nHost: h\r\n\r\n");
  b.wait_for([&] { return b.disconnects == 1 || !b.writers.empty(); });
  b.t.call([&] {
    CHECK(b.deaf_max <= (4u << 20));
    CHECK(!b.writers[0]->alive());
  });
  b.wait_for([&] { return b.server->stats().connections == 0; });
}

TEST_CASE("a big answer to a slow client arrives whole, also before a close") {
  Bench b;
  RawClient c(b.address, 4096);
  c.send("GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  c.read_all();
  CHECK(!c.was_reset());
  const size_t head = c.text().find("\r\n\r\n");
  CHECK(c.text().size() - head - 4 == (8u << 20));
}

TEST_CASE("a server destroyed with open streams tells their owners") {
  auto b = std::make_unique<Bench>();
  RawClient c(b->address);
  c.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  REQUIRE(c.read_until("first;"));
  b->t.call([&] { b->server.reset(); });
  CHECK(b->disconnects == 1);
  c.read_all();
  CHECK(c.text().find("0\r\n\r\n") == std::string::npos);
}

TEST_CASE("an answer can come from a lane") {
  Bench b;
  std::unique_ptr<Lane> lane;
  b.router.add("GET", "/lane", [&](Request, Responder out) {
    auto responder = std::make_shared<Responder>(std::move(out));
    CHECK(lane->compute(
        [] { return std::string("from a lane"); },
        [responder](std::string text) { responder->send(200, {}, std::move(text)); }));
  });
  b.t.call([&] { lane = std::make_unique<Lane>(b.t.loop(), LaneOptions{"test", 1, 8}); });
  CHECK(Client::make(b.address)->request({"GET", "/lane", {}, ""})->body == "from a lane");
  b.t.call([&] { lane.reset(); });
}

TEST_CASE("1,000 connections open and close, some with requests, none is left") {
  Bench b;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 100; ++i) {
      clients.push_back(std::make_unique<RawClient>(b.address));
      if (i % 3 == 0) clients.back()->send(kGet);
      if (i % 7 == 0) clients.back()->send("GET /half HTTP/1.1\r\nHos");
      if (i % 11 == 0) clients.back()->reset_connection();
    }
  }
  b.wait_for([&] {
    return b.server->stats().connections == 0 && b.server->stats().connections_total == 1000;
  });
  CHECK(b.stats().requests_in_flight == 0);
}

TEST_CASE("many concurrent streams with random disconnects leave nothing behind") {
  Bench b;
  b.router.add("GET", "/count", [&](Request, Responder out) {
    // Each stream writes numbers from its own timer until it is done or its client has gone.
    struct Run {
      StreamWriter writer;
      std::unique_ptr<Timer> timer;
      int next = 0;
    };
    auto run = std::make_shared<Run>();
    run->writer = out.begin_stream(200, {});
    run->timer = std::make_unique<Timer>(b.t.loop());
    run->writer.on_disconnect([&b, run] {
      ++b.disconnects;
      run->timer.reset();
    });
    run->timer->repeat(1, [run] {
      run->writer.write(fmt::format("{},", run->next));
      if (++run->next == 20) {
        run->writer.end();
        run->timer.reset();
      }
    });
  });
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 20; ++i) {
        const bool leave = random() % 2 == 0;
        const size_t after = random() % 30;
        size_t seen = 0;
        std::string text;
        const auto r = Client::make(b.address)->request(
            {"GET", "/count", {}, ""}, [&](const ClientResponse&, std::string_view bytes) {
              seen += bytes.size();
              text += bytes;
              return !(leave && seen > after);
            });
        if (!r.ok()) continue;
        if (!r->stopped && text.find("19,") != std::string::npos) ++finished;
      }
    });
  }
  for (auto& t : threads) t.join();
  b.wait_for([&] { return b.server->stats().connections == 0; });
  const ServerStats s = b.stats();
  CHECK(s.requests_in_flight == 0);
  CHECK(s.requests_total == 160);
  CHECK(finished.load() + b.disconnects >= 150);  // a client may leave after the last byte was sent
  CHECK(finished.load() > 0);
  CHECK(b.disconnects > 0);
}
