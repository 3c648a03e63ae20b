#include "api/chat_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "api/errors.h"
#include "api/wire_json.h"
#include "base/check.h"
#include "base/json_value.h"

namespace weft::api {
namespace {

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

void append_logprobs(std::string& out, const std::vector<TokenLogprob>& entries, bool as_ids) {
  out += "{\"content\":[";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out += ',';
    append_chat_logprob(out, entries[i], as_ids);
  }
  out += "]}";
}

void append_field(std::string& out, std::string_view key, std::string_view text) {
  out += '"';
  out += key;
  out += "\":";
  append_json_string(out, text);
}

void append_reasoning(std::string& out, std::string_view text, const ApiPolicy& policy) {
  append_field(out, "reasoning_content", text);
  if (!policy.reasoning_alias) return;
  out += ',';
  append_field(out, "reasoning", text);
}

void append_message(std::string& out, const ChatChoice& choice, const ChatWriterOptions& options) {
  out += "{\"role\":\"assistant\",\"content\":";
  if (!choice.calls.empty() && is_blank(choice.content))
    out += "null";
  else
    append_json_string(out, choice.content);
  if (!choice.reasoning.empty() && options.include_reasoning) {
    out += ',';
    append_reasoning(out, choice.reasoning, options.policy);
  }
  if (!choice.calls.empty()) {
    out += ",\"tool_calls\":[";
    for (size_t i = 0; i < choice.calls.size(); ++i) {
      out += i > 0 ? ",{" : "{";
      append_field(out, "id", choice.calls[i].id);
      out += ",\"type\":\"function\",\"function\":{";
      append_field(out, "name", choice.calls[i].name);
      out += ',';
      append_field(out, "arguments", choice.calls[i].arguments);
      out += "}}";
    }
    out += ']';
  }
  out += '}';
}

void append_full_choice(std::string& out, size_t index, const ChatChoice& choice,
                        const ChatWriterOptions& options) {
  fmt::format_to(std::back_inserter(out), "{{\"index\":{},\"message\":", index);
  append_message(out, choice, options);
  out += ",\"logprobs\":";
  if (options.logprobs)
    append_logprobs(out, choice.logprobs, options.return_tokens_as_token_ids);
  else
    out += "null";
  out += ",\"finish_reason\":";
  const char* reason = finish_reason_text(choice.finish_reason);
  if (reason == nullptr)
    out += "null";
  else
    append_json_string(out, reason);
  append_stop_reason(out, choice.stop_reason);
  if (options.return_token_ids) {
    out += ",\"token_ids\":";
    append_token_ids(out, choice.token_ids);
  }
  out += '}';
}

}  // namespace

ChatWriterOptions ChatWriterOptions::from(const ChatRequest& request, const ApiPolicy& policy,
                                          ResponseHead head) {
  ChatWriterOptions options;
  options.head = std::move(head);
  options.n = request.sampling.n;
  options.include_usage = request.stream.include_usage;
  options.continuous_usage = request.stream.continuous_usage;
  options.logprobs = request.sampling.logprobs >= 0;
  options.return_token_ids = request.return_token_ids;
  options.return_tokens_as_token_ids = request.return_tokens_as_token_ids;
  options.include_reasoning = request.include_reasoning;
  options.policy = policy;
  return options;
}

void append_stop_reason(std::string& out, const StopReason& stop) {
  if (const auto* text = std::get_if<std::string>(&stop)) {
    out += ",\"stop_reason\":";
    append_json_string(out, *text);
  } else if (const auto* id = std::get_if<int32_t>(&stop)) {
    fmt::format_to(std::back_inserter(out), ",\"stop_reason\":{}", *id);
  }
}

ChatStreamWriter::ChatStreamWriter(ChatWriterOptions options) : options_(std::move(options)) {
  prefix_ = "data: {";
  append_field(prefix_, "id", options_.head.id);
  fmt::format_to(std::back_inserter(prefix_),
                 ",\"object\":\"chat.completion.chunk\",\"created\":{},", options_.head.created);
  append_field(prefix_, "model", options_.head.model);
  prefix_ += ",\"choices\":[";
  pending_ids_.resize(static_cast<size_t>(options_.n));
}

void ChatStreamWriter::open_chunk(std::string& out, int32_t choice) const {
  WEFT_CHECK(choice >= 0 && choice < options_.n);
  out += prefix_;
  fmt::format_to(std::back_inserter(out), "{{\"index\":{},\"delta\":", choice);
}

void ChatStreamWriter::close_chunk(std::string& out, int32_t choice, const char* finish,
                                   const StopReason& stop,
                                   const std::vector<TokenLogprob>& logprobs, const Usage& usage) {
  out += ",\"logprobs\":";
  if (options_.logprobs && !logprobs.empty())
    append_logprobs(out, logprobs, options_.return_tokens_as_token_ids);
  else
    out += "null";
  out += ",\"finish_reason\":";
  if (finish == nullptr)
    out += "null";
  else
    append_json_string(out, finish);
  append_stop_reason(out, stop);
  if (options_.return_token_ids) {
    auto& ids = pending_ids_[static_cast<size_t>(choice)];
    out += ",\"token_ids\":";
    append_token_ids(out, ids);
    ids.clear();
  }
  const Usage reported = reported_usage(usage, options_.policy, true);
  if (finish != nullptr && options_.policy.usage_in_final_choice) {
    out += ",\"usage\":";
    append_usage(out, reported, options_.policy);
  }
  out += "}]";
  out += prompt_ids_json_;
  prompt_ids_json_.clear();
  if (options_.continuous_usage) {
    out += ",\"usage\":";
    append_usage(out, reported, options_.policy);
  } else if (options_.include_usage) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void ChatStreamWriter::start(const std::vector<int32_t>& prompt_ids, const Usage& usage,
                             std::string* out) {
  if (options_.return_token_ids) {
    prompt_ids_json_ = ",\"prompt_token_ids\":";
    append_token_ids(prompt_ids_json_, prompt_ids);
  }
  for (int32_t choice = 0; choice < options_.n; ++choice) {
    open_chunk(*out, choice);
    *out += "{\"role\":\"assistant\",\"content\":\"\"}";
    close_chunk(*out, choice, nullptr, {}, {}, usage);
  }
}

void ChatStreamWriter::add_tokens(int32_t choice, const std::vector<int32_t>& ids) {
  WEFT_CHECK(choice >= 0 && choice < options_.n);
  if (!options_.return_token_ids) return;
  auto& pending = pending_ids_[static_cast<size_t>(choice)];
  pending.insert(pending.end(), ids.begin(), ids.end());
}

void ChatStreamWriter::append_delta(std::string& out, const Delta& delta) const {
  out += '{';
  switch (delta.kind) {
    case Delta::Kind::kReasoning:
      append_reasoning(out, delta.text, options_.policy);
      break;
    case Delta::Kind::kContent:
      append_field(out, "content", delta.text);
      break;
    case Delta::Kind::kToolOpen:
      fmt::format_to(std::back_inserter(out), "\"tool_calls\":[{{\"index\":{},", delta.call_index);
      append_field(out, "id", delta.id);
      out += ",\"type\":\"function\",\"function\":{";
      append_field(out, "name", delta.text);
      out += ",\"arguments\":\"\"}}]";
      break;
    case Delta::Kind::kToolArguments:
      fmt::format_to(std::back_inserter(out), "\"tool_calls\":[{{\"index\":{},\"function\":{{",
                     delta.call_index);
      append_field(out, "arguments", delta.text);
      out += "}}]";
      break;
  }
  out += '}';
}

void ChatStreamWriter::delta(int32_t choice, const Delta& delta, const Usage& usage,
                             std::string* out) {
  if (delta.kind == Delta::Kind::kReasoning && !options_.include_reasoning) return;
  open_chunk(*out, choice);
  append_delta(*out, delta);
  close_chunk(*out, choice, nullptr, {}, delta.logprobs, usage);
}

void ChatStreamWriter::finish(int32_t choice, FinishReason reason, const StopReason& stop,
                              const Usage& usage, std::string* out) {
  open_chunk(*out, choice);
  *out += "{}";
  close_chunk(*out, choice, finish_reason_text(reason), stop, {}, usage);
}

void ChatStreamWriter::end(const Usage& usage, std::string* out) {
  if (options_.include_usage) {
    *out += prefix_;
    *out += "],\"usage\":";
    append_usage(*out, reported_usage(usage, options_.policy, true), options_.policy);
    *out += "}\n\n";
  }
  *out += kSseDone;
}

void ChatStreamWriter::error(const ApiError& error, std::string* out) {
  append_sse_data(*out, error_json(error));
  *out += kSseDone;
}

void ChatChoice::add(const Delta& delta) {
  switch (delta.kind) {
    case Delta::Kind::kReasoning:
      reasoning += delta.text;
      break;
    case Delta::Kind::kContent:
      content += delta.text;
      logprobs.insert(logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
      break;
    case Delta::Kind::kToolOpen:
      WEFT_CHECK(delta.call_index == static_cast<int32_t>(calls.size()));
      calls.push_back({delta.id, delta.text, ""});
      break;
    case Delta::Kind::kToolArguments:
      WEFT_CHECK(delta.call_index >= 0 && delta.call_index < static_cast<int32_t>(calls.size()));
      calls[static_cast<size_t>(delta.call_index)].arguments += delta.text;
      break;
  }
}

void ChatChoice::finish(FinishReason reason, StopReason stop) {
  finish_reason = reason;
  stop_reason = std::move(stop);
  if (reason != FinishReason::kLength && reason != FinishReason::kAbort) return;
  std::erase_if(calls, [](const Call& call) { return !parse_json(call.arguments).ok(); });
}

std::string chat_response_json(const ChatWriterOptions& options,
                               const std::vector<ChatChoice>& choices,
                               const std::vector<int32_t>& prompt_ids, const Usage& usage) {
  std::string out = "{";
  append_field(out, "id", options.head.id);
  fmt::format_to(std::back_inserter(out), ",\"object\":\"chat.completion\",\"created\":{},",
                 options.head.created);
  append_field(out, "model", options.head.model);
  out += ",\"choices\":[";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    append_full_choice(out, i, choices[i], options);
  }
  out += "],\"usage\":";
  append_usage(out, reported_usage(usage, options.policy, true), options.policy);
  if (options.return_token_ids) {
    out += ",\"prompt_token_ids\":";
    append_token_ids(out, prompt_ids);
  }
  out += '}';
  return out;
}

}  // namespace weft::api
