// The control API: who may do what, and what it answers.
#include "admin/admin.h"

#include <unistd.h>

#include "fabric/replica.h"
#include "temp_dir.h"
#include "unit/gateway/gateway_fixture.h"

using namespace weft;        // NOLINT test file
using namespace weft::test;  // NOLINT test file

namespace {

struct Bench : GatewayBench {
  Bench() {
    reaper = std::move(ChildReaper::make(*loop)).value();
    fabric::ReplicaOptions options;
    options.deployment.name = "micro";
    options.deployment.model = "/models/micro";
    options.deployment.served_names = {"micro", "alias"};
    replica = std::make_unique<fabric::Replica>(*loop, *reaper, options, fabric::ReplicaEvents{});
    config_.daemon.plugin_dir = dir.path();
    config_.daemon.trust_user_plugins = true;
    admin::AdminActions actions;
    actions.facts = [this] {
      return admin::DaemonFacts{"ready", {"127.0.0.1:8000"}, loop->now_ms()};
    };
    actions.drain = [this](int64_t ms) { drains.push_back(ms); };
    actions.stop = [this] { ++stops; };
    control = std::make_unique<admin::Admin>(
        *loop, config_, *gateway, std::vector<fabric::Replica*>{replica.get()}, std::move(actions));
    control->add_routes(control_router);
  }
  ~Bench() {
    control.reset();
    replica.reset();
    reaper.reset();
  }
  FakeClient& ask(const std::string& method, const std::string& path, std::string body = {},
                  std::optional<uid_t> uid = ::geteuid(), bool is_unix = true) {
    clients.push_back(std::make_unique<FakeClient>());
    http::Request request;
    request.method = method;
    request.path = request.target = path;
    request.body = std::move(body);
    request.peer.is_unix = is_unix;
    request.peer.uid = uid;
    control_router.handle(std::move(request), http::Responder(clients.back()->exchange));
    return *clients.back();
  }

  TempDir dir;
  std::unique_ptr<ChildReaper> reaper;
  std::unique_ptr<fabric::Replica> replica;
  std::unique_ptr<admin::Admin> control;
  http::Router control_router;
  std::vector<int64_t> drains;
  int stops = 0;
};

constexpr uid_t kStranger = 54'321;

}  // namespace

TEST_CASE("the control API is for the control socket, and changes are for administrators") {
  Bench b;
  CHECK(b.ask("GET", "/v1/status", {}, std::nullopt, false).status == 403);
  CHECK(b.ask("POST", "/v1/stop", {}, 0, false).status == 403);
  CHECK(b.ask("GET", "/v1/status", {}, kStranger).status == 200);
  CHECK(b.ask("GET", "/v1/requests", {}, kStranger).status == 200);
  CHECK(b.ask("POST", "/v1/config/check", R"({"text":""})", kStranger).status == 200);
  for (const std::optional<uid_t> uid : {std::optional<uid_t>(kStranger), std::optional<uid_t>()}) {
    CHECK(b.ask("POST", "/v1/stop", {}, uid).status == 403);
    CHECK(b.ask("POST", "/v1/drain", {}, uid).status == 403);
    CHECK(b.ask("POST", "/v1/audit", {}, uid).status == 403);
    CHECK(b.ask("DELETE", "/v1/requests/x", {}, uid).status == 403);
  }
  CHECK(b.stops == 0);
  CHECK(b.drains.empty());
  CHECK(b.ask("POST", "/v1/stop", {}, 0).status == 202);
  CHECK(b.ask("POST", "/v1/stop").status == 202);
  CHECK(b.stops == 2);
}

TEST_CASE("status tells about the daemon and every deployment") {
  Bench b;
  const Json status = b.ask("GET", "/v1/status").json();
  CHECK(status["state"] == "ready");
  CHECK(status["health"] == "ok");
  CHECK(status["pid"] == ::getpid());
  CHECK(status["listen"] == Json({"127.0.0.1:8000"}));
  CHECK(status["requests_inflight"] == 0);
  REQUIRE(status["deployments"].size() == 1);
  const Json& d = status["deployments"][0];
  CHECK(d["name"] == "micro");
  CHECK(d["state"] == "starting");
  CHECK(d["served_names"] == Json({"micro", "alias"}));
  CHECK(d["workers"][0]["pid"] == 0);
  CHECK(d["workers"][0]["state"] == "gone");
}

TEST_CASE("requests are listed and cancelled by id") {
  Bench b;
  FakeClient& client = b.chat({{"stream", true}});
  b.wait_sequences(1);
  b.backend.tokens(1, encode("thinking"));
  const Json list = b.ask("GET", "/v1/requests").json()["requests"];
  REQUIRE(list.size() == 1);
  CHECK(list[0]["state"] == "decode");
  CHECK(list[0]["stream"] == true);
  CHECK(list[0]["peer"] == "test");
  CHECK(list[0]["output_tokens"] == encode("thinking").size());
  const std::string id = list[0]["id"];
  CHECK(b.ask("DELETE", "/v1/requests/none").status == 404);
  CHECK(b.ask("DELETE", "/v1/requests/" + id).json()["cancelled"] == true);
  CHECK(client.done());
  CHECK(b.ask("DELETE", "/v1/requests/" + id).status == 404);
  b.check_idle();
}

TEST_CASE("drain takes an optional deadline") {
  Bench b;
  CHECK(b.ask("POST", "/v1/drain").status == 202);
  CHECK(b.ask("POST", "/v1/drain", "{}").status == 202);
  CHECK(b.ask("POST", "/v1/drain", R"({"deadline_ms":5})").status == 202);
  CHECK(b.drains == std::vector<int64_t>{-1, -1, 5});
  for (const char* bad :
       {"{", "[]x", R"({"deadline_ms":-1})", R"({"deadline_ms":"5"})", R"({"deadline_ms":1.5})"}) {
    CAPTURE(bad);
    CHECK(b.ask("POST", "/v1/drain", bad).status == 400);
  }
  CHECK(b.drains.size() == 3);
}

TEST_CASE("a configuration is checked without being used") {
  Bench b;
  const auto check = [&](const std::string& toml) {
    return b.ask("POST", "/v1/config/check", Json{{"text", toml}}.dump()).json();
  };
  CHECK(check("[[deployment]]\nname = \"a\"\nmodel = \"/m\"\n")["ok"] == true);
  const Json bad = check("[daemon]\nno_such_key = 1\n");
  CHECK(bad["ok"] == false);
  CHECK(bad["errors"][0]["line"] == 2);
  CHECK(b.ask("POST", "/v1/config/check", "text").status == 400);
  CHECK(b.ask("POST", "/v1/config/check", R"({"text":5})").status == 400);
}

TEST_CASE("plugins of a directory are listed off the loop") {
  Bench b;
  FakeClient& none = b.ask("GET", "/v1/plugins");
  b.until([&] { return none.done(); });
  CHECK(none.status == 200);
  CHECK(none.json()["directory"] == b.dir.path());
  CHECK(none.json()["plugins"].empty());
  b.config_.daemon.plugin_dir = b.dir.file("missing");
  FakeClient& missing = b.ask("GET", "/v1/plugins");
  b.until([&] { return missing.done(); });
  CHECK(missing.status == 200);
  CHECK(missing.body.find("missing") != std::string::npos);
}

TEST_CASE("an audit of workers that are not ready, of unknown models, and asked wrongly") {
  Bench b;
  for (const char* body : {"", "{}", R"({"model":"alias","drop_cache":true})"}) {
    CAPTURE(body);
    const FakeClient& client = b.ask("POST", "/v1/audit", body);
    REQUIRE(client.done());
    const Json answer = client.json();
    CHECK(answer["ok"] == false);
    REQUIRE(answer["deployments"].size() == 1);
    const Json& d = answer["deployments"][0];
    CHECK(d["name"] == "micro");
    CHECK(d["answered"] == false);
    CHECK(d["problem"] == "model micro is starting; nothing to audit");
  }
  CHECK(b.ask("POST", "/v1/audit", R"({"model":"other"})").status == 404);
  for (const char* bad : {"[]", "{", R"({"model":1})", R"({"drop_cache":"yes"})"}) {
    CAPTURE(bad);
    CHECK(b.ask("POST", "/v1/audit", bad).status == 400);
  }
}

TEST_CASE("the books of a worker are believed only as far as the figures agree") {
  wire::AuditReport r;
  r.set_ok(true);
  wire::AuditGroup& g = *r.add_groups();
  g.set_name("rows");
  g.set_total(10);
  g.set_free(7);
  g.set_cached(3);
  CHECK(admin::audit_problem(r, false).empty());
  CHECK(admin::audit_problem(r, true) ==
        "rows: 3 of 10 units are not free although nothing runs and the cache was dropped");
  r.set_waiting(1);
  CHECK(admin::audit_problem(r, true).empty());  // the waiting one may hold them
  g.set_cached(0);
  g.set_active(3);
  CHECK(admin::audit_problem(r, true).empty());
  r.set_waiting(0);
  CHECK(admin::audit_problem(r, false) == "rows: 3 units are in use although nothing runs");
  g.set_active(2);
  CHECK(admin::audit_problem(r, false) == "rows: 7 free, 2 active and 0 cached units are not 10");
  r.set_ok(false);
  CHECK(admin::audit_problem(r, false) == "the worker's books do not balance");
  r.set_problem("rows: unit 4 counted twice");
  CHECK(admin::audit_problem(r, false) == "rows: unit 4 counted twice");
}
