// Chat completions on the wire: the delta stream of the output parser as SSE events or as one JSON
// body.
//
// Both writers are plain state, owned by the request that they answer, one thread at a time. Stream
// events are appended to a caller's string as complete SSE frames, ready to be sent.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "api/api_error.h"
#include "api/chat_request.h"
#include "api/delta.h"
#include "api/policy.h"

namespace weft::api {

// Which stop string or stop token ended a choice; monostate when none of the client's did.
using StopReason = std::variant<std::monostate, std::string, int32_t>;

struct ResponseHead {
  std::string id;
  int64_t created = 0;
  std::string model;
};

// What shapes a response besides its deltas. Borrowed from the request and the policy when the
// writer is made.
struct ChatWriterOptions {
  ResponseHead head;
  int32_t n = 1;
  bool include_usage = false;
  bool continuous_usage = false;
  bool logprobs = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  bool include_reasoning = true;
  ApiPolicy policy;

  static ChatWriterOptions from(const ChatRequest& request, const ApiPolicy& policy,
                                ResponseHead head);
};

class ChatStreamWriter {
 public:
  explicit ChatStreamWriter(ChatWriterOptions options);

  // One role chunk per choice, sent when the request was admitted. `prompt_ids` is used with
  // return_token_ids only.
  void start(const std::vector<int32_t>& prompt_ids, const Usage& usage, std::string* out);
  // Token ids of a choice since the last call; they travel with the next chunk of that choice.
  void add_tokens(int32_t choice, const std::vector<int32_t>& ids);
  void delta(int32_t choice, const Delta& delta, const Usage& usage, std::string* out);
  void finish(int32_t choice, FinishReason reason, const StopReason& stop, const Usage& usage,
              std::string* out);
  // The usage chunk when asked for, and [DONE].
  void end(const Usage& usage, std::string* out);
  // After an error nothing may follow.
  void error(const ApiError& error, std::string* out);

 private:
  void open_chunk(std::string& out, int32_t choice) const;
  void close_chunk(std::string& out, int32_t choice, const char* finish, const StopReason& stop,
                   const std::vector<TokenLogprob>& logprobs, const Usage& usage);
  void append_delta(std::string& out, const Delta& delta) const;

  ChatWriterOptions options_;
  std::string prefix_;  // everything of a chunk before its choices
  std::string prompt_ids_json_;
  std::vector<std::vector<int32_t>> pending_ids_;
};

// One choice of a non-streaming answer, collected from the same deltas that a stream would send.
class ChatChoice {
 public:
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };
  void add(const Delta& delta);
  // Removes calls that were cut off: with kLength or kAbort, those whose arguments are not complete
  // JSON.
  void finish(FinishReason reason, StopReason stop = {});

  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  std::vector<TokenLogprob> logprobs;
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
};

std::string chat_response_json(const ChatWriterOptions& options,
                               const std::vector<ChatChoice>& choices,
                               const std::vector<int32_t>& prompt_ids, const Usage& usage);

void append_stop_reason(std::string& out, const StopReason& stop);  // ,"stop_reason":... or nothing

}  // namespace weft::api
