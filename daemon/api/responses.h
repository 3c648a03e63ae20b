// OpenAI's Responses API around the chat API: a body becomes a chat body, the delta stream becomes
// output items and their events. Nothing is stored: requests that need a store are refused.
//
// The converter is a pure function; its result goes through parse_chat_request. A writer belongs to
// one request.
#pragma once

#include <cstdint>
#include <string>

#include "api/chat_writer.h"
#include "api/delta.h"
#include "api/parsed.h"
#include "api/policy.h"
#include "base/json_value.h"

namespace weft::api {

Parsed<JsonValue> responses_to_chat(const JsonValue& body);

// Serves both forms: with streaming, every call appends SSE events to `out`; without, pass nullptr
// and take response_json() after finish().
class ResponsesWriter {
 public:
  // `body` is the request, parts of which are echoed in the response object.
  ResponsesWriter(ResponseHead head, ApiPolicy policy, const JsonValue& body);

  void start(std::string* out);
  void delta(const Delta& delta, std::string* out);
  void finish(FinishReason reason, const StopReason& stop, const Usage& usage, std::string* out);
  void error(const ApiError& error, std::string* out);
  std::string response_json() const { return dump_json(response_); }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };
  void open(Item kind, const Delta& delta, std::string* out);
  void close(const char* status, std::string* out);
  JsonValue item_value(const char* status, bool empty) const;
  JsonValue part_value(bool empty) const;
  JsonValue event(std::string_view type) const;
  JsonValue item_event(std::string_view type) const;  // with output_index and item_id
  JsonValue part_event(std::string_view type) const;  // with content_index too
  void emit(std::string* out, JsonValue event);
  JsonValue response_value(const char* status) const;

  ResponseHead head_;
  ApiPolicy policy_;
  JsonValue echo_;      // request members shown in the response object
  JsonValue response_;  // final
  JsonValue output_ = JsonValue::array();
  JsonValue usage_;
  JsonValue incomplete_;
  JsonValue error_;
  int64_t sequence_ = 0;
  Item item_ = Item::kNone;
  std::string item_id_;
  std::string text_;  // of the open item
  std::string call_id_;
  std::string call_name_;
};

}  // namespace weft::api
