#include "api/parse_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "api/errors.h"
#include "api/fields.h"
#include "api/options.h"
#include "api/parse_messages.h"
#include "api/parse_sampling.h"
#include "api/parse_tools.h"

namespace weft::api {
namespace {

constexpr JsonLimits kBodyLimits = {.depth_max = 128, .bytes_max = 256u << 20};
// Twice the tokens of the longest context. A parsed value costs more than a hundred bytes, so that
// without a bound a body full of "[]," would take fifty times its size.
constexpr size_t kBodyValuesMax = size_t{1} << 21;

// Commas and opening brackets outside of strings: never fewer than the values behind the first.
size_t values_at_most(std::string_view bytes) {
  size_t count = 0;
  bool in_string = false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (in_string && c == '\\')
      ++i;
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == ',' || c == '[' || c == '{'))
      ++count;
  }
  return count;
}

// Fields that would change the answer if they were ignored.
Check refuse_foreign_fields(const Fields& fields) {
  for (const char* key : {"functions", "function_call"})
    if (fields.get(key) != nullptr)
      return bad_request(key, fmt::format("{} is not supported; use tools and tool_choice", key));
  for (const char* key : {"audio", "prediction", "web_search_options"})
    if (fields.get(key) != nullptr)
      return bad_request(key, fmt::format("{} is not supported; leave it out", key));
  const JsonValue* modalities = nullptr;
  WEFT_API_TRY(fields.array("modalities", &modalities));
  if (modalities != nullptr)
    for (const JsonValue& item : modalities->items())
      if (!item.is_string() || item.as_string() != "text")
        return bad_request("modalities", "only the modality \"text\" is supported");
  return std::nullopt;
}

Check parse_tool_fields(const JsonValue& body, ToolNames* names, ChatRequest* out) {
  const JsonValue* tools = nullptr;
  WEFT_API_TRY(Fields(body).array("tools", &tools));
  if (tools != nullptr && !tools->items().empty()) {
    WEFT_API_TRY(parse_tool_list(*tools, "tools", ToolScope::kGlobal, names, &out->tools));
    out->tools_json = *tools;
  }
  return parse_tool_choice(body, *names, out);
}

Check parse_thinking(const JsonValue& body, const ApiPolicy& policy, ChatRequest* out) {
  const auto resolved = resolve_thinking(body, policy.strict_effort);
  if (const auto* error = std::get_if<ApiError>(&resolved)) return *error;
  const auto& choice = std::get<ThinkingChoice>(resolved);
  out->thinking = choice.thinking;
  out->effort = choice.effort;
  return Fields(body).boolean("include_reasoning", &out->include_reasoning);
}

Check parse_limits(const Fields& fields, const ApiPolicy& policy, SamplingParams* out) {
  std::optional<int64_t> total, legacy;
  WEFT_API_TRY(fields.integer("max_completion_tokens", 1, INT64_MAX, &total));
  WEFT_API_TRY(fields.integer("max_tokens", 1, INT64_MAX, &legacy));
  if (!total) total = legacy;
  if (total) out->max_tokens = std::min(*total, policy.max_tokens_limit);
  bool logprobs = false;
  std::optional<int64_t> top;
  WEFT_API_TRY(fields.boolean("logprobs", &logprobs));
  WEFT_API_TRY(fields.integer("top_logprobs", 0, policy.logprobs_max, &top));
  if (top && !logprobs) return bad_request("top_logprobs", "top_logprobs needs \"logprobs\": true");
  out->logprobs = logprobs ? static_cast<int32_t>(top.value_or(0)) : -1;
  return std::nullopt;
}

Check parse_into(const JsonValue& body, const ApiPolicy& policy, ChatRequest* out) {
  if (!body.is_object())
    return bad_request("", fmt::format("the body must be a JSON object, not {}", kind_name(body)));
  const Fields fields(body);
  ToolNames names;
  WEFT_API_TRY(parse_model(body, policy, &out->model));
  WEFT_API_TRY(parse_messages(body, policy, &names, &out->messages));
  WEFT_API_TRY(parse_tool_fields(body, &names, out));
  WEFT_API_TRY(parse_response_format(body, out));
  const JsonValue* outputs = nullptr;
  WEFT_API_TRY(fields.object("structured_outputs", &outputs));
  if (outputs != nullptr) out->structured_outputs = *outputs;
  WEFT_API_TRY(parse_thinking(body, policy, out));
  WEFT_API_TRY(parse_sampling(body, policy, &out->sampling));
  WEFT_API_TRY(parse_limits(fields, policy, &out->sampling));
  WEFT_API_TRY(parse_stop(body, policy, &out->stop, &out->include_stop_in_output));
  WEFT_API_TRY(parse_stream(body, &out->stream));
  WEFT_API_TRY(parse_extras(body, out));
  return refuse_foreign_fields(fields);
}

}  // namespace

Parsed<ChatRequest> parse_chat_request(const JsonValue& body, const ApiPolicy& policy) {
  ChatRequest request;
  WEFT_API_TRY(parse_into(body, policy, &request));
  return request;
}

Parsed<JsonValue> parse_body(std::string_view bytes) {
  if (bytes.size() > kBodyValuesMax && values_at_most(bytes) > kBodyValuesMax)
    return bad_request("", fmt::format("the body holds more than {} JSON values", kBodyValuesMax));
  auto body = parse_json(bytes, kBodyLimits);
  if (!body.ok()) return bad_request("", body.error().message);
  if (!body->is_object())
    return bad_request("", fmt::format("the body must be a JSON object, not {}", kind_name(*body)));
  return std::move(body).value();
}

std::optional<ApiError> unsupported_reason(const ChatRequest& request,
                                           const EngineFeatures& features) {
  if (!features.n_choices && request.sampling.n > 1)
    return unsupported("n",
                       "this server generates one choice per request; send n = 1 or leave it out");
  if (!features.grammar) {
    if (request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed)
      return unsupported("tool_choice",
                         "this server cannot force tool calls; use \"auto\" or \"none\"");
    if (request.response_format != ResponseFormat::kText)
      return unsupported("response_format",
                         "this server cannot constrain the output; use {\"type\": \"text\"}");
    if (!request.structured_outputs.is_null())
      return unsupported("structured_outputs",
                         "this server cannot constrain the output; leave it out");
  }
  for (const char* key : {"grammar", "structural_tag"})
    if (const JsonValue* value = request.structured_outputs.find(key); value && !value->is_null())
      return unsupported(fmt::format("structured_outputs.{}", key),
                         "use structured_outputs with json, json_object, choice or regex");
  if (!features.images)
    for (size_t m = 0; m < request.messages.size(); ++m)
      for (size_t p = 0; p < request.messages[m].content.size(); ++p)
        if (std::holds_alternative<ImagePart>(request.messages[m].content[p]))
          return unsupported(fmt::format("messages[{}].content[{}].image_url", m, p),
                             "the served model does not accept images");
  return std::nullopt;
}

}  // namespace weft::api
