// The promise of the gateway: no request is lost, every stream ends, and whoever leaves frees what
// was theirs.
#include "gateway_fixture.h"

using namespace weft;        // NOLINT test file
using namespace weft::test;  // NOLINT test file

TEST_CASE("a client that leaves frees its sequences, whatever state it is in") {
  for (const bool stream : {false, true}) {
    CAPTURE(stream);
    GatewayBench b;
    uint64_t disconnects = 0;
    const auto leave = [&](FakeClient& client, bool served) {
      client.disconnect();
      if (served) {
        for (auto& [id, s] : b.backend.sequences) CHECK(s.forgotten == (s.over ? 0 : 1));
        CHECK(b.gateway->list().empty());
      }
      b.until([&] { return b.gateway->in_flight() == 0; });
      ++disconnects;
      b.check_idle();
      CHECK(b.metric("weft_client_disconnects_total") == static_cast<double>(disconnects));
    };
    FakeClient& preparing = b.chat({{"stream", stream}});
    CHECK(b.gateway->in_flight() == 1);
    leave(preparing, false);
    CHECK(b.backend.sequences.empty());

    FakeClient& queued = b.chat({{"stream", stream}, {"n", 2}});
    b.wait_sequences(2);
    leave(queued, true);

    FakeClient& prefilling = b.chat({{"stream", stream}});
    b.wait_sequences(3);
    b.backend.admit(3);
    leave(prefilling, true);

    FakeClient& running = b.chat({{"stream", stream}});
    b.wait_sequences(4);
    b.backend.tokens(4, encode("Some thought"));
    leave(running, true);
    // What still comes is nobody's.
    b.backend.tokens(4, encode("more"), wire::FINISH_STOP);

    FakeClient& half = b.chat({{"stream", stream}, {"n", 2}});
    b.wait_sequences(6);
    b.backend.tokens(5, turn("", "done"), wire::FINISH_STOP);
    half.disconnect();
    CHECK(b.backend.sequences[5].forgotten == 0);
    CHECK(b.backend.sequences[6].forgotten == 1);
    b.settle();
    CHECK(b.gateway->in_flight() == 0);
    CHECK(b.finished("abort") == 4);
    CHECK(b.metric("weft_cancel_total{origin=\"disconnect\"}") == 4);
  }
}

TEST_CASE("a slow reader holds tokens, not text, and loses nothing") {
  GatewayBench b;
  FakeClient& client = b.chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  b.wait_sequences(1);
  const Ids ids = turn("A long thought about nothing.", "And a long answer, word by word by word.");
  client.accepts = false;
  b.backend.tokens(1, {ids[0]});
  CHECK(client.writes == 1);
  for (size_t i = 1; i < ids.size(); ++i) {
    b.backend.tokens(1, {ids[i]}, i + 1 == ids.size() ? wire::FINISH_STOP : wire::FINISH_NONE);
    CHECK(client.writes == 1);
  }
  CHECK_FALSE(client.done());
  CHECK(b.gateway->in_flight() == 1);
  // One write per drain while it stays slow.
  for (int writes = 2; writes < 5; ++writes) {
    const auto on_drain = client.exchange->on_drain;
    on_drain();
    CHECK(client.writes == writes);
  }
  client.drain();
  REQUIRE(client.done());
  std::string content;
  Json usage;
  for (const Json& event : client.events()) {
    if (!event.is_object()) continue;
    if (event["choices"].empty())
      usage = event["usage"];
    else
      content += event["choices"][0]["delta"].value("content", "");
  }
  CHECK(content == "And a long answer, word by word by word.");
  CHECK(usage["completion_tokens"] == ids.size());
  b.check_idle();
  CHECK(b.finished("stop") == 1);
}

TEST_CASE("a slow reader with several choices, an error, or that leaves") {
  GatewayBench b;
  FakeClient& several = b.chat({{"stream", true}, {"n", 2}});
  b.wait_sequences(2);
  several.accepts = false;
  b.backend.tokens(2, turn("", "two"), wire::FINISH_STOP);
  b.backend.tokens(1, turn("", "one"), wire::FINISH_STOP);
  CHECK(several.writes == 1);
  several.drain();
  REQUIRE(several.done());
  CHECK(several.body.find("one") != std::string::npos);
  CHECK(several.body.find("two") != std::string::npos);

  FakeClient& failing = b.chat({{"stream", true}});
  b.wait_sequences(3);
  failing.accepts = false;
  b.backend.tokens(3, encode("Hm"));
  b.backend.tokens(3, encode("hm"));
  b.backend.error(3, "internal", "x");
  REQUIRE(failing.done());
  CHECK(failing.events().at(failing.events().size() - 2).contains("error"));

  FakeClient& leaving = b.chat({{"stream", true}});
  b.wait_sequences(4);
  leaving.accepts = false;
  b.backend.tokens(4, encode("Hm"));
  b.backend.tokens(4, encode("hm"));
  leaving.disconnect();
  CHECK(b.backend.sequences[4].forgotten == 1);
  b.check_idle();
}

TEST_CASE("a lost worker: 503 before the headers, an error event after them") {
  GatewayBench b;
  FakeClient& queued = b.chat({{"stream", true}});
  b.wait_sequences(1);
  FakeClient& whole = b.chat();
  b.wait_sequences(2);
  b.backend.tokens(2, encode("thinking"));
  FakeClient& streaming = b.chat({{"stream", true}, {"n", 2}});
  b.wait_sequences(4);
  b.backend.tokens(3, turn("", "complete"), wire::FINISH_STOP);
  b.backend.tokens(4, encode("half"));
  b.backend.lose();
  for (const FakeClient* client : {&queued, &whole}) {
    REQUIRE(client->done());
    CHECK(client->status == 503);
    CHECK(client->header("retry-after") == "5");
  }
  REQUIRE(streaming.done());
  const auto events = streaming.events();
  CHECK(events.back() == "[DONE]");
  CHECK(events.at(events.size() - 2)["error"]["code"] == "unavailable");
  CHECK(b.finished("error") == 3);
  b.check_idle();
  FakeClient& later = b.chat();
  b.until([&] { return later.done(); });
  CHECK(later.status == 503);
  b.check_idle();
}

TEST_CASE("the replica goes away while a request is prepared") {
  GatewayBench b;
  FakeClient& client = b.chat({{"stream", true}});
  b.backend.mutable_info().state = gateway::ReplicaState::kRestarting;
  b.until([&] { return client.done(); });
  CHECK(client.status == 503);
  CHECK(b.backend.sequences.empty());
  b.check_idle();
}

TEST_CASE("a worker that shuts down gives requests up") {
  GatewayBench b;
  FakeClient& client = b.chat();
  b.wait_sequences(1);
  b.backend.finish(1, wire::FINISH_CANCELLED);
  REQUIRE(client.done());
  CHECK(client.status == 503);
  b.check_idle();
}

TEST_CASE("the operator cancels one request, or all") {
  GatewayBench b;
  FakeClient& one = b.chat({{"stream", true}});
  b.wait_sequences(1);
  b.backend.tokens(1, encode("thinking"));
  FakeClient& other = b.chat();
  b.wait_sequences(2);
  std::string id;
  for (const auto& view : b.gateway->list())
    if (view.stream) id = view.id;
  CHECK_FALSE(b.gateway->cancel("chatcmpl-none"));
  CHECK(b.gateway->cancel(id));
  CHECK_FALSE(b.gateway->cancel(id));
  REQUIRE(one.done());
  CHECK(one.events().at(one.events().size() - 2)["error"]["code"] == "cancelled");
  CHECK(b.backend.sequences[1].forgotten == 1);
  CHECK(b.backend.sequences[2].forgotten == 0);
  b.gateway->abort_all(api::unavailable("weftd is shutting down"), "shutdown");
  REQUIRE(other.done());
  CHECK(other.status == 503);
  CHECK(b.metric("weft_cancel_total{origin=\"admin\"}") == 1);
  CHECK(b.metric("weft_cancel_total{origin=\"shutdown\"}") == 1);
  b.check_idle();
}

TEST_CASE("draining refuses new requests and tells when the last one is gone") {
  GatewayBench b;
  int idle = 0;
  b.gateway->on_idle([&] {
    CHECK(b.gateway->in_flight() == 0);
    ++idle;
  });
  FakeClient& running = b.chat();
  b.wait_sequences(1);
  FakeClient& preparing = b.chat();
  b.gateway->begin_drain();
  FakeClient& late = b.chat();
  REQUIRE(late.done());
  CHECK(late.status == 503);
  CHECK(!late.header("retry-after").empty());
  b.until([&] { return preparing.done(); });
  CHECK(preparing.status == 503);
  CHECK(idle == 0);
  b.backend.tokens(1, turn("", "done"), wire::FINISH_STOP);
  CHECK(running.status == 200);
  b.until([&] { return idle > 0; });
  b.settle();
  CHECK(idle == 1);
  CHECK(b.backend.sequences.size() == 1);
  CHECK(b.gateway->requests_total() == 3);
}

TEST_CASE("a long queue is bridged by comments, and an error after them is an event") {
  config::Config config;
  config.http.keepalive_comment_ms = 10;
  GatewayBench b(config);
  FakeClient& client = b.chat({{"stream", true}});
  FakeClient& failing = b.chat({{"stream", true}});
  FakeClient& whole = b.chat();
  b.wait_sequences(3);
  b.until([&] { return client.comments() >= 2 && failing.comments() >= 2; });
  CHECK(client.events().empty());
  CHECK_FALSE(whole.streaming);
  // Which client got which sequence depends on the lane: give all the same.
  client.accepts = false;
  const int writes = client.writes;
  const size_t others = failing.comments();
  b.until([&] { return failing.comments() > others + 2; });
  CHECK(client.writes <= writes + 1);  // no comments into a full socket
  client.drain();
  for (uint64_t id = 1; id <= 3; ++id) b.backend.error(id, "unavailable", "the queue was dropped");
  REQUIRE(client.done());
  CHECK(client.status == 200);
  CHECK(client.events().size() == 2);
  CHECK(client.events()[0]["error"]["message"] == "the queue was dropped");
  CHECK(whole.status == 503);
  b.check_idle();
}

TEST_CASE("x-request-id is kept when it is one, and made when it is not") {
  GatewayBench b;
  const auto id_for = [&](const std::string& given) {
    b.clients.push_back(std::make_unique<FakeClient>());
    FakeClient& client = *b.clients.back();
    http::Request request;
    request.method = "POST";
    request.path = request.target = "/v1/completions";
    request.body = "{";
    if (!given.empty()) request.headers.set("x-request-id", given);
    b.router.handle(std::move(request), http::Responder(client.exchange));
    b.until([&] { return client.done(); });
    return client.header("x-request-id");
  };
  CHECK(id_for("abc-1") == "abc-1");
  CHECK(id_for("").rfind("req-", 0) == 0);
  CHECK(id_for("two words").rfind("req-", 0) == 0);
  CHECK(id_for(std::string(200, 'x')).rfind("req-", 0) == 0);
}

TEST_CASE(
    "the gateway may go first: running requests are cut, prepared ones are dropped, nothing is "
    "touched later") {
  GatewayBench b;
  FakeClient& streaming = b.chat({{"stream", true}});
  b.wait_sequences(1);
  b.backend.tokens(1, encode("thinking"));
  FakeClient& queued = b.chat();
  b.wait_sequences(2);
  FakeClient& preparing = b.chat();
  FakeClient& tokenizing = b.post("/tokenize", {{"model", "micro"}, {"prompt", "x"}});
  b.gateway.reset();
  CHECK(b.backend.sequences[1].forgotten == 1);
  CHECK(b.backend.sequences[2].forgotten == 1);
  CHECK(streaming.aborted);
  CHECK(queued.status == 500);
  b.settle();
  b.until([&] { return preparing.done() && tokenizing.done(); });
  CHECK(preparing.status == 500);
  CHECK(b.backend.sequences.size() == 2);
}

TEST_CASE("a finished request that waits for its destruction outlives gateway and backend") {
  auto b = std::make_unique<GatewayBench>();
  FakeClient& client = b->chat({{"stream", true}});
  b->wait_sequences(1);
  b->backend.tokens(1, turn("", "x"), wire::FINISH_STOP);
  REQUIRE(client.done());
  FakeClient& leaving = b->chat({{"stream", true}});
  b->wait_sequences(2);
  leaving.disconnect();
  b.reset();  // without another turn of the loop
}

TEST_CASE("random histories of many requests end with everything answered and freed") {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    GatewayBench b;
    std::map<uint64_t, Ids> left;
    uint64_t seen = 0;
    for (int step = 0; step < 600; ++step) {
      const auto pick = [&]() -> FakeClient* {
        return b.clients.empty() ? nullptr : b.clients[rng() % b.clients.size()].get();
      };
      const auto what = rng() % 100;
      if (what < 12) {
        Json extra{{"stream", rng() % 3 != 0}, {"n", 1 + rng() % 3}};
        if (rng() % 4 == 0) extra["stop"] = "two";
        FakeClient& client = b.chat(extra);
        if (rng() % 8 == 0) client.disconnect();  // while it is prepared
        b.until([&] { return b.gateway->in_flight() == b.gateway->list().size(); });
      } else if (what < 16) {
        if (FakeClient* c = pick(); c != nullptr && !c->ended) c->disconnect();
      } else if (what < 22) {
        if (FakeClient* c = pick(); c != nullptr) c->accepts = false;
      } else if (what < 32) {
        if (FakeClient* c = pick(); c != nullptr) c->drain();
      } else if (what < 34) {
        const auto list = b.gateway->list();
        if (!list.empty()) b.gateway->cancel(list[rng() % list.size()].id);
      } else if (what < 45) {
        b.settle();
      } else {
        for (; seen < b.backend.sequences.size(); ++seen)
          left[seen + 1] = turn("thought", "one two three");
        if (left.empty()) continue;
        auto it = left.begin();
        std::advance(it, static_cast<long>(rng() % left.size()));
        const size_t n = std::min<size_t>(1 + rng() % 4, it->second.size());
        const Ids part(it->second.begin(), it->second.begin() + static_cast<long>(n));
        it->second.erase(it->second.begin(), it->second.begin() + static_cast<long>(n));
        const uint64_t id = it->first;
        const bool last = it->second.empty();
        if (last) left.erase(it);
        if (b.backend.sequences[id].forgotten != 0) {
          left.erase(id);
        } else if (rng() % 60 == 0 && !last) {
          left.erase(id);
          b.backend.error(id, "internal", "x");
        } else {
          b.backend.tokens(id, part, last ? wire::FINISH_STOP : wire::FINISH_NONE);
        }
      }
    }
    for (const auto& client : b.clients) client->drain();
    b.settle();
    b.until([&] { return b.gateway->in_flight() == b.gateway->list().size(); });
    for (uint64_t id = 1; id <= b.backend.sequences.size(); ++id)
      if (b.backend.sequences[id].listener != nullptr) b.backend.finish(id, wire::FINISH_LENGTH);
    b.check_idle();
  }
}
