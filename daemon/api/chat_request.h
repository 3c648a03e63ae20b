// The one internal form of a generation request. Every protocol (OpenAI chat and completions,
// Anthropic, Responses) is converted into it; nothing behind it may look at HTTP, nothing before
// the text room may look at tokens.
//
// Plain values, owned; built on a fast lane, then read only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json_value.h"

namespace weft::api {

struct TextPart {
  std::string text;
};
struct ImagePart {
  std::string url;  // data: URL or http(s) URL exactly as sent
  std::string detail;
};
using ContentPart = std::variant<TextPart, ImagePart>;

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool };

struct ToolCall {
  std::string id;
  std::string name;
  JsonValue arguments;  // string (as clients send it) or object
};

struct Tool {
  JsonValue declaration;  // the whole tools[] item as sent
  std::string name;
  std::string description;
  JsonValue parameters;  // object or null
  bool strict = false;
};

struct Message {
  Role role = Role::kUser;
  std::string name;
  bool content_is_array = false;  // string content is one TextPart with this false
  bool content_is_null = false;   // null or absent
  std::vector<ContentPart> content;
  std::string reasoning;
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  std::vector<Tool> tools;  // system message that declares tools in the middle of a conversation
  bool partial = false;     // assistant message to be continued
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema };
enum class Effort { kLow, kMedium, kHigh, kMax };

struct SamplingParams {
  double temperature = 1.0;
  double top_p = 0.95;
  int64_t top_k = 0;  // 0 = off
  double min_p = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::optional<int64_t> seed;
  std::map<int32_t, float> logit_bias;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int64_t min_tokens = 0;
  std::optional<int64_t> max_tokens;  // as the client asked; the gateway clamps
  // -1 = no logprobs; 0..20 = number of alternatives besides the chosen token.
  int32_t logprobs = -1;
  int32_t prompt_logprobs = -1;
  int32_t n = 1;
};

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

struct ChatRequest {
  std::string model;
  std::vector<Message> messages;
  std::vector<Tool> tools;
  JsonValue tools_json;  // the tools array as sent (null when absent or empty)
  ToolChoice tool_choice = ToolChoice::kAuto;
  bool tool_choice_given = false;
  std::string tool_choice_name;
  bool parallel_tool_calls = true;
  ResponseFormat response_format = ResponseFormat::kText;
  JsonValue response_format_json;  // the whole response_format object as sent
  bool thinking = true;
  Effort effort = Effort::kMax;
  bool include_reasoning = true;
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  StreamOptions stream;
  int32_t priority = 0;
  std::string cache_salt;
  int64_t deadline_ms = 0;  // from arrival to the first token; 0: none
  std::string request_id;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  JsonValue structured_outputs;  // the structured_outputs object as sent (null when absent)
};

// POST /v1/completions. Prompts are token ids or text; several prompts are several choices.
struct CompletionRequest {
  std::string model;
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  SamplingParams sampling;  // logprobs as in SamplingParams
  bool echo = false;
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  StreamOptions stream;
  int32_t priority = 0;
  std::string cache_salt;
  int64_t deadline_ms = 0;  // from arrival to the first token; 0: none
  std::string request_id;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
};

}  // namespace weft::api
