// The internal stream between the output parser (text room) and the protocol writers (api room). Concatenating the deltas
// of a choice gives exactly the non-streaming message, however the token stream was cut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::api {

struct TokenLogprob {
  int32_t id = 0;
  std::string bytes;  // exact bytes of the token
  double logprob = 0.0;
  struct Alternative {
    int32_t id = 0;
    std::string bytes;
    double logprob = 0.0;
  };
  std::vector<Alternative> top;
};

struct Delta {
  enum class Kind { kReasoning, kContent, kToolOpen, kToolArguments };
  Kind kind = Kind::kContent;
  int32_t call_index = 0;    // kToolOpen, kToolArguments
  std::string id;            // kToolOpen: call id
  std::string text;          // text, or tool name for kToolOpen, or a piece of the arguments
  std::vector<TokenLogprob> logprobs;  // kContent, when asked for

  bool operator==(const Delta& o) const {
    return kind == o.kind && call_index == o.call_index && id == o.id && text == o.text;
  }
};

enum class FinishReason { kNone, kStop, kLength, kToolCalls, kAbort, kError };

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;
};

}  // namespace weft::api
