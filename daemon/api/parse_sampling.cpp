#include "api/parse_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "api/errors.h"
#include "api/fields.h"

namespace weft::api {
namespace {

constexpr double kRepetitionMin = 1e-6;
constexpr double kRepetitionMax = 1e6;
// Less than the likeliest token of any vocabulary has; a smaller number would be 0, "not set", on
// its way to the worker.
constexpr double kTopPMin = 1e-6;
constexpr double kBiasMax = 100.0;
constexpr size_t kSaltMax = 1024;
constexpr size_t kRequestIdMax = 128;
constexpr int64_t kDeadlineMaxMs = 24 * 3600 * 1000;
constexpr size_t kStopBytesMax = 4096;
constexpr size_t kStopTokensMax = 1024;
constexpr double kRejectTopP = 0.95;

Check refuse_unless(bool fine, const char* param, const char* rule) {
  if (fine) return std::nullopt;
  return bad_request(param,
                     fmt::format("invalid {}: only {} is allowed for this model", param, rule));
}

Check apply_policy(const Fields& fields, const ApiPolicy& policy, SamplingParams* out) {
  if (policy.sampling_policy == SamplingPolicy::kIgnore) {
    out->temperature = policy.default_temperature;
    out->top_p = policy.default_top_p;
    out->presence_penalty = 0;
    out->frequency_penalty = 0;
  }
  if (policy.sampling_policy != SamplingPolicy::kReject) return std::nullopt;
  WEFT_API_TRY(refuse_unless(out->temperature <= 1.0, "temperature", "0 to 1"));
  WEFT_API_TRY(
      refuse_unless(fields.get("top_p") == nullptr || out->top_p == kRejectTopP, "top_p", "0.95"));
  WEFT_API_TRY(refuse_unless(out->presence_penalty == 0, "presence_penalty", "0"));
  WEFT_API_TRY(refuse_unless(out->frequency_penalty == 0, "frequency_penalty", "0"));
  return refuse_unless(out->n == 1, "n", "1");
}

Check parse_logit_bias(const JsonValue& body, const ApiPolicy& policy, SamplingParams* out) {
  const JsonValue* bias = nullptr;
  WEFT_API_TRY(Fields(body).object("logit_bias", &bias));
  if (bias == nullptr) return std::nullopt;
  for (const auto& [key, value] : bias->members()) {
    int32_t id = -1;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool known = code == std::errc() && end == key.data() + key.size() && id >= 0 &&
                       (policy.vocab_size == 0 || id < policy.vocab_size);
    if (!known)
      return bad_request("logit_bias",
                         fmt::format("logit_bias key \"{}\" is not a token id of the model", key));
    const auto amount = value.as_double();
    if (!amount || *amount < -kBiasMax || *amount > kBiasMax)
      return bad_request(
          "logit_bias",
          fmt::format("logit_bias of token {} must be a number from -100 to 100", id));
    out->logit_bias[id] = static_cast<float>(*amount);
  }
  return std::nullopt;
}

Check parse_stop_token_ids(const Fields& fields, const ApiPolicy& policy, SamplingParams* out) {
  const JsonValue* ids = nullptr;
  WEFT_API_TRY(fields.array("stop_token_ids", &ids));
  if (ids == nullptr) return std::nullopt;
  if (ids->items().size() > kStopTokensMax)
    return bad_request("stop_token_ids",
                       fmt::format("stop_token_ids may have at most {} entries", kStopTokensMax));
  for (const JsonValue& item : ids->items()) {
    int32_t id = 0;
    WEFT_API_TRY(parse_token_id(item, policy, "stop_token_ids", &id));
    out->stop_token_ids.push_back(id);
  }
  return std::nullopt;
}

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

}  // namespace

Check parse_sampling(const JsonValue& body, const ApiPolicy& policy, SamplingParams* out) {
  const Fields fields(body);
  out->temperature = policy.default_temperature;
  out->top_p = policy.default_top_p;
  WEFT_API_TRY(fields.number("temperature", {.min = 0, .max = 2}, &out->temperature));
  WEFT_API_TRY(fields.number("top_p", {.min = 0, .max = 1, .above_min = true}, &out->top_p));
  WEFT_API_TRY(fields.integer("top_k", -1, std::numeric_limits<int32_t>::max(), &out->top_k));
  out->top_k = std::max<int64_t>(out->top_k, 0);  // -1 and 0 both mean off
  WEFT_API_TRY(fields.number("min_p", {.min = 0, .max = 1}, &out->min_p));
  WEFT_API_TRY(fields.number("presence_penalty", {.min = -2, .max = 2}, &out->presence_penalty));
  WEFT_API_TRY(fields.number("frequency_penalty", {.min = -2, .max = 2}, &out->frequency_penalty));
  out->top_p = std::max(out->top_p, kTopPMin);
  WEFT_API_TRY(fields.number("repetition_penalty", {.min = kRepetitionMin, .max = kRepetitionMax},
                             &out->repetition_penalty));
  int64_t n = 1;
  WEFT_API_TRY(fields.integer("n", 1, policy.n_max, &n));
  out->n = static_cast<int32_t>(n);
  WEFT_API_TRY(fields.integer("seed", std::numeric_limits<int64_t>::min(), INT64_MAX, &out->seed));
  WEFT_API_TRY(apply_policy(fields, policy, out));
  WEFT_API_TRY(parse_logit_bias(body, policy, out));
  WEFT_API_TRY(parse_stop_token_ids(fields, policy, out));
  WEFT_API_TRY(fields.boolean("ignore_eos", &out->ignore_eos));
  return fields.integer("min_tokens", 0, policy.max_tokens_limit, &out->min_tokens);
}

Check parse_stop(const JsonValue& body, const ApiPolicy& policy, std::vector<std::string>* stop,
                 bool* include_stop) {
  const Fields fields(body);
  const auto add = [&](const JsonValue& item) -> Check {
    if (!item.is_string() || item.as_string().empty() || item.as_string().size() > kStopBytesMax)
      return bad_request(
          "stop",
          fmt::format("stop must be a non-empty string of at most {} bytes, or an array of them",
                      kStopBytesMax));
    stop->push_back(item.as_string());
    return std::nullopt;
  };
  const JsonValue* value = fields.get("stop");
  if (value != nullptr && value->is_array()) {
    if (value->items().size() > policy.stop_strings_max)
      return bad_request("stop", fmt::format("stop may have at most {} strings, not {}",
                                             policy.stop_strings_max, value->items().size()));
    for (const JsonValue& item : value->items()) WEFT_API_TRY(add(item));
  } else if (value != nullptr) {
    WEFT_API_TRY(add(*value));
  }
  return fields.boolean("include_stop_str_in_output", include_stop);
}

Check parse_stream(const JsonValue& body, StreamOptions* out) {
  const Fields fields(body);
  WEFT_API_TRY(fields.boolean("stream", &out->stream));
  const JsonValue* options = nullptr;
  WEFT_API_TRY(fields.object("stream_options", &options));
  if (options == nullptr) return std::nullopt;
  if (!out->stream)
    return bad_request("stream_options", "stream_options is only allowed with \"stream\": true");
  const Fields inner(*options, "stream_options");
  WEFT_API_TRY(inner.boolean("include_usage", &out->include_usage));
  return inner.boolean("continuous_usage_stats", &out->continuous_usage);
}

template <class Request>
Check parse_extras(const JsonValue& body, Request* out) {
  const auto read_priority = [&](const Fields& from) -> Check {
    int64_t priority = out->priority;
    WEFT_API_TRY(from.integer("priority", std::numeric_limits<int32_t>::min(),
                              std::numeric_limits<int32_t>::max(), &priority));
    out->priority = static_cast<int32_t>(priority);
    return std::nullopt;
  };
  const auto read_salt = [&](const Fields& from) -> Check {
    if (from.get("cache_salt") == nullptr) return std::nullopt;
    WEFT_API_TRY(from.string("cache_salt", kSaltMax, &out->cache_salt));
    if (out->cache_salt.empty())
      return bad_request(from.param("cache_salt"), "cache_salt must not be empty");
    return std::nullopt;
  };
  const Fields fields(body);
  const JsonValue* nvext = nullptr;
  WEFT_API_TRY(fields.object("nvext", &nvext));
  if (nvext != nullptr) {
    const Fields extension(*nvext, "nvext");
    const JsonValue* hints = nullptr;
    WEFT_API_TRY(read_salt(extension));
    WEFT_API_TRY(extension.object("agent_hints", &hints));
    if (hints != nullptr) WEFT_API_TRY(read_priority(Fields(*hints, "nvext.agent_hints")));
  }
  WEFT_API_TRY(read_priority(fields));
  WEFT_API_TRY(read_salt(fields));
  WEFT_API_TRY(fields.integer("deadline_ms", 1, kDeadlineMaxMs, &out->deadline_ms));
  WEFT_API_TRY(fields.string("request_id", kRequestIdMax, &out->request_id));
  if (!is_printable(out->request_id))
    return bad_request("request_id", "request_id must be printable ASCII without spaces");
  WEFT_API_TRY(fields.boolean("return_token_ids", &out->return_token_ids));
  return fields.boolean("return_tokens_as_token_ids", &out->return_tokens_as_token_ids);
}
template Check parse_extras<ChatRequest>(const JsonValue&, ChatRequest*);
template Check parse_extras<CompletionRequest>(const JsonValue&, CompletionRequest*);

Check parse_model(const JsonValue& body, const ApiPolicy& policy, std::string* out) {
  const JsonValue* model = Fields(body).get("model");
  if (model == nullptr) {
    if (policy.model_required)
      return bad_request("model", "model is required; GET /v1/models lists the models");
    if (!policy.models.empty()) *out = policy.models.front();
    return std::nullopt;
  }
  if (!model->is_string())
    return bad_request("model", fmt::format("model must be a string, not {}", kind_name(*model)));
  const auto& served = policy.models;
  if (!served.empty() &&
      std::find(served.begin(), served.end(), model->as_string()) == served.end())
    return model_not_found(model->as_string());
  *out = model->as_string();
  return std::nullopt;
}

Check parse_token_id(const JsonValue& value, const ApiPolicy& policy, const std::string& param,
                     int32_t* out) {
  const auto id = value.as_int();
  const int64_t limit =
      policy.vocab_size > 0 ? policy.vocab_size : std::numeric_limits<int32_t>::max();
  if (!id || *id < 0 || *id >= limit)
    return bad_request(param, fmt::format("{} must hold token ids from 0 to {}", param, limit - 1));
  *out = static_cast<int32_t>(*id);
  return std::nullopt;
}

}  // namespace weft::api
