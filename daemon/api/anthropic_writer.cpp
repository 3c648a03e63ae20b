#include <fmt/format.h>

#include "api/anthropic.h"
#include "api/errors.h"
#include "api/json_build.h"
#include "api/wire_json.h"
#include "base/check.h"

namespace weft::api {
namespace {

constexpr uint64_t kFnvOffset = 0xcbf29ce484222325u;
constexpr uint64_t kFnvPrime = 0x100000001b3u;

// Clients need a signature and send it back; we recompute nothing from it.
uint64_t hash_on(uint64_t hash, std::string_view text) {
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * kFnvPrime;
  return hash;
}
std::string signature_text(uint64_t hash) { return fmt::format("weft-{:016x}", hash); }

JsonValue usage_value(const Usage& counted, const ApiPolicy& policy, bool with_output) {
  const Usage usage = reported_usage(counted, policy, true);
  return JsonValue::object(
      {{"input_tokens", JsonValue::integer(usage.prompt_tokens - usage.cached_tokens)},
       {"cache_creation_input_tokens", JsonValue::integer(0)},
       {"cache_read_input_tokens", JsonValue::integer(usage.cached_tokens)},
       {"output_tokens", JsonValue::integer(with_output ? usage.completion_tokens : 0)}});
}

void put_stop(JsonValue& object, FinishReason reason, const StopReason& stop) {
  const auto* sequence = std::get_if<std::string>(&stop);
  const char* text = "end_turn";
  if (sequence != nullptr)
    text = "stop_sequence";
  else if (reason == FinishReason::kLength)
    text = "max_tokens";
  else if (reason == FinishReason::kToolCalls)
    text = "tool_use";
  put(object, "stop_reason", text);
  put(object, "stop_sequence",
      sequence == nullptr ? JsonValue::null() : JsonValue::string(*sequence));
}

JsonValue message_value(const ResponseHead& head, JsonValue content) {
  JsonValue message = JsonValue::object();
  put(message, "id", head.id);
  put(message, "type", "message");
  put(message, "role", "assistant");
  put(message, "model", head.model);
  put(message, "content", std::move(content));
  return message;
}

JsonValue event_value(std::string_view type) {
  JsonValue event = JsonValue::object();
  put(event, "type", type);
  return event;
}

void append_event(std::string& out, const JsonValue& event) {
  out += "event: ";
  out += text_member(event, "type");
  out += "\ndata: ";
  out += dump_json(event);
  out += "\n\n";
}

void append_block_event(std::string& out, const char* type, int64_t index, const char* key,
                        JsonValue value) {
  JsonValue event = event_value(type);
  put(event, "index", JsonValue::integer(index));
  if (key != nullptr) put(event, key, std::move(value));
  append_event(out, event);
}

JsonValue typed_text(const char* type, const char* key, std::string_view text) {
  JsonValue value = JsonValue::object();
  put(value, "type", type);
  put(value, key, text);
  return value;
}

JsonValue tool_use(const std::string& id, const std::string& name, JsonValue input) {
  JsonValue block = typed_text("tool_use", "id", id);
  put(block, "name", name);
  put(block, "input", std::move(input));
  return block;
}

// Arguments that are not an object cannot be `input`; they are kept as text.
JsonValue input_value(const std::string& arguments) {
  auto parsed = parse_json(arguments);
  if (parsed.ok() && parsed->is_object()) return std::move(parsed).value();
  JsonValue input = JsonValue::object();
  if (!arguments.empty()) put(input, "raw_arguments", arguments);
  return input;
}

}  // namespace

void AnthropicStreamWriter::start(const Usage& usage, std::string* out) {
  JsonValue message = message_value(head_, JsonValue::array());
  put(message, "stop_reason", JsonValue::null());
  put(message, "stop_sequence", JsonValue::null());
  put(message, "usage", usage_value(usage, policy_, false));
  JsonValue event = event_value("message_start");
  put(event, "message", std::move(message));
  append_event(*out, event);
}

void AnthropicStreamWriter::open(Block kind, const Delta& delta, std::string* out) {
  close(out);
  block_ = kind;
  ++index_;
  thinking_hash_ = kFnvOffset;
  JsonValue block;
  if (kind == Block::kThinking) {
    block = typed_text("thinking", "thinking", "");
    put(block, "signature", "");
  } else if (kind == Block::kText) {
    block = typed_text("text", "text", "");
  } else {
    block = tool_use(delta.id, delta.text, JsonValue::object());
  }
  append_block_event(*out, "content_block_start", index_, "content_block", std::move(block));
}

void AnthropicStreamWriter::close(std::string* out) {
  if (block_ == Block::kNone) return;
  if (block_ == Block::kThinking)
    append_block_event(*out, "content_block_delta", index_, "delta",
                       typed_text("signature_delta", "signature", signature_text(thinking_hash_)));
  append_block_event(*out, "content_block_stop", index_, nullptr, {});
  block_ = Block::kNone;
}

void AnthropicStreamWriter::delta(const Delta& delta, std::string* out) {
  const auto send = [&](JsonValue value) {
    append_block_event(*out, "content_block_delta", index_, "delta", std::move(value));
  };
  switch (delta.kind) {
    case Delta::Kind::kReasoning:
      if (block_ != Block::kThinking) open(Block::kThinking, delta, out);
      thinking_hash_ = hash_on(thinking_hash_, delta.text);
      return send(typed_text("thinking_delta", "thinking", delta.text));
    case Delta::Kind::kContent:
      if (block_ != Block::kText) open(Block::kText, delta, out);
      return send(typed_text("text_delta", "text", delta.text));
    case Delta::Kind::kToolOpen:
      return open(Block::kTool, delta, out);
    case Delta::Kind::kToolArguments:
      WEFT_CHECK(block_ == Block::kTool);
      return send(typed_text("input_json_delta", "partial_json", delta.text));
  }
}

void AnthropicStreamWriter::finish(FinishReason reason, const StopReason& stop, const Usage& usage,
                                   std::string* out) {
  close(out);
  JsonValue change = JsonValue::object();
  put_stop(change, reason, stop);
  JsonValue event = event_value("message_delta");
  put(event, "delta", std::move(change));
  put(event, "usage", usage_value(usage, policy_, true));
  append_event(*out, event);
  append_event(*out, event_value("message_stop"));
}

void AnthropicStreamWriter::error(const ApiError& error, std::string_view request_id,
                                  std::string* out) {
  *out += "event: error\n";
  append_sse_data(*out, anthropic_error_json(error, request_id));
}

void AnthropicStreamWriter::ping(std::string* out) { append_event(*out, event_value("ping")); }

std::string anthropic_response_json(const ResponseHead& head, const ApiPolicy& policy,
                                    const ChatChoice& choice, const Usage& usage) {
  JsonValue content = JsonValue::array();
  if (!choice.reasoning.empty()) {
    JsonValue block = typed_text("thinking", "thinking", choice.reasoning);
    put(block, "signature", signature_text(hash_on(kFnvOffset, choice.reasoning)));
    content.items().push_back(std::move(block));
  }
  if (!choice.content.empty())
    content.items().push_back(typed_text("text", "text", choice.content));
  for (const auto& call : choice.calls)
    content.items().push_back(tool_use(call.id, call.name, input_value(call.arguments)));
  JsonValue message = message_value(head, std::move(content));
  put_stop(message, choice.finish_reason, choice.stop_reason);
  put(message, "usage", usage_value(usage, policy, true));
  return dump_json(message);
}

std::string anthropic_count_json(int64_t input_tokens) {
  return fmt::format("{{\"input_tokens\":{}}}", input_tokens);
}

}  // namespace weft::api
