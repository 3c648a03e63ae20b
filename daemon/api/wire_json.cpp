#include "api/wire_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/json_value.h"
#include "base/utf8.h"

namespace weft::api {
namespace {

constexpr double kLogprobFloor = -9999.0;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the maximal ill-formed part at `pos`: a lead byte with the continuation bytes that
// could still follow it.
size_t ill_formed_length(std::string_view bytes, size_t pos) {
  const auto lead = static_cast<uint8_t>(bytes[pos]);
  size_t need = 0;
  if (lead >= 0xC2 && lead <= 0xDF)
    need = 1;
  else if (lead >= 0xE0 && lead <= 0xEF)
    need = 2;
  else if (lead >= 0xF0 && lead <= 0xF4)
    need = 3;
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  size_t length = 1;
  while (length <= need && pos + length < bytes.size()) {
    const auto next = static_cast<uint8_t>(bytes[pos + length]);
    if (next < low || next > high) break;
    low = 0x80;
    high = 0xBF;
    ++length;
  }
  return length;
}

void append_token_and_bytes(std::string& out, int32_t id, std::string_view bytes, double logprob,
                            bool as_id) {
  out += "{\"token\":";
  append_json_string(out, token_text(id, bytes, as_id));
  out += ",\"logprob\":";
  append_logprob(out, logprob);
  out += ",\"bytes\":[";
  for (size_t i = 0; i < bytes.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",",
                   static_cast<unsigned>(static_cast<uint8_t>(bytes[i])));
  out += ']';
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_token_ids(std::string& out, const std::vector<int32_t>& ids) {
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",", ids[i]);
  out += ']';
}

void append_logprob(std::string& out, double logprob) {
  if (std::isnan(logprob)) {
    out += "null";
    return;
  }
  fmt::format_to(std::back_inserter(out), "{}", std::max(logprob, kLogprobFloor));
}

std::string lossy_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  char32_t code_point = 0;
  for (size_t pos = 0; pos < bytes.size();) {
    const size_t length = decode_utf8(bytes, pos, &code_point);
    if (length > 0) {
      out.append(bytes, pos, length);
      pos += length;
    } else {
      out += kReplacement;
      pos += ill_formed_length(bytes, pos);
    }
  }
  return out;
}

std::string token_text(int32_t id, std::string_view bytes, bool as_token_id) {
  return as_token_id ? fmt::format("token_id:{}", id) : lossy_utf8(bytes);
}

void append_chat_logprob(std::string& out, const TokenLogprob& entry, bool as_token_ids) {
  append_token_and_bytes(out, entry.id, entry.bytes, entry.logprob, as_token_ids);
  out += ",\"top_logprobs\":[";
  bool first = true;
  for (const auto& other : entry.top) {
    if (!std::exchange(first, false)) out += ',';
    append_token_and_bytes(out, other.id, other.bytes, other.logprob, as_token_ids);
    out += '}';
  }
  out += "]}";
}

Usage reported_usage(const Usage& counted, const ApiPolicy& policy, bool chat) {
  Usage usage = counted;
  if (chat && policy.usage_excludes_opener)
    usage.prompt_tokens = std::max<int64_t>(0, usage.prompt_tokens - policy.opener_tokens);
  usage.cached_tokens = std::min(usage.cached_tokens, usage.prompt_tokens);
  return usage;
}

void append_usage(std::string& out, const Usage& usage, const ApiPolicy& policy) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
                 "\"prompt_tokens_details\":{{\"cached_tokens\":{}}},"
                 "\"completion_tokens_details\":{{\"reasoning_tokens\":{}}}",
                 usage.prompt_tokens, usage.completion_tokens,
                 usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens,
                 usage.reasoning_tokens);
  if (policy.usage_moonshot_fields)
    fmt::format_to(std::back_inserter(out), ",\"cached_tokens\":{}", usage.cached_tokens);
  out += '}';
}

const char* finish_reason_text(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return nullptr;
}

void append_sse_data(std::string& out, std::string_view payload) {
  out += "data: ";
  out += payload;
  out += "\n\n";
}

}  // namespace weft::api
