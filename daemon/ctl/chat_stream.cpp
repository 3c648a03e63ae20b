#include "ctl/chat_stream.h"

#include "ctl/api.h"

namespace weft::ctl {

bool ChatAnswer::event(std::string_view data, int64_t now_us) {
  if (data == "[DONE]") {
    done_ = true;
    return false;
  }
  const auto json = parse_json(data);
  if (!json.ok()) {
    error_ = "an event of the answer is not JSON: " + json.error().message;
    return false;
  }
  if (const JsonValue* error = json->find("error"); error != nullptr) {
    error_ = text_at(*error, "message");
    if (error_.empty()) error_ = "weftd reported an error without a message";
    return false;
  }
  if (const JsonValue* usage = json->find("usage"); usage != nullptr && usage->is_object()) {
    prompt_tokens_ = int_at(*usage, "prompt_tokens");
    output_tokens_ = int_at(*usage, "completion_tokens");
  }
  for (const JsonValue& choice : list_at(*json, "choices")) {
    if (int_at(choice, "index") != 0) continue;
    const std::string finish = text_at(choice, "finish_reason");
    if (!finish.empty()) finish_reason_ = finish;
    const JsonValue* piece = choice.find("delta");
    if (piece == nullptr || !piece->is_object()) continue;
    const size_t before = content_.size() + reasoning_.size() + calls_.size();
    delta(*piece);
    const bool grew =
        content_.size() + reasoning_.size() + calls_.size() > before || piece->find("tool_calls");
    if (grew && first_us_ < 0) first_us_ = now_us;
    if (grew) last_us_ = now_us;
  }
  return true;
}

void ChatAnswer::delta(const JsonValue& delta) {
  std::string thought = text_at(delta, "reasoning_content");
  if (thought.empty()) thought = text_at(delta, "reasoning");  // an alias; never both
  if (!thought.empty()) {
    reasoning_ += thought;
    if (listener_.on_reasoning) listener_.on_reasoning(thought);
  }
  const std::string text = text_at(delta, "content");
  if (!text.empty()) {
    content_ += text;
    if (listener_.on_content) listener_.on_content(text);
  }
  constexpr size_t kCallsMax = 1024;
  for (const JsonValue& call : list_at(delta, "tool_calls")) {
    const int64_t index = int_at(call, "index");
    if (index < 0 || static_cast<size_t>(index) > calls_.size() || calls_.size() >= kCallsMax)
      continue;
    if (static_cast<size_t>(index) == calls_.size()) calls_.emplace_back();
    ShownCall& shown = calls_[static_cast<size_t>(index)];
    const std::string id = text_at(call, "id");
    if (!id.empty()) shown.id = id;
    if (const JsonValue* function = call.find("function"); function != nullptr) {
      shown.name += text_at(*function, "name");
      shown.arguments += text_at(*function, "arguments");
    }
  }
}

JsonValue ChatAnswer::message() const {
  std::vector<JsonValue::Member> m{{"role", JsonValue::string("assistant")}};
  const bool only_calls = content_.empty() && !calls_.empty();
  m.emplace_back("content", only_calls ? JsonValue::null() : JsonValue::string(content_));
  if (!reasoning_.empty()) m.emplace_back("reasoning_content", JsonValue::string(reasoning_));
  std::vector<JsonValue> calls;
  for (const ShownCall& c : calls_) {
    calls.push_back(JsonValue::object(
        {{"id", JsonValue::string(c.id)},
         {"type", JsonValue::string("function")},
         {"function", JsonValue::object({{"name", JsonValue::string(c.name)},
                                         {"arguments", JsonValue::string(c.arguments)}})}}));
  }
  if (!calls.empty()) m.emplace_back("tool_calls", JsonValue::array(std::move(calls)));
  return JsonValue::object(std::move(m));
}

std::string ChatAnswer::summary() const {
  std::string out;
  if (output_tokens_ >= 0)
    out = fmt::format("{} tokens in, {} out", prompt_tokens_, output_tokens_);
  if (first_us_ < 0) return out;
  out += fmt::format("{}TTFT {:.0f} ms", out.empty() ? "" : "; ",
                     static_cast<double>(first_us_ - start_us_) / 1000.0);
  const int64_t span_us = last_us_ - first_us_;
  if (output_tokens_ < 2 || span_us <= 0) return out;
  // The first token opens the span, so n tokens have n-1 gaps.
  const double gap_ms =
      static_cast<double>(span_us) / 1000.0 / static_cast<double>(output_tokens_ - 1);
  return out + fmt::format(", ITL {:.1f} ms, {:.1f} tok/s", gap_ms, 1000.0 / gap_ms);
}

}  // namespace weft::ctl
