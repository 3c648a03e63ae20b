#include <fmt/format.h>

#include "api/errors.h"
#include "api/json_build.h"
#include "api/responses.h"
#include "api/wire_json.h"
#include "base/check.h"

namespace weft::api {
namespace {

JsonValue usage_value(const Usage& counted, const ApiPolicy& policy) {
  const Usage usage = reported_usage(counted, policy, true);
  return JsonValue::object(
      {{"input_tokens", JsonValue::integer(usage.prompt_tokens)},
       {"input_tokens_details",
        JsonValue::object({{"cached_tokens", JsonValue::integer(usage.cached_tokens)}})},
       {"output_tokens", JsonValue::integer(usage.completion_tokens)},
       {"output_tokens_details",
        JsonValue::object({{"reasoning_tokens", JsonValue::integer(usage.reasoning_tokens)}})},
       {"total_tokens", JsonValue::integer(usage.prompt_tokens + usage.completion_tokens)}});
}

JsonValue echoed_members(const JsonValue& body) {
  JsonValue echo = JsonValue::object();
  const auto add = [&](const char* key, JsonValue fallback) {
    const JsonValue* value = body.find(key);
    put(echo, key, value == nullptr || value->is_null() ? std::move(fallback) : *value);
  };
  for (const char* key : {"instructions", "max_output_tokens", "temperature", "top_p", "reasoning"})
    add(key, JsonValue::null());
  add("parallel_tool_calls", JsonValue::boolean(true));
  add("tool_choice", JsonValue::string("auto"));
  add("tools", JsonValue::array());
  add("text",
      JsonValue::object({{"format", JsonValue::object({{"type", JsonValue::string("text")}})}}));
  add("metadata", JsonValue::object());
  put(echo, "truncation", "disabled");
  put(echo, "previous_response_id", JsonValue::null());
  put(echo, "store", JsonValue::boolean(false));
  return echo;
}

}  // namespace

ResponsesWriter::ResponsesWriter(ResponseHead head, ApiPolicy policy, const JsonValue& body)
    : head_(std::move(head)), policy_(std::move(policy)), echo_(echoed_members(body)) {}

JsonValue ResponsesWriter::response_value(const char* status) const {
  JsonValue response = JsonValue::object();
  put(response, "id", head_.id);
  put(response, "object", "response");
  put(response, "created_at", JsonValue::integer(head_.created));
  put(response, "status", status);
  put(response, "error", error_);
  put(response, "incomplete_details", incomplete_);
  put(response, "model", head_.model);
  put(response, "output", output_);
  put(response, "usage", usage_);
  for (const auto& [key, value] : echo_.members()) put(response, key, value);
  return response;
}

JsonValue ResponsesWriter::event(std::string_view type) const {
  JsonValue value = JsonValue::object();
  put(value, "type", type);
  return value;
}
JsonValue ResponsesWriter::item_event(std::string_view type) const {
  JsonValue value = event(type);
  put(value, "output_index", JsonValue::integer(static_cast<int64_t>(output_.items().size())));
  put(value, "item_id", item_id_);
  return value;
}
JsonValue ResponsesWriter::part_event(std::string_view type) const {
  JsonValue value = item_event(type);
  put(value, "content_index", JsonValue::integer(0));
  return value;
}

void ResponsesWriter::emit(std::string* out, JsonValue value) {
  if (out == nullptr) return;
  put(value, "sequence_number", JsonValue::integer(sequence_++));
  *out += "event: ";
  *out += text_member(value, "type");
  *out += "\ndata: ";
  *out += dump_json(value);
  *out += "\n\n";
}

void ResponsesWriter::start(std::string* out) {
  if (out == nullptr) return;
  for (const char* type : {"response.created", "response.in_progress"}) {
    JsonValue value = event(type);
    put(value, "response", response_value("in_progress"));
    emit(out, std::move(value));
  }
}

JsonValue ResponsesWriter::part_value(bool empty) const {
  JsonValue part = JsonValue::object();
  put(part, "type", item_ == Item::kReasoning ? "reasoning_text" : "output_text");
  put(part, "text", empty ? std::string() : text_);
  if (item_ == Item::kMessage) put(part, "annotations", JsonValue::array());
  return part;
}

JsonValue ResponsesWriter::item_value(const char* status, bool empty) const {
  JsonValue item = JsonValue::object();
  put(item, "type",
      item_ == Item::kReasoning ? "reasoning"
      : item_ == Item::kMessage ? "message"
                                : "function_call");
  put(item, "id", item_id_);
  put(item, "status", status);
  if (item_ == Item::kCall) {
    put(item, "call_id", call_id_);
    put(item, "name", call_name_);
    put(item, "arguments", empty ? std::string() : text_);
    return item;
  }
  JsonValue content = JsonValue::array();
  if (!empty) content.items().push_back(part_value(false));
  if (item_ == Item::kReasoning)
    put(item, "summary", JsonValue::array());
  else
    put(item, "role", "assistant");
  put(item, "content", std::move(content));
  return item;
}

void ResponsesWriter::open(Item kind, const Delta& delta, std::string* out) {
  close("completed", out);
  item_ = kind;
  text_.clear();
  call_id_ = kind == Item::kCall ? delta.id : "";
  call_name_ = kind == Item::kCall ? delta.text : "";
  const char* prefix = kind == Item::kReasoning ? "rs" : kind == Item::kMessage ? "msg" : "fc";
  item_id_ = fmt::format("{}_{}_{}", prefix, head_.id, output_.items().size());
  if (out == nullptr) return;
  JsonValue added = event("response.output_item.added");
  put(added, "output_index", JsonValue::integer(static_cast<int64_t>(output_.items().size())));
  put(added, "item", item_value("in_progress", true));
  emit(out, std::move(added));
  if (kind == Item::kCall) return;
  JsonValue part = part_event("response.content_part.added");
  put(part, "part", part_value(true));
  emit(out, std::move(part));
}

void ResponsesWriter::close(const char* status, std::string* out) {
  if (item_ == Item::kNone) return;
  if (out != nullptr && item_ == Item::kCall) {
    JsonValue done = item_event("response.function_call_arguments.done");
    put(done, "name", call_name_);
    put(done, "arguments", text_);
    emit(out, std::move(done));
  } else if (out != nullptr) {
    JsonValue done = part_event(item_ == Item::kReasoning ? "response.reasoning_text.done"
                                                          : "response.output_text.done");
    put(done, "text", text_);
    emit(out, std::move(done));
    JsonValue part = part_event("response.content_part.done");
    put(part, "part", part_value(false));
    emit(out, std::move(part));
  }
  JsonValue item = item_value(status, false);
  if (out != nullptr) {
    JsonValue done = event("response.output_item.done");
    put(done, "output_index", JsonValue::integer(static_cast<int64_t>(output_.items().size())));
    put(done, "item", item);
    emit(out, std::move(done));
  }
  output_.items().push_back(std::move(item));
  item_ = Item::kNone;
}

void ResponsesWriter::delta(const Delta& delta, std::string* out) {
  const auto text_delta = [&](Item kind, const char* type) {
    if (item_ != kind) open(kind, delta, out);
    text_ += delta.text;
    if (out == nullptr) return;
    JsonValue value = kind == Item::kCall ? item_event(type) : part_event(type);
    put(value, "delta", delta.text);
    emit(out, std::move(value));
  };
  switch (delta.kind) {
    case Delta::Kind::kReasoning:
      return text_delta(Item::kReasoning, "response.reasoning_text.delta");
    case Delta::Kind::kContent:
      return text_delta(Item::kMessage, "response.output_text.delta");
    case Delta::Kind::kToolOpen:
      return open(Item::kCall, delta, out);
    case Delta::Kind::kToolArguments:
      WEFT_CHECK(item_ == Item::kCall);
      return text_delta(Item::kCall, "response.function_call_arguments.delta");
  }
}

void ResponsesWriter::finish(FinishReason reason, const StopReason&, const Usage& usage,
                             std::string* out) {
  const bool cut = reason == FinishReason::kLength || reason == FinishReason::kAbort;
  close(cut ? "incomplete" : "completed", out);
  usage_ = usage_value(usage, policy_);
  if (cut) incomplete_ = JsonValue::object({{"reason", JsonValue::string("max_output_tokens")}});
  response_ = response_value(cut ? "incomplete" : "completed");
  JsonValue value = event(cut ? "response.incomplete" : "response.completed");
  put(value, "response", response_);
  emit(out, std::move(value));
}

void ResponsesWriter::error(const ApiError& error, std::string* out) {
  close("incomplete", out);
  error_ =
      JsonValue::object({{"code", JsonValue::string(error.code.empty() ? error.type : error.code)},
                         {"message", JsonValue::string(error.message)}});
  response_ = response_value("failed");
  JsonValue value = event("response.failed");
  put(value, "response", response_);
  emit(out, std::move(value));
}

}  // namespace weft::api
