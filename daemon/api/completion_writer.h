// Completions on the wire: raw text as `text_completion` objects, streamed or whole, with echo and
// log probabilities.
//
// Plain state, owned by the request, one thread at a time. Choices are independent of each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/api_error.h"
#include "api/chat_request.h"
#include "api/chat_writer.h"
#include "api/delta.h"
#include "api/policy.h"

namespace weft::api {

struct CompletionWriterOptions {
  ResponseHead head;
  int32_t choices = 1;  // prompts * n
  bool include_usage = false;
  bool continuous_usage = false;
  int32_t logprobs = -1;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  ApiPolicy policy;

  static CompletionWriterOptions from(const CompletionRequest& request, const ApiPolicy& policy,
                                      ResponseHead head);
};

// A piece of a choice's output: text, with the tokens behind it. With echo the prompt is the first
// piece; the first prompt token has no log probability, which is NaN here and null on the wire.
struct CompletionPiece {
  std::string text;
  std::vector<TokenLogprob> logprobs;
  std::vector<int32_t> token_ids;  // generated ids only, never those of an echoed prompt
};

// The logprobs object of one choice: {tokens, token_logprobs, top_logprobs, text_offset}. Offsets
// count code points from the beginning of the choice's text and run on over the pieces of a stream.
class CompletionLogprobs {
 public:
  CompletionLogprobs(int32_t alternatives, bool as_token_ids)
      : alternatives_(alternatives), as_ids_(as_token_ids) {}
  void append(std::string& out, const std::vector<TokenLogprob>& entries);

 private:
  void append_top(std::string& out, const TokenLogprob& entry) const;

  int32_t alternatives_;
  bool as_ids_;
  int64_t offset_ = 0;
};

class CompletionStreamWriter {
 public:
  explicit CompletionStreamWriter(CompletionWriterOptions options);

  // Names the prompt of a choice before its first chunk; used with return_token_ids only.
  void set_prompt_ids(int32_t choice, const std::vector<int32_t>& ids);
  void piece(int32_t choice, const CompletionPiece& piece, const Usage& usage, std::string* out);
  // `rest` may hold a last piece of text.
  void finish(int32_t choice, const CompletionPiece& rest, FinishReason reason,
              const StopReason& stop, const Usage& usage, std::string* out);
  void end(const Usage& usage, std::string* out);
  void error(const ApiError& error, std::string* out);

 private:
  void chunk(int32_t choice, const CompletionPiece& piece, const char* finish,
             const StopReason& stop, const Usage& usage, std::string* out);

  CompletionWriterOptions options_;
  std::string prefix_;
  std::vector<std::string> prompt_ids_json_;
  std::vector<CompletionLogprobs> logprobs_;
};

struct CompletionChoice {
  CompletionPiece output;  // the whole text, prompt included with echo
  std::vector<int32_t> prompt_ids;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
};

std::string completion_response_json(const CompletionWriterOptions& options,
                                     const std::vector<CompletionChoice>& choices,
                                     const Usage& usage);

}  // namespace weft::api
