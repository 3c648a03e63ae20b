// From generated tokens to deltas: the parsers of every output format behind one interface, with
// stop strings applied to the content. Concatenating the deltas of a choice gives the non-streaming
// message, however the tokens were cut.
//
// One parser per choice, used by the one thread that owns the choice. The tokenizer must outlive
// it.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/delta.h"
#include "text/k3_lexer.h"
#include "text/k3_machine.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace weft::text {

struct StopOptions {
  std::vector<std::string> strings;
  bool include_in_output = false;
};

// Applies stop strings to the content of a delta stream. Other deltas end a stretch of content:
// what was held is let go before them, so the order of things stays. After a match everything is
// dropped.
class ContentStops {
 public:
  ContentStops() = default;
  explicit ContentStops(StopOptions options)
      : matcher_(std::move(options.strings), options.include_in_output) {}

  std::vector<api::Delta> apply(std::vector<api::Delta> deltas);
  std::vector<api::Delta> finish();
  bool matched() const { return matcher_.matched(); }
  std::string_view match() const { return matcher_.match(); }

 private:
  struct Entry {
    size_t begin;
    size_t end;
    api::TokenLogprob logprob;
  };
  void content(api::Delta delta, std::vector<api::Delta>* out);
  void release(std::string text, std::vector<api::Delta>* out);

  StopMatcher matcher_;
  std::deque<Entry> entries_;  // in bytes of content since the start
  size_t fed_ = 0;
  size_t released_ = 0;
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;

  // `logprobs` is empty, or has one entry per id.
  virtual std::vector<api::Delta> feed(std::span<const int32_t> ids,
                                       std::span<const api::TokenLogprob> logprobs = {}) = 0;
  // Once, at the end. After a stop string the reason must be kStopString.
  virtual std::vector<api::Delta> finish(EndReason reason, api::FinishReason* finish_reason) = 0;

  // A stop string was found: nothing more will come out, and the request should be cancelled.
  bool stopped() const { return stops_.matched(); }
  std::string_view stop_string() const { return stops_.match(); }
  virtual int64_t reasoning_tokens() const { return 0; }
  // One entry per tool call that was announced.
  virtual std::vector<bool> calls_complete() const { return {}; }

 protected:
  explicit OutputParser(StopOptions stops) : stops_(std::move(stops)) {}
  std::vector<api::Delta> finish_stops(std::vector<api::Delta> last);
  ContentStops stops_;
};

// K3 chat output, as tokens.
class K3OutputParser final : public OutputParser {
 public:
  K3OutputParser(const Tokenizer& tokenizer, const K3Format& format, const K3ParserOptions& options,
                 StopOptions stops = {});
  std::vector<api::Delta> feed(std::span<const int32_t> ids,
                               std::span<const api::TokenLogprob> logprobs = {}) override;
  std::vector<api::Delta> finish(EndReason reason, api::FinishReason* finish_reason) override;
  int64_t reasoning_tokens() const override { return reasoning_tokens_; }
  std::vector<bool> calls_complete() const override { return machine_.calls_complete(); }
  // Special tokens that are not part of the format (media, reserved, ...): dropped, worth a log
  // line of the caller.
  int64_t dropped_specials() const { return dropped_specials_; }

 private:
  void token(int32_t id, const api::TokenLogprob* logprob);
  void flush_bytes();

  const Tokenizer& tokenizer_;
  K3Markers markers_;
  std::vector<int32_t> stop_ids_;
  K3Machine machine_;
  Utf8Stream utf8_;
  int64_t reasoning_tokens_ = 0;
  int64_t dropped_specials_ = 0;
};

// K3 chat output, as text.
class K3TextParser {
 public:
  explicit K3TextParser(const K3ParserOptions& options, StopOptions stops = {});
  std::vector<api::Delta> feed(std::string_view bytes);
  std::vector<api::Delta> finish(EndReason reason, api::FinishReason* finish_reason);
  bool stopped() const { return stops_.matched(); }
  const std::vector<bool>& calls_complete() const { return machine_.calls_complete(); }

 private:
  K3Machine machine_;
  K3Lexer lexer_{&machine_};
  Utf8Stream utf8_;
  ContentStops stops_;
};

// Raw text: /v1/completions, and models without a chat format. Everything is content.
class PlainParser final : public OutputParser {
 public:
  PlainParser(const Tokenizer& tokenizer, bool skip_special_tokens, StopOptions stops = {})
      : OutputParser(std::move(stops)), tokenizer_(tokenizer), skip_special_(skip_special_tokens) {}
  std::vector<api::Delta> feed(std::span<const int32_t> ids,
                               std::span<const api::TokenLogprob> logprobs = {}) override;
  std::vector<api::Delta> finish(EndReason reason, api::FinishReason* finish_reason) override;

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  Utf8Stream utf8_;
  std::vector<api::TokenLogprob> pending_;  // of tokens whose code point is not complete
};

// The message of a non-streaming response, from the same deltas.
struct ParsedMessage {
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };
  std::string reasoning;  // empty = leave the field out
  std::string content;
  bool content_is_null = false;  // there are calls, and nothing but white space was said
  std::vector<Call> tool_calls;  // complete ones only
  std::vector<api::TokenLogprob> logprobs;
};

class MessageBuilder {
 public:
  void add(std::span<const api::Delta> deltas);
  // `calls_complete` as the parser reports it after finish.
  ParsedMessage finish(const std::vector<bool>& calls_complete);

 private:
  ParsedMessage message_;
};

}  // namespace weft::text
