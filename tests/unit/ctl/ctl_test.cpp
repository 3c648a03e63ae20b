#include "ctl/ctl.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ctl/chat_stream.h"
#include "ctl/format.h"
#include "http/router.h"
#include "http/server.h"
#include "http/sse.h"
#include "loop_thread.h"

using namespace weft;       // NOLINT test file
using namespace weft::ctl;  // NOLINT test file

namespace {

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

Ran run(const std::vector<std::string>& arguments, const std::string& input = "",
        bool terminal = false) {
  std::istringstream in(input);
  std::ostringstream out;
  std::ostringstream err;
  Console console{in, out, err};
  console.in_is_terminal = console.out_is_terminal = terminal;
  Ran r;
  r.code = run_weftctl(arguments, console);
  r.out = out.str();
  r.err = err.str();
  return r;
}

bool has(const std::string& text, const std::string& needle) {
  return text.find(needle) != std::string::npos;
}

// A stand-in for weftd: fixed JSON per route, on a Unix socket in a directory of its own.
struct FakeDaemon {
  FakeDaemon() {
    char path[] = "/tmp/weft-ctl-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    dir = path;
    socket = dir + "/weft.sock";
    for (const char* method : {"GET", "POST", "DELETE"}) {
      router.add(method, "/{rest*}", [this](http::Request r, http::Responder out) {
        answer(std::move(r), std::move(out));
      });
    }
    t.call([&] {
      server = std::make_unique<http::Server>(t.loop(), http::Limits(), router.handler());
      REQUIRE(server->listen("unix:" + socket).ok());
    });
  }
  ~FakeDaemon() {
    t.call([&] {
      server.reset();
      open.clear();
    });
    std::filesystem::remove_all(dir);
  }

  void answer(http::Request r, http::Responder out) {
    const std::string key = r.method + " " + r.path;
    requests.push_back(key + " " + r.body);
    if (const auto e = events.find(key); e != events.end() && has(r.body, "\"stream\":true")) {
      http::SseWriter w(out.begin_stream(200, http::sse_headers()));
      w.comment("hello");
      for (const std::string& data : e->second) {
        if (data != "[HOLD]") w.event(data);
      }
      if (e->second.back() == "[HOLD]") {  // the answer never ends; the user's Ctrl-C does it
        interrupted = true;
        w.stream().on_disconnect([this] { ++left; });
        open.push_back(std::make_unique<http::SseWriter>(std::move(w)));
        return;
      }
      w.end();
      return;
    }
    const auto found = replies.find(key);
    if (found == replies.end()) return out.send_error({404, "not_found", "nothing at " + r.path});
    out.send_json(found->second.first, found->second.second);
  }
  void reply(const std::string& key, int status, const std::string& body) {
    t.call([&] { replies[key] = {status, body}; });
  }
  void stream(const std::string& key, std::vector<std::string> data) {
    t.call([&] { events[key] = std::move(data); });
  }
  std::vector<std::string> seen() {
    return t.call([&] { return requests; });
  }
  Ran ctl(std::vector<std::string> arguments, const std::string& input = "",
          bool terminal = false) {
    arguments.insert(arguments.begin(), {"--socket", socket});
    return run(arguments, input, terminal);
  }

  std::string dir;
  std::string socket;
  http::Router router;
  test::LoopThread t;
  std::unique_ptr<http::Server> server;
  // Loop thread:
  std::map<std::string, std::pair<int, std::string>> replies;
  std::map<std::string, std::vector<std::string>> events;
  std::vector<std::string> requests;
  std::vector<std::unique_ptr<http::SseWriter>> open;
  int left = 0;
  std::atomic<bool> interrupted{false};
};

constexpr const char* kStatus =
    R"({"version":"0.1.0","pid":77,"uptime_s":3725,"state":"ready","listen":["127.0.0.1:8000","unix:/s"],)"
    R"("deployments":[{"name":"micro","model":"micro-k3","state":"ready","reason":"","progress":{"phase":"","done":0,"total":0},)"
    R"("workers":[{"pid":78,"state":"ready","restarts":2,"uptime_s":5}],"running":3,"waiting":1,)"
    R"("groups":[{"name":"mla","units_used":10,"units_total":100}],"kernels":"avx2","vocab_size":512,"max_context":4096},)"
    R"({"name":"big","model":"k3","state":"loading","reason":"reading weights","progress":{"phase":"weights","done":25,"total":100},)"
    R"("workers":[],"running":0,"waiting":0,"groups":[],"max_context":0}],"requests_total":12,"requests_inflight":3})";

std::string chunk(const std::string& delta, const std::string& finish = "null") {
  return R"({"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":)" + delta +
         ",\"finish_reason\":" + finish + "}]}";
}

const std::vector<std::string>& good_answer() {
  static const std::vector<std::string> kEvents = {
      chunk(R"({"role":"assistant"})"),
      chunk(R"({"reasoning_content":"Let me "})"),
      chunk(R"({"reasoning_content":"think."})"),
      chunk(R"({"content":"Hel"})"),
      chunk(R"({"content":"lo\u001b[31m"})"),
      chunk(
          R"({"tool_calls":[{"index":0,"id":"t1","type":"function","function":{"name":"look","arguments":""}}]})"),
      chunk(R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]})"),
      chunk("{}", "\"tool_calls\""),
      R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7,"total_tokens":16}})",
      "[DONE]"};
  return kEvents;
}

}  // namespace

TEST_CASE("status prints tables, JSON, and says by its exit code whether weftd is ready") {
  FakeDaemon d;
  d.reply("GET /v1/status", 200, kStatus);
  const Ran table = d.ctl({"status"});
  CHECK(table.code == kOk);
  CHECK(has(table.out,
            "weftd 0.1.0: ready, pid 77, up 1h 2m\nlistening on 127.0.0.1:8000, unix:/s\n"));
  CHECK(has(table.out, "requests: 3 running, 12 in all\n"));
  CHECK(has(table.out,
            "DEPLOYMENT  MODEL     STATE                 RUNNING  WAITING  CONTEXT  WORKERS\n"));
  CHECK(has(table.out,
            "micro       micro-k3  ready                 3        1        4096     78 ready (2 "
            "restarts)\n"));
  CHECK(
      has(table.out, "big         k3        loading: weights 25%  0        0        0        -\n"));
  CHECK(has(table.out, "micro: cache mla: 10 of 100 units used\n"));
  CHECK(has(table.out, "big: reading weights\n"));
  CHECK(table.err.empty());
  const Ran json = d.ctl({"status", "--json"});
  CHECK(json.out == std::string(kStatus) + "\n");
  CHECK(d.ctl({"--json", "status"}).out == json.out);
  d.reply("GET /v1/status", 200, R"({"state":"loading"})");
  CHECK(d.ctl({"status"}).code == kNotReady);
  CHECK(d.ctl({"status", "--json"}).code == kNotReady);
}

TEST_CASE("plugins, models and requests are listed") {
  FakeDaemon d;
  d.reply(
      "GET /v1/plugins", 200,
      R"({"directory":"/p","plugins":[{"name":"kernels_cpu","version":"1","path":"/p/k.so","state":"ready","reason":"",)"
      R"("interfaces":["a/1","b/1"]},{"name":"","version":"","path":"/p/x.so","state":"refused","reason":"no\nnote"}]})");
  const Ran plugins = d.ctl({"plugins"});
  CHECK(plugins.code == kOk);
  CHECK(plugins.out ==
        "plugins in /p\nNAME         VERSION  STATE    INTERFACES  REASON\n"
        "kernels_cpu  1        ready    a/1 b/1     -\n/p/x.so      -        refused  -           "
        "no note\n");
  d.reply("GET /v1/models", 200,
          R"({"models":[{"id":"m","deployment":"d","state":"ready","max_context":8}]})");
  CHECK(d.ctl({"models"}).out ==
        "MODEL  DEPLOYMENT  STATE  CONTEXT\nm      d           ready  8\n");
  d.reply("GET /v1/models", 200, R"({"object":"list","data":[{"id":"m","max_model_len":9}]})");
  CHECK(d.ctl({"models"}).out ==
        "MODEL  DEPLOYMENT  STATE  CONTEXT\nm      -           -      9\n");
  d.reply(
      "GET /v1/requests", 200,
      R"({"requests":[{"id":"r1","model":"m","endpoint":"chat","state":"decode","prompt_tokens":5,"output_tokens":6,)"
      R"("age_ms":61000,"peer":"unix","stream":true}]})");
  const std::string expected =
      "ID  MODEL  ENDPOINT       STATE   PROMPT  OUTPUT  AGE    PEER\n"
      "r1  m      chat (stream)  decode  5       6       1m 1s  unix\n";
  CHECK(d.ctl({"requests"}).out == expected);
  CHECK(d.ctl({"requests", "list"}).out == expected);
}

TEST_CASE("cancel, drain and stop send what they should") {
  FakeDaemon d;
  d.reply("DELETE /v1/requests/a/b c", 200, R"({"cancelled":true})");
  d.reply("POST /v1/drain", 202, R"({"state":"draining"})");
  d.reply("POST /v1/stop", 202, R"({"state":"stopping"})");
  CHECK(d.ctl({"requests", "cancel", "a/b c"}).code == kOk);
  const Ran missing = d.ctl({"requests", "cancel", "nope"});
  CHECK(missing.code == kNotReady);
  CHECK(has(missing.err, "nothing at /v1/requests/nope"));
  CHECK(d.ctl({"drain"}).code == kOk);
  CHECK(d.ctl({"drain", "--deadline-ms", "500"}).code == kOk);
  CHECK(d.ctl({"drain", "--json"}).out == "{\"state\":\"draining\"}\n");
  CHECK(d.ctl({"stop"}).code == kOk);
  const auto seen = d.seen();
  CHECK(seen[0] == "DELETE /v1/requests/a/b c ");
  CHECK(seen[2] == "POST /v1/drain {}");
  CHECK(seen[3] == "POST /v1/drain {\"deadline_ms\":500}");
  CHECK(seen[5] == "POST /v1/stop {}");
}

TEST_CASE("failures have their exit codes") {
  FakeDaemon d;
  d.reply("POST /v1/stop", 403, R"({"error":{"message":"only root may","code":"forbidden"}})");
  const Ran denied = d.ctl({"stop"});
  CHECK(denied.code == kDenied);
  CHECK(denied.err == "weftctl: only root may\n");
  d.reply("GET /v1/plugins", 500, "not json");
  CHECK(d.ctl({"plugins"}).code == kFailure);
  CHECK(has(d.ctl({"plugins"}).err, "status 500"));
  d.reply("GET /v1/plugins", 503, R"({"error":{"message":"busy","code":"busy"}})");
  CHECK(d.ctl({"plugins"}).code == kNotReady);
  d.reply("GET /v1/plugins", 200, "<html>");
  CHECK(has(d.ctl({"plugins"}).err, "not JSON"));
  const Ran absent = run({"--socket", d.dir + "/absent.sock", "status"});
  CHECK(absent.code == kUnreachable);
  CHECK(has(absent.err, "is weftd running?"));
  if (geteuid() != 0) {
    std::filesystem::permissions(d.socket, std::filesystem::perms::none);
    CHECK(d.ctl({"status"}).code == kDenied);
  }
  CHECK(failure_of(Error(ErrorCode::kPermission, "x")).exit_code == kDenied);
  CHECK(failure_of(Error(ErrorCode::kTimeout, "x")).exit_code == kFailure);
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{},
                                             {"nonsense"},
                                             {"status", "extra"},
                                             {"requests", "cancel"},
                                             {"config"},
                                             {"drain", "--deadline-ms", "-1"},
                                             {"chat", "--effort", "huge"},
                                             {"completion", "zsh"},
                                             {"--socket"},
                                             {"status", "--bad"}}) {
    const Ran r = run(wrong);
    CHECK(r.code == kUsage);
    CHECK(!r.err.empty());
  }
}

TEST_CASE("a conversation on a terminal shows thinking dimmed, calls, numbers, and remembers") {
  FakeDaemon d;
  d.reply("GET /v1/models", 200, R"({"object":"list","data":[{"id":"micro"}]})");
  d.stream("POST /v1/chat/completions", good_answer());
  const Ran r = d.ctl({"chat", "--system", "Be brief", "--effort", "low", "--max-tokens", "50",
                       "--temperature", "0"},
                      "first\n\nsecond\n/reset\nthird\n/exit\nnever\n", true);
  CHECK(r.code == kOk);
  CHECK(has(r.out, "> \x1b[2mLet me \x1b[0m\x1b[2mthink.\x1b[0m\n\nHello?[31m\n"));
  CHECK(has(r.out, "tool call t1: look({\"a\":1})\n"));
  CHECK(has(r.out, "[9 tokens in, 7 out; TTFT "));
  const auto seen = d.seen();
  REQUIRE(seen.size() == 4);  // models, three questions
  CHECK(
      seen[1] ==
      "POST /v1/chat/completions "
      "{\"model\":\"micro\",\"messages\":[{\"role\":\"system\",\"content\":"
      "\"Be brief\"},{\"role\":\"user\",\"content\":\"first\"}],\"stream\":true,\"stream_options\":"
      "{\"include_usage\":true},\"reasoning_effort\":\"low\",\"max_tokens\":50,\"temperature\":0}");
  CHECK(has(seen[2],
            "{\"role\":\"assistant\",\"content\":\"Hello\\u001b[31m\",\"reasoning_content\":\"Let "
            "me think.\","
            "\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":\"look\","
            "\"arguments\":"
            "\"{\\\"a\\\":1}\"}}]},{\"role\":\"user\",\"content\":\"second\"}]"));
  CHECK(!has(seen[3], "second"));
  CHECK(has(seen[3], "Be brief"));
}

TEST_CASE("without a terminal the output is the answer alone") {
  FakeDaemon d;
  d.stream("POST /v1/chat/completions", good_answer());
  const Ran once = d.ctl({"chat", "--model", "m", "--no-thinking", "-m", "hi"});
  CHECK(once.code == kOk);
  CHECK(has(once.out, "Hello\x1b[31m\n"));  // a file gets the bytes as they are
  CHECK(!has(once.out, "think"));
  CHECK(has(once.err, "Let me think."));
  CHECK(has(once.err, "TTFT"));
  CHECK(has(d.seen()[0], "\"thinking\":{\"type\":\"disabled\"}"));
  const Ran piped = d.ctl({"chat", "--model", "m"}, "line one\nline two\n");
  CHECK(piped.code == kOk);
  CHECK(has(d.seen()[1], "\"content\":\"line one\\nline two\\n\""));
  CHECK(d.ctl({"chat", "--model", "m"}, " \n").code == kUsage);
  CHECK(d.ctl({"chat", "--no-thinking", "--effort", "low", "-m", "x"}).code == kUsage);
  d.reply("POST /v1/chat/completions", 200, R"({"object":"chat.completion"})");
  CHECK(d.ctl({"chat", "--model", "m", "-m", "x", "--json"}).out ==
        "{\"object\":\"chat.completion\"}\n");
}

TEST_CASE("Ctrl-C ends the running answer, cancels it in weftd and keeps the conversation") {
  FakeDaemon d;
  d.stream("POST /v1/chat/completions", {chunk(R"({"content":"He"})"), "[HOLD]"});
  std::istringstream in("one\n/exit\n");
  std::ostringstream out;
  std::ostringstream err;
  Console console{in, out, err};
  console.in_is_terminal = console.out_is_terminal = true;
  console.interrupted = &d.interrupted;
  const int code = run_weftctl({"--socket", d.socket, "chat", "--model", "m"}, console);
  CHECK(code == kFailure);
  CHECK(has(out.str(), "[interrupted]"));
  CHECK(has(out.str(), "> "));
  CHECK(err.str().empty());
  while (d.t.call([&] { return d.left; }) == 0) std::this_thread::yield();
}

TEST_CASE("chat failures: no model, refused, an error event, a broken stream, nonsense") {
  FakeDaemon d;
  d.reply("GET /v1/models", 200, R"({"models":[{"id":"a","state":"loading"}]})");
  CHECK(d.ctl({"chat", "-m", "x"}).code == kNotReady);
  d.reply("POST /v1/chat/completions", 404, R"({"error":{"message":"no model m"}})");
  const Ran refused = d.ctl({"chat", "--model", "m", "-m", "x"});
  CHECK(refused.code == kNotReady);
  CHECK(refused.err == "weftctl: no model m\n");
  d.stream("POST /v1/chat/completions",
           {chunk(R"({"content":"He"})"), R"({"error":{"message":"the worker died"}})", "[DONE]"});
  const Ran died = d.ctl({"chat", "--model", "m", "-m", "x"});
  CHECK(died.code == kFailure);
  CHECK(has(died.out, "He"));
  CHECK(has(died.err, "the worker died"));
  d.stream("POST /v1/chat/completions", {chunk(R"({"content":"He"})")});
  CHECK(has(d.ctl({"chat", "--model", "m", "-m", "x"}).err, "broke off"));
  d.stream("POST /v1/chat/completions", {"{nonsense"});
  CHECK(has(d.ctl({"chat", "--model", "m", "-m", "x"}).err, "not JSON"));
  d.stream("POST /v1/chat/completions", {chunk(R"({"content":"He"})", "\"length\""), "[DONE]"});
  CHECK(has(d.ctl({"chat", "--model", "m", "-m", "x"}).err, "token limit"));
}

TEST_CASE("numbers of an answer come from its events and its usage") {
  ChatAnswer a(1'000'000, {});
  CHECK(a.event(chunk(R"({"role":"assistant","content":""})"), 1'050'000));
  CHECK(a.event(chunk(R"({"content":"x"})"), 1'120'000));
  CHECK(a.event(chunk(R"({"content":"y"})"), 1'220'000));
  CHECK(a.event(R"({"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":11}})", 1'300'000));
  CHECK(!a.event("[DONE]", 1'300'000));
  CHECK(a.done());
  CHECK(a.summary() == "4 tokens in, 11 out; TTFT 120 ms, ITL 10.0 ms, 100.0 tok/s");
  ChatAnswer none(0, {});
  CHECK(none.summary().empty());
}

TEST_CASE("config check asks weftd, and uses its own rules without one") {
  FakeDaemon d;
  const std::string file = d.dir + "/weft.toml";
  std::ofstream(file) << "[daemon]\nlog_levle = \"info\"\n";
  d.reply("POST /v1/config/check", 200,
          R"({"ok":false,"errors":[{"line":2,"column":3,"message":"from weftd","hint":"h"}]})");
  const Ran asked = d.ctl({"config", "check", file});
  CHECK(asked.code == kFailure);
  CHECK(asked.err == file + ":2:3: from weftd (h)\n");
  CHECK(has(d.seen()[0], "log_levle"));
  const std::string absent = d.dir + "/absent.sock";
  const Ran local = run({"--socket", absent, "config", "check", file});
  CHECK(local.code == kFailure);
  CHECK(has(local.err, file + ":2:"));
  CHECK(has(local.err, "log_levle"));
  const Ran json = run({"--socket", absent, "config", "check", file, "--json"});
  CHECK(json.code == kFailure);
  CHECK(has(json.out, "{\"ok\":false,\"errors\":[{\"line\":2,"));
  std::ofstream(file) << "[daemon]\nlog_level = \"info\"\n";
  CHECK(run({"--socket", absent, "config", "check", file}).out == file + ": ok\n");
  std::ofstream(file) << "# \xff\n";
  CHECK(d.ctl({"config", "check", file}).code == kFailure);
  CHECK(run({"config", "check", d.dir + "/none.toml"}).code == kNotReady);
  CHECK(run({"config", "check", d.dir}).code == kUsage);
}

TEST_CASE("version and completion need no daemon; help tells the exit codes") {
  CHECK(run({"version"}).out == "weftctl " WEFT_VERSION "\n");
  CHECK(run({"--version"}).out == "weftctl " WEFT_VERSION "\n");
  CHECK(run({"version", "--json"}).out == "{\"version\":\"" WEFT_VERSION "\"}\n");
  const std::string script = run({"completion", "bash"}).out;
  CHECK(has(script, "complete -F _weftctl weftctl"));
  CHECK(has(script, "= requests ]; then words=\"list cancel\""));
  CHECK(has(script,
            "words=\"status wait plugins models requests chat audit drain stop config plan version "
            "completion "));
  const Ran help = run({"--help"});
  CHECK(help.code == kOk);
  CHECK(has(help.out,
            "Exit codes: 0 ok, 1 failure, 2 wrong usage, 3 weftd not reachable, 4 not ready or not "
            "found"));
  CHECK(has(run({"requests", "cancel", "--help"}).out, "Usage: weftctl requests cancel ID"));
}

TEST_CASE("plan asks the worker beside weftctl") {
  const std::string model = std::string(WEFT_SOURCE_DIR) + "/models/micro-k3";
  const Ran table = run({"plan", model, "--plugin-dir", WEFT_PLUGIN_DIR, "--memory", "64MiB",
                         "--max-sequences", "3"});
  CAPTURE(table.err);
  REQUIRE(table.code == kOk);
  CHECK(has(table.out, "9 layers of 128"));
  CHECK(has(table.out, "routed experts"));
  CHECK(has(table.out, "of cache hold 3 sequences"));
  const Ran json = run({"plan", model, "--plugin-dir", WEFT_PLUGIN_DIR, "--json"});
  CHECK(has(json.out, "\"weight_bytes\":"));
  const Ran absent = run({"plan", "/nowhere", "--plugin-dir", WEFT_PLUGIN_DIR});
  CHECK(absent.code == kFailure);
  CHECK(has(absent.err, "/nowhere"));
  CHECK(run({"plan", model, "--memory", "much"}).code == kUsage);
  CHECK(run({"plan"}).code == kUsage);
}

TEST_CASE("audit prints tables and a verdict, and its exit code is the verdict") {
  FakeDaemon d;
  const auto answer = [&](const std::string& deployments, bool ok) {
    d.reply("POST /v1/audit", 200,
            std::string("{\"ok\":") + (ok ? "true" : "false") + ",\"deployments\":[" + deployments +
                "]}");
  };
  const std::string good =
      R"({"name":"micro","ok":true,"answered":true,"problem":"","running":1,"waiting":2,"host_bytes_used":3145728,)"
      R"("host_bytes_total":8388608,"groups":[{"name":"mla","total":100,"free":80,"active":15,"cached":5}]})";
  answer(good, true);
  const Ran ok = d.ctl({"audit"});
  CHECK(ok.code == kOk);
  CHECK(ok.out ==
        "micro: 1 running, 2 waiting, host memory 3 of 8 MiB\n"
        "GROUP  TOTAL  FREE  ACTIVE  CACHED\nmla    100    80    15      5\nmicro: ok\n");
  CHECK(has(d.ctl({"audit", "--json"}).out, "\"answered\":true"));
  CHECK(d.ctl({"audit", "micro", "--drop-cache"}).code == kOk);
  CHECK(d.seen().front() == R"(POST /v1/audit {"drop_cache":false})");
  CHECK(d.seen().back() == R"(POST /v1/audit {"drop_cache":true,"model":"micro"})");

  answer(R"({"name":"micro","ok":false,"answered":true,"problem":"mla: 3 units lost","groups":[]})",
         false);
  const Ran bad = d.ctl({"audit"});
  CHECK(bad.code == kFailure);
  CHECK(has(bad.out, "micro: NOT ok: mla: 3 units lost\n"));
  CHECK(d.ctl({"audit", "--json"}).code == kFailure);
  answer(good + R"(,{"name":"big","ok":false,"answered":false,"problem":"model big is loading"})",
         false);
  const Ran early = d.ctl({"audit"});
  CHECK(early.code == kNotReady);
  CHECK(has(early.out, "big: NOT ok: model big is loading\n"));
  d.reply("POST /v1/audit", 404,
          R"({"error":{"message":"there is no model x","code":"not_found"}})");
  CHECK(d.ctl({"audit", "x"}).code == kNotReady);
}

TEST_CASE("status tells of cached units, hits and requests that are stuck") {
  FakeDaemon d;
  d.reply(
      "GET /v1/status", 200,
      R"({"state":"ready","deployments":[{"name":"m","state":"ready","groups":[{"name":"mla","units_used":10,)"
      R"("units_cached":20,"units_total":100}],"cache":{"queries_tokens":200,"hits_local_tokens":90,"hits_host_tokens":60,)"
      R"("snapshots":4},"scheduler":{"name":"fcfs","swapped":2,"refused_plans_total":3,"stalled":1}}]})");
  const Ran status = d.ctl({"status"});
  CHECK(has(status.out, "m: cache mla: 10 of 100 units used, 20 cached\n"));
  CHECK(has(status.out, "m: 75% of the prompt tokens came from the cache, 4 snapshots\n"));
  CHECK(has(status.out, "m: 2 preempted requests wait in host memory\n"));
  CHECK(has(status.out, "m: 3 plans of scheduler fcfs were invalid\n"));
  CHECK(has(status.out, "m: 1 requests make no progress\n"));
}

TEST_CASE("config check reads the key file with the rights of who asks") {
  FakeDaemon d;
  d.reply("POST /v1/config/check", 200, R"({"ok":true,"errors":[]})");
  const std::string keys = d.dir + "/keys", config = d.dir + "/weft.toml";
  std::ofstream(config) << "[api]\nkey_file = \"" << keys << "\"\n";
  const Ran missing = d.ctl({"config", "check", config});
  CHECK(missing.code == kFailure);
  CHECK(has(missing.err, "cannot read the API key file"));
  std::ofstream(keys) << "sk-secret-1 acme 4\nsk-secret-2 acme 5\n";
  const Ran bad = d.ctl({"config", "check", config});
  CHECK(bad.code == kFailure);
  CHECK(has(bad.err, keys + ":2: tenant acme has the weight 5 here and 4 in line 1"));
  CHECK_FALSE(has(bad.err, "sk-secret"));
  const Ran json = d.ctl({"--json", "config", "check", config});
  CHECK(json.code == kFailure);
  CHECK(has(json.out, "\"ok\":false"));
  std::ofstream(keys) << "sk-secret-1 acme 4\n";
  CHECK(d.ctl({"config", "check", config}).code == kOk);
}

TEST_CASE("docs/weftctl.md has every command of the table with its role") {
  std::ifstream in(std::string(WEFT_SOURCE_DIR) + "/docs/weftctl.md");
  const std::string doc((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (const Command& c : commands()) {
    const size_t row = doc.find("| `" + std::string(c.name) + "` |");
    CAPTURE(c.name);
    REQUIRE(row != std::string::npos);
    const std::string line = doc.substr(row, doc.find('\n', row) - row);
    CHECK(has(line, "| " + std::string(c.role) + " |"));
    std::string usage(c.usage);
    for (size_t at = 0; (at = usage.find('|', at)) != std::string::npos; at += 2)
      usage.insert(at, "\\");
    if (!usage.empty()) CHECK(has(line, "`" + usage + "`"));
  }
  for (const char* row :
       {"| 0 | ok |", "| 1 | failure |", "| 2 | wrong usage |", "| 3 | weftd not reachable |",
        "| 4 | not ready, or not found |", "| 5 | permission denied |"}) {
    CHECK(has(doc, row));
  }
}

TEST_CASE("text for people: durations, percent, safe text") {
  CHECK(format_duration_s(59) == "59s");
  CHECK(format_duration_s(187) == "3m 7s");
  CHECK(format_duration_s(90061) == "1d 1h");
  CHECK(format_duration_ms(850) == "850ms");
  CHECK(format_percent(1, 3) == "33%");
  CHECK(format_percent(5, 0).empty());
  CHECK(terminal_safe("a\x1b[2J\tb\n\x7f\xc2\x9b\xffä") == "a?[2J\tb\n???ä");
  Table t({"A", "B"});
  t.add({"ä", "x"});
  CHECK(t.to_string() == "A  B\nä  x\n");
  CHECK(socket_address("/run/x") == "unix:/run/x");
  CHECK(socket_address("unix:/run/x") == "unix:/run/x");
  CHECK(socket_address("127.0.0.1:80") == "127.0.0.1:80");
  CHECK(socket_address("[::1]:80") == "[::1]:80");
  CHECK(socket_address("weft.sock") ==
        "unix:" + (std::filesystem::current_path() / "weft.sock").string());
}
