// Small pieces of JSON that several protocol writers print. Streams are written by appending text:
// a chunk costs one append per field and no tree.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/delta.h"
#include "api/policy.h"

namespace weft::api {

void append_json_string(std::string& out, std::string_view text);  // with quotes
void append_token_ids(std::string& out, const std::vector<int32_t>& ids);
// Shortest decimal; -inf prints as -9999.0, NaN as null.
void append_logprob(std::string& out, double logprob);

// Bytes as text: every maximal ill-formed part becomes U+FFFD.
std::string lossy_utf8(std::string_view bytes);
// What `token` says for a token: lossy text, or "token_id:N".
std::string token_text(int32_t id, std::string_view bytes, bool as_token_id);
// One entry of choices[].logprobs.content[].
void append_chat_logprob(std::string& out, const TokenLogprob& entry, bool as_token_ids);

// The engine's counts as the policy shows them (opener excluded, cached <= prompt).
Usage reported_usage(const Usage& counted, const ApiPolicy& policy, bool chat);
// {prompt_tokens, ...} of counts that reported_usage already adjusted.
void append_usage(std::string& out, const Usage& reported, const ApiPolicy& policy);

// "stop", "length", "tool_calls", "abort" or "error"; nullptr for kNone.
const char* finish_reason_text(FinishReason reason);

// `data: PAYLOAD\n\n` and the end of an OpenAI stream.
void append_sse_data(std::string& out, std::string_view payload);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";
inline constexpr std::string_view kSseContentType = "text/event-stream; charset=utf-8";

}  // namespace weft::api
