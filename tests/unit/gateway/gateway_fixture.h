// A Gateway without sockets and without a worker: requests enter through the router with a
// FakeClient as their connection, sequences end up in a FakeBackend that the test plays by hand.
// Everything runs on the test's thread except preparation, which is awaited by turning the loop.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <uv.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "api/errors.h"
#include "gateway/gateway.h"

namespace weft::test {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// One client connection with one request.
class FakeClient final : public http::ExchangeSink {
 public:
  FakeClient() { exchange->sink = this; }
  ~FakeClient() override { exchange->sink = nullptr; }
  FakeClient(const FakeClient&) = delete;
  FakeClient& operator=(const FakeClient&) = delete;

  void send_response(int s, http::Headers h, std::string b) override {
    answer(s, std::move(h), std::move(b));
  }
  void send_error(const http::HttpError& e, http::Headers h) override {
    answer(e.status, std::move(h), "dropped: " + e.message);
  }
  void begin_stream(int s, http::Headers h) override {
    ++answers;
    status = s;
    headers = std::move(h);
    streaming = true;
  }
  bool write_stream(std::string_view bytes) override {
    CHECK_FALSE(ended);
    body += bytes;
    ++writes;
    return accepts;
  }
  void end_stream() override { ended = true; }
  void abort_exchange() override { aborted = true; }
  size_t stream_buffered() const override { return 0; }

  void disconnect() { exchange->disconnect(); }
  void drain() {
    accepts = true;
    if (exchange->on_drain) {
      const auto fn = exchange->on_drain;
      fn();
    }
  }
  bool done() const { return ended; }
  std::string header(std::string_view name) const {
    const std::string* value = headers.get(name);
    return value == nullptr ? "" : *value;
  }
  Json json() const { return Json::parse(body); }

  // Events of the stream so far, in order: JSON, or the string "[DONE]". Comments are counted
  // apart.
  std::vector<Json> events() const {
    std::vector<Json> out;
    for (const std::string& block : blocks()) {
      if (block.rfind("data: ", 0) != 0) continue;
      const std::string data = block.substr(6);
      out.push_back(data == "[DONE]" ? Json(data) : Json::parse(data));
    }
    return out;
  }
  size_t comments() const {
    size_t n = 0;
    for (const std::string& block : blocks()) n += block.rfind(":", 0) == 0;
    return n;
  }

  const std::shared_ptr<http::Exchange> exchange = std::make_shared<http::Exchange>();
  int status = 0;
  int answers = 0;
  int writes = 0;
  http::Headers headers;
  std::string body;
  bool accepts = true;
  bool streaming = false, ended = false, aborted = false;

 private:
  std::vector<std::string> blocks() const {
    std::vector<std::string> out;
    size_t at = 0;
    for (size_t end = body.find("\n\n"); end != std::string::npos; end = body.find("\n\n", at)) {
      out.push_back(body.substr(at, end - at));
      at = end + 2;
    }
    CHECK(at == body.size());  // events are never cut
    return out;
  }
  void answer(int s, http::Headers h, std::string b) {
    ++answers;
    status = s;
    headers = std::move(h);
    body = std::move(b);
    ended = true;
  }
};

class FakeBackend final : public gateway::Backend {
 public:
  struct Sequence {
    wire::Generate generate;
    gateway::GenerationListener* listener = nullptr;
    int forgotten = 0;
    bool over = false;
    std::string why;
  };

  FakeBackend() {
    info_.deployment = "micro";
    info_.state = gateway::ReplicaState::kReady;
    info_.ready.set_vocab_size(2048);
    info_.ready.set_max_context(4096);
    info_.ready.set_accepts_images(true);
  }
  gateway::ReplicaInfo& mutable_info() { return info_; }
  const gateway::ReplicaInfo& info() const override { return info_; }
  bool making_progress() const override { return moving; }
  Result<uint64_t> submit(wire::Generate generate, gateway::GenerationListener* listener) override {
    if (info_.state != gateway::ReplicaState::kReady || (refuse_from != 0 && next_ >= refuse_from))
      return make_error(ErrorCode::kUnavailable, "model micro is {}",
                        gateway::to_string(info_.state));
    const uint64_t id = next_++;
    generate.set_id(id);
    Sequence s;
    s.generate = std::move(generate);
    s.listener = listener;
    sequences[id] = std::move(s);
    return id;
  }
  void cancel(uint64_t, std::string_view) override {
    FAIL("the gateway ends sequences with forget");
  }
  void forget(uint64_t id, std::string_view reason) override {
    REQUIRE(sequences.count(id) == 1);
    Sequence& s = sequences[id];
    ++s.forgotten;
    s.why = std::string(reason);
    CHECK_FALSE(s.over);  // nothing to free any more
    s.listener = nullptr;
  }

  // What the worker says. Sequences that were forgotten hear nothing, as in the real one.
  void say(uint64_t id, const wire::SequenceTokens& update) {
    REQUIRE(sequences.count(id) == 1);
    Sequence& s = sequences[id];
    gateway::GenerationListener* listener = s.listener;
    if (update.finish() != wire::FINISH_NONE) {
      s.over = true;
      s.listener = nullptr;
    }
    if (listener != nullptr) listener->on_tokens(update);
  }
  void admit(uint64_t id, uint32_t cached = 0, uint32_t host = 0) {
    wire::SequenceTokens u;
    u.set_id(id);
    u.set_admitted(true);
    u.set_cached_tokens(cached);
    u.set_cached_host_tokens(host);
    say(id, u);
  }
  void tokens(uint64_t id, const Ids& ids, wire::Finish finish = wire::FINISH_NONE,
              bool logprobs = false) {
    wire::SequenceTokens u;
    u.set_id(id);
    u.mutable_tokens()->Add(ids.begin(), ids.end());
    for (int32_t token : ids) {
      if (!logprobs) break;
      u.add_logprobs(-0.25f * static_cast<float>(token % 7));
      u.add_alternatives()->add_ids(token);
      u.mutable_alternatives(u.alternatives_size() - 1)->add_logprobs(-0.5f);
    }
    u.set_finish(finish);
    say(id, u);
  }
  void finish(uint64_t id, wire::Finish finish) { tokens(id, {}, finish); }
  void error(uint64_t id, const std::string& code, const std::string& text) {
    wire::SequenceTokens u;
    u.set_id(id);
    u.set_finish(wire::FINISH_ERROR);
    u.set_error_code(code);
    u.set_error(text);
    say(id, u);
  }
  // The replica dies.
  void lose() {
    info_.state = gateway::ReplicaState::kRestarting;
    for (auto& [id, s] : sequences) {
      gateway::GenerationListener* listener = std::exchange(s.listener, nullptr);
      if (!s.over && listener != nullptr) {
        s.over = true;
        listener->on_lost(Error(ErrorCode::kUnavailable, "the worker of model micro was lost"));
      }
    }
  }

  std::map<uint64_t, Sequence> sequences;
  uint64_t refuse_from = 0;
  bool moving = true;

 private:
  gateway::ReplicaInfo info_;
  uint64_t next_ = 1;
};

inline const std::shared_ptr<gateway::ServedModel>& micro_model() {
  static const std::shared_ptr<gateway::ServedModel> model = [] {
    config::DeploymentConfig d;
    d.name = "micro";
    d.model = WEFT_SOURCE_DIR "/models/micro-k3";
    d.served_names = {"micro", "alias"};
    auto loaded = gateway::load_served_model(d);
    REQUIRE(loaded.ok());
    return std::move(loaded).value();
  }();
  return model;
}

inline Ids encode(std::string_view text) { return micro_model()->tokenizer->encode(text, true); }

inline std::string spell(std::string_view body) {  // "[close think]" -> markers
  std::string out;
  for (char c : body) {
    if (c == '{')
      out += "<|open|>";
    else if (c == '}')
      out += "<|sep|>";
    else if (c == '~')
      out += "<|close|>";
    else
      out += c;
  }
  return out;
}

// A whole assistant turn, after the prompt opened the think channel.
inline Ids turn(const std::string& reasoning, const std::string& content) {
  return encode(reasoning + spell("~think}{response}") + content + spell("~response}~message}") +
                "<|end_of_msg|>");
}

class GatewayBench {
 public:
  explicit GatewayBench(config::Config config = {}, bool with_tokenizer = true)
      : config_(std::move(config)) {
    loop = std::move(Loop::make()).value();
    auto model = std::make_shared<gateway::ServedModel>(*micro_model());
    if (!with_tokenizer) {
      model->tokenizer = nullptr;
      model->format = nullptr;
      model->no_text_reason = model->no_chat_reason = "no tokenizer files";
    }
    model->backend = &backend;
    gateway = std::make_unique<gateway::Gateway>(
        *loop, config_, std::vector<std::shared_ptr<const gateway::ServedModel>>{model});
    gateway->add_routes(router);
  }
  ~GatewayBench() {
    gateway.reset();
    loop.reset();
    clients.clear();
  }

  // The requests to come belong to this tenant.
  std::string tenant;
  uint32_t tenant_weight = 1;

  FakeClient& send(const std::string& method, const std::string& path, std::string body = {}) {
    clients.push_back(std::make_unique<FakeClient>());
    http::Request request;
    request.method = method;
    request.path = request.target = path;
    request.body = std::move(body);
    request.peer.address = "test";
    request.tenant = tenant;
    request.tenant_weight = tenant_weight;
    router.handle(std::move(request), http::Responder(clients.back()->exchange));
    return *clients.back();
  }
  FakeClient& post(const std::string& path, const Json& body) {
    return send("POST", path, body.dump());
  }
  static Json chat_body(Json extra = Json::object()) {
    Json body = Json::parse(R"({"model":"micro","messages":[{"role":"user","content":"Hello!"}]})");
    body.update(extra);
    return body;
  }
  FakeClient& chat(Json extra = Json::object()) {
    return post("/v1/chat/completions", chat_body(std::move(extra)));
  }
  FakeClient& complete(Json extra) {
    Json body = Json::parse(R"({"model":"micro"})");
    body.update(extra);
    return post("/v1/completions", body);
  }

  // Turns the loop until `condition` holds. Only a hang reaches the limit.
  void until(const std::function<bool()>& condition) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      uv_run(loop->raw(), UV_RUN_ONCE);
    }
  }
  void wait_sequences(size_t n) {
    until([&] { return backend.sequences.size() >= n; });
    REQUIRE(backend.sequences.size() == n);
  }
  void settle() {  // everything posted so far has run
    bool ran = false;
    loop->post([&ran] { ran = true; });
    until([&] { return ran; });
  }
  // Value of a metric line, by its full name with labels; -1 when absent.
  double metric(const std::string& name) {
    const std::string text = send("GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
  double model_metric(const std::string& name) { return metric(name + "{model_name=\"micro\"}"); }
  double finished(const std::string& reason) {
    return metric("vllm:request_success_total{finished_reason=\"" + reason +
                  "\",model_name=\"micro\"}");
  }
  // Where prompt tokens came from; the parts must make up the whole.
  double from(const std::string& source) {
    return metric("vllm:prompt_tokens_by_source_total{model_name=\"micro\",source=\"" + source +
                  "\"}");
  }
  void check_tokens_add_up() {
    const double local = from("local_cache_hit"), host = from("external_kv_transfer");
    const double all = model_metric("vllm:prompt_tokens_total");
    CHECK(local + host + from("local_compute") == all);
    CHECK(model_metric("vllm:prefix_cache_queries_total") == all);
    CHECK(model_metric("vllm:prefix_cache_hits_total") == local);
    CHECK(model_metric("vllm:external_prefix_cache_queries_total") == all - local);
    CHECK(model_metric("vllm:external_prefix_cache_hits_total") == host);
    CHECK(model_metric("vllm:prompt_tokens_cached_total") == local + host);
    CHECK(model_metric("vllm:request_prompt_tokens_sum") == all);
    CHECK(model_metric("vllm:request_prefill_kv_computed_tokens_sum") == from("local_compute"));
  }
  // What must hold whenever nothing runs.
  void check_idle() {
    settle();
    CHECK(gateway->in_flight() == 0);
    CHECK(gateway->list().empty());
    for (const auto& [id, s] : backend.sequences) {
      CAPTURE(id);
      CHECK(s.listener == nullptr);
      CHECK(s.forgotten == (s.over ? 0 : 1));
    }
    CHECK(model_metric("weft_stream_unterminated_total") == 0);
    CHECK(metric("weft_requests_inflight") == 0);
    check_tokens_add_up();
    for (const auto& client : clients) {
      CHECK_FALSE(client->aborted);
      CHECK(client->answers <= 1);
      if (client->exchange->disconnected) continue;
      CHECK(client->answers == 1);
      CHECK(client->ended);
      if (client->streaming) CHECK(client->events().back() == "[DONE]");
    }
  }

  config::Config config_;
  FakeBackend backend;
  http::Router router;
  std::unique_ptr<Loop> loop;
  std::unique_ptr<gateway::Gateway> gateway;
  std::deque<std::unique_ptr<FakeClient>> clients;
};

}  // namespace weft::test
