// Anthropic's Messages API around the chat API: a body becomes a chat body, the delta stream
// becomes its events.
//
// The converter is a pure function; its result goes through parse_chat_request. Writers belong to
// one request.
#pragma once

#include <string>

#include "api/chat_writer.h"
#include "api/delta.h"
#include "api/parsed.h"
#include "api/policy.h"
#include "base/json_value.h"

namespace weft::api {

enum class AnthropicCall { kMessages, kCountTokens };  // only messages need max_tokens
Parsed<JsonValue> anthropic_to_chat(const JsonValue& body,
                                    AnthropicCall call = AnthropicCall::kMessages);

class AnthropicStreamWriter {
 public:
  AnthropicStreamWriter(ResponseHead head, ApiPolicy policy)
      : head_(std::move(head)), policy_(std::move(policy)) {}

  void start(const Usage& usage, std::string* out);
  void delta(const Delta& delta, std::string* out);
  void finish(FinishReason reason, const StopReason& stop, const Usage& usage, std::string* out);
  void error(const ApiError& error, std::string_view request_id, std::string* out);
  static void ping(std::string* out);

 private:
  enum class Block { kNone, kThinking, kText, kTool };
  void open(Block kind, const Delta& delta, std::string* out);
  void close(std::string* out);

  ResponseHead head_;
  ApiPolicy policy_;
  Block block_ = Block::kNone;
  int64_t index_ = -1;
  uint64_t thinking_hash_ = 0;
};

std::string anthropic_response_json(const ResponseHead& head, const ApiPolicy& policy,
                                    const ChatChoice& choice, const Usage& usage);
std::string anthropic_count_json(int64_t input_tokens);

}  // namespace weft::api
