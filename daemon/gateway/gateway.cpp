#include "gateway/gateway.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "api/errors.h"
#include "api/models_list.h"
#include "base/log.h"
#include "gateway/chat_generation.h"
#include "gateway/completion_generation.h"

namespace weft::gateway {
namespace {

constexpr size_t kFastQueueMax = 4096;
constexpr size_t kRequestIdMax = 128;
constexpr uint64_t kLoopStuckMs = 5'000;

std::string random_hex() {
  unsigned char bytes[12];
  WEFT_CHECK(::getrandom(bytes, sizeof(bytes), 0) == static_cast<ssize_t>(sizeof(bytes)));
  std::string out;
  for (unsigned char b : bytes) out += fmt::format("{:02x}", b);
  return out;
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x21 && c <= 0x7e; });
}

std::string request_id_of(const http::Request& request) {
  const std::string* given = request.headers.get("x-request-id");
  if (given != nullptr && !given->empty() && given->size() <= kRequestIdMax && is_printable(*given))
    return *given;
  return "req-" + random_hex();
}

// The fields of a request body that concern its whole life. A header wins over the body.
template <class ApiRequest>
void take_request_fields(const ApiRequest& body, const http::Request& request,
                         GenerationContext* out) {
  out->deadline_ms = body.deadline_ms;
  if (!body.request_id.empty() && request.headers.get("x-request-id") == nullptr)
    out->request_id = body.request_id;
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<const api::ApiPolicy> make_policy(
    const config::ApiConfig& c, const std::vector<std::shared_ptr<const ServedModel>>& models) {
  auto policy = std::make_shared<api::ApiPolicy>();
  for (const auto& model : models)
    policy->models.insert(policy->models.end(), model->names.begin(), model->names.end());
  policy->sampling_policy = c.sampling_policy == "ignore"   ? api::SamplingPolicy::kIgnore
                            : c.sampling_policy == "reject" ? api::SamplingPolicy::kReject
                                                            : api::SamplingPolicy::kHonour;
  policy->usage_excludes_opener = c.usage_excludes_opener;
  policy->usage_moonshot_fields = c.usage_moonshot_fields;
  policy->usage_in_final_choice = c.usage_in_final_choice;
  policy->reasoning_alias = c.reasoning_alias;
  return policy;
}

ReplicaFacts facts_of(const ReplicaInfo& info, const config::ApiConfig& c) {
  ReplicaFacts f;
  f.ready = info.state == ReplicaState::kReady;
  f.not_ready_reason =
      fmt::format("model {} is {}{}{}; try again later", info.deployment, to_string(info.state),
                  info.reason.empty() ? "" : ": ", info.reason);
  f.vocab_size = static_cast<int32_t>(info.ready.vocab_size());
  f.max_context = info.ready.max_context();
  f.images = info.ready.accepts_images();
  f.max_tokens_default = c.max_tokens_default;
  f.raw_special_tokens = c.raw_special_tokens;
  return f;
}

}  // namespace

Gateway::Gateway(Loop& loop, const config::Config& config,
                 std::vector<std::shared_ptr<const ServedModel>> models)
    : loop_(loop),
      config_(config),
      models_(std::move(models)),
      policy_(make_policy(config.api, models_)),
      fast_(loop, {.name = "fast", .threads = 2, .queue_max = kFastQueueMax}) {
  for (const auto& model : models_) metrics_.model(model->names.front());
}

Gateway::~Gateway() {
  *alive_ = false;
  generations_.clear();
}

std::shared_ptr<PrepareInput> Gateway::snapshot(http::Request& request) const {
  auto input = std::make_shared<PrepareInput>();
  input->body = std::move(request.body);
  input->policy = policy_;
  for (const auto& model : models_)
    for (const std::string& name : model->names)
      input->models[name] = {model, facts_of(model->backend->info(), config_.api)};
  return input;
}

GenerationContext Gateway::context_for(const http::Request& request,
                                       std::shared_ptr<const ServedModel> model,
                                       const char* endpoint, const char* id_prefix) {
  GenerationContext c;
  c.loop = &loop_;
  c.metrics = &metrics_;
  c.model = std::move(model);
  c.policy = policy_;
  c.id = id_prefix + random_hex();
  c.request_id = request_id_of(request);
  c.endpoint = endpoint;
  c.peer = request.peer.address;
  c.tenant = request.tenant;
  c.tenant_weight = request.tenant_weight;
  c.created = unix_time();
  c.arrived_ms = loop_.now_ms();
  c.keepalive_ms = static_cast<uint64_t>(config_.http.keepalive_comment_ms);
  c.on_done = [this](const std::string& id) { generation_done(id); };
  return c;
}

// Prepares on the fast lane, then starts on the loop. While it is prepared the request counts as in
// flight.
template <class Prepared, class Prepare, class Start>
void Gateway::handle_generation(http::Request request, http::Responder responder, Prepare prepare,
                                Start start) {
  ++requests_total_;
  if (draining_)
    return reply_error(responder, api::unavailable("weftd is shutting down; try again later"),
                       request_id_of(request));
  auto input = snapshot(request);
  const uint64_t arrived = loop_.now_ms();
  // Shared only between this call and the closure below: the lane may refuse it, and then we still
  // have to answer.
  auto carried = std::make_shared<std::pair<http::Request, http::Responder>>(std::move(request),
                                                                             std::move(responder));
  ++preparing_;
  const bool taken = fast_.compute(
      [input, prepare] { return prepare(*input); },
      [this, carried, start, arrived, alive = alive_](api::Parsed<Prepared> prepared) {
        if (!*alive) return;
        --preparing_;
        auto& [req, res] = *carried;
        if (!res.alive()) {
          metrics_.disconnect();
        } else if (!prepared.ok()) {
          reply_error(res, prepared.error(), request_id_of(req));
        } else if (draining_) {
          reply_error(res, api::unavailable("weftd is shutting down; try again later"));
        } else {
          start(req, std::move(res), std::move(prepared.value()), arrived);
        }
        notify_if_idle();
      });
  if (taken) return;
  --preparing_;
  reply_error(carried->second, api::overloaded(), request_id_of(carried->first));
}

template <class Answer>
void Gateway::handle_on_lane(http::Request request, http::Responder responder, Answer answer) {
  auto input = snapshot(request);
  auto carried = std::make_shared<std::pair<http::Request, http::Responder>>(std::move(request),
                                                                             std::move(responder));
  const bool taken = fast_.compute([input, answer] { return answer(*input); },
                                   [this, carried, alive = alive_](api::Parsed<std::string> body) {
                                     if (!*alive) return;
                                     auto& [req, res] = *carried;
                                     if (body.ok())
                                       reply(res, 200, std::move(body.value()));
                                     else
                                       reply_error(res, body.error(), request_id_of(req));
                                   });
  if (!taken) reply_error(carried->second, api::overloaded());
}

void Gateway::adopt(std::unique_ptr<Generation> generation) {
  Generation& g = *generation;
  generations_[g.id()] = std::move(generation);
  metrics_.set_inflight(static_cast<double>(generations_.size()));
  g.start();
}

void Gateway::generation_done(const std::string& id) {
  // We are inside one of its calls: destroy it from the loop.
  const auto found = generations_.find(id);
  if (found == generations_.end()) return;
  auto last = std::shared_ptr<Generation>(std::move(found->second));
  generations_.erase(found);
  metrics_.set_inflight(static_cast<double>(generations_.size()));
  loop_.post([this, last, alive = alive_] {
    if (*alive) notify_if_idle();
  });
}

void Gateway::notify_if_idle() {
  if (draining_ && in_flight() == 0 && on_idle_) on_idle_();
}

void Gateway::abort_all(const api::ApiError& error, const char* origin) {
  std::vector<std::string> ids;
  for (const auto& [id, g] : generations_) ids.push_back(id);
  for (const std::string& id : ids)
    if (const auto found = generations_.find(id); found != generations_.end())
      found->second->abort(error, origin);
}

bool Gateway::cancel(const std::string& id) {
  const auto found = generations_.find(id);
  if (found == generations_.end()) return false;
  api::ApiError error = api::unavailable("the request was cancelled by the operator");
  error.status = 499;  // not 5xx: clients would try again
  error.code = "cancelled";
  found->second->abort(error, "admin");
  return true;
}

std::vector<GenerationView> Gateway::list() const {
  std::vector<GenerationView> out;
  for (const auto& [id, g] : generations_) out.push_back(g->view());
  return out;
}

void Gateway::reply(http::Responder& responder, int status, std::string body, const char* type) {
  metrics_.http_request(status);
  responder.send(status, {{"content-type", type}}, std::move(body));
}

void Gateway::reply_error(http::Responder& responder, const api::ApiError& error,
                          const std::string& request_id) {
  metrics_.http_request(error.status);
  http::Headers headers{{"content-type", "application/json"}};
  if (!request_id.empty()) headers.set("x-request-id", request_id);
  if (const auto after = api::retry_after_s(error))
    headers.set("retry-after", std::to_string(*after));
  responder.send(error.status, std::move(headers), api::error_json(error));
}

void Gateway::handle_models(http::Request request, http::Responder responder) {
  std::vector<api::ModelEntry> entries;
  for (const auto& model : models_) {
    for (const std::string& name : model->names) {
      api::ModelEntry e;
      e.id = name;
      e.deployment = model->deployment;
      e.state = to_string(model->backend->info().state);
      e.root = model->names.front();
      e.created = model->created;
      e.max_model_len = model->backend->info().ready.max_context();
      e.supports_image_in =
          model->images.has_value() && model->backend->info().ready.accepts_images();
      e.supports_reasoning = model->format != nullptr;
      entries.push_back(std::move(e));
    }
  }
  const auto wanted = request.params.find("model");
  if (wanted == request.params.end()) return reply(responder, 200, api::models_list_json(entries));
  for (const api::ModelEntry& e : entries)
    if (e.id == wanted->second) return reply(responder, 200, api::model_json(e));
  reply_error(responder, api::model_not_found(wanted->second));
}

std::string Gateway::unhealthy_reason() const {
  if (loop_.health().last_lag_ms > kLoopStuckMs)
    return fmt::format("the event loop lags {} ms", loop_.health().last_lag_ms);
  for (const auto& model : models_) {
    const ReplicaInfo& info = model->backend->info();
    if (info.state != ReplicaState::kReady)
      return fmt::format("model {} is {}{}{}", model->names.front(), to_string(info.state),
                         info.reason.empty() ? "" : ": ", info.reason);
    if (!model->backend->making_progress())
      return fmt::format("model {} has work but makes no progress", model->names.front());
  }
  return {};
}

void Gateway::handle_health(http::Responder responder, bool with_drain) {
  std::string reason = unhealthy_reason();
  if (with_drain && draining_) reason = "draining";
  std::string body = R"({"status":")" + std::string(reason.empty() ? "ok" : "unhealthy") + '"';
  if (!reason.empty()) {
    body += R"(,"reason":")";
    append_json_escaped(body, reason);
    body += '"';
  }
  reply(responder, reason.empty() ? 200 : 503, body + "}");
}

std::string Gateway::render_metrics() {
  for (const auto& model : models_) {
    const ReplicaInfo& info = model->backend->info();
    metrics_.update(model->names.front(), info);
    const auto& all = config_.deployments;
    const auto d = std::find_if(all.begin(), all.end(),
                                [&](const auto& c) { return c.name == model->deployment; });
    if (d != all.end() && info.ready.groups_size() > 0)
      metrics_.cache_config(model->names.front(), info, *d);
  }
  metrics_.set_loop_lag(static_cast<double>(loop_.health().last_lag_ms) / 1000.0);
  metrics_.set_inflight(static_cast<double>(generations_.size()));
  return metrics_.render();
}

void Gateway::add_routes(http::Router& router) {
  router.add("POST", "/v1/chat/completions",
             [this](http::Request request, http::Responder responder) {
               handle_generation<PreparedChat>(
                   std::move(request), std::move(responder), prepare_chat,
                   [this](const http::Request& req, http::Responder res, PreparedChat prepared,
                          uint64_t arrived) {
                     auto context = context_for(req, prepared.model, "chat", "chatcmpl-");
                     context.arrived_ms = arrived;
                     take_request_fields(prepared.request, req, &context);
                     adopt(std::make_unique<ChatGeneration>(std::move(context), std::move(res),
                                                            std::move(prepared),
                                                            config_.api.promote_orphan_response));
                   });
             });
  router.add("POST", "/v1/completions", [this](http::Request request, http::Responder responder) {
    handle_generation<PreparedCompletion>(
        std::move(request), std::move(responder), prepare_completion,
        [this](const http::Request& req, http::Responder res, PreparedCompletion prepared,
               uint64_t arrived) {
          auto context = context_for(req, prepared.model, "completions", "cmpl-");
          context.arrived_ms = arrived;
          take_request_fields(prepared.request, req, &context);
          adopt(std::make_unique<CompletionGeneration>(std::move(context), std::move(res),
                                                       std::move(prepared)));
        });
  });
  for (const char* prefix : {"", "/v1"}) {
    router.add("POST", fmt::format("{}/tokenize", prefix),
               [this](http::Request q, http::Responder r) {
                 handle_on_lane(std::move(q), std::move(r), answer_tokenize);
               });
    router.add("POST", fmt::format("{}/detokenize", prefix),
               [this](http::Request q, http::Responder r) {
                 handle_on_lane(std::move(q), std::move(r), answer_detokenize);
               });
  }
  const auto models = [this](http::Request q, http::Responder r) {
    handle_models(std::move(q), std::move(r));
  };
  router.add("GET", "/v1/models", models);
  router.add("GET", "/v1/models/{model*}", models);
  for (const char* path : {"/health", "/ping"})
    router.add("GET", path,
               [this](http::Request, http::Responder r) { handle_health(std::move(r), false); });
  router.add("GET", "/ready",
             [this](http::Request, http::Responder r) { handle_health(std::move(r), true); });
  router.add("GET", "/live",
             [this](http::Request, http::Responder r) { reply(r, 200, R"({"status":"ok"})"); });
  router.add("GET", "/version", [this](http::Request, http::Responder r) {
    reply(r, 200, R"({"version":")" WEFT_VERSION R"("})");
  });
  router.add("GET", "/metrics", [this](http::Request, http::Responder r) {
    reply(r, 200, render_metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
}

}  // namespace weft::gateway
