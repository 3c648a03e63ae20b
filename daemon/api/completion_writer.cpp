#include "api/completion_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "api/errors.h"
#include "api/wire_json.h"
#include "base/check.h"

namespace weft::api {
namespace {

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

std::string response_prefix(const ResponseHead& head) {
  std::string out = "{\"id\":";
  append_json_string(out, head.id);
  fmt::format_to(std::back_inserter(out),
                 ",\"object\":\"text_completion\",\"created\":{},\"model\":", head.created);
  append_json_string(out, head.model);
  out += ",\"choices\":[";
  return out;
}

void append_choice(std::string& out, int32_t index, const CompletionPiece& piece,
                   const char* finish, const StopReason& stop, CompletionLogprobs* logprobs) {
  fmt::format_to(std::back_inserter(out), "{{\"index\":{},\"text\":", index);
  append_json_string(out, piece.text);
  out += ",\"logprobs\":";
  if (logprobs == nullptr)
    out += "null";
  else
    logprobs->append(out, piece.logprobs);
  out += ",\"finish_reason\":";
  if (finish == nullptr)
    out += "null";
  else
    append_json_string(out, finish);
  append_stop_reason(out, stop);
}

void append_ids_field(std::string& out, const char* key, const std::vector<int32_t>& ids) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":", key);
  append_token_ids(out, ids);
}

}  // namespace

CompletionWriterOptions CompletionWriterOptions::from(const CompletionRequest& request,
                                                      const ApiPolicy& policy, ResponseHead head) {
  CompletionWriterOptions options;
  options.head = std::move(head);
  options.choices = static_cast<int32_t>(request.prompts.size()) * request.sampling.n;
  options.include_usage = request.stream.include_usage;
  options.continuous_usage = request.stream.continuous_usage;
  options.logprobs = request.sampling.logprobs;
  options.return_token_ids = request.return_token_ids;
  options.return_tokens_as_token_ids = request.return_tokens_as_token_ids;
  options.policy = policy;
  return options;
}

void CompletionLogprobs::append_top(std::string& out, const TokenLogprob& entry) const {
  if (entry.logprob != entry.logprob) {
    out += "null";
    return;
  }
  // The token itself, then its alternatives. Different ids may share one text: the first, likelier
  // one is kept.
  std::set<std::string> seen;
  const auto add = [&](const std::string& text, double logprob) {
    if (!seen.insert(text).second) return;
    if (seen.size() > 1) out += ',';
    append_json_string(out, text);
    out += ':';
    append_logprob(out, logprob);
  };
  out += '{';
  add(token_text(entry.id, entry.bytes, as_ids_), entry.logprob);
  for (size_t i = 0; i < entry.top.size() && static_cast<int32_t>(i) < alternatives_; ++i)
    add(token_text(entry.top[i].id, entry.top[i].bytes, as_ids_), entry.top[i].logprob);
  out += '}';
}

void CompletionLogprobs::append(std::string& out, const std::vector<TokenLogprob>& entries) {
  std::string offsets;
  out += "{\"tokens\":[";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out += ',';
    append_json_string(out, token_text(entries[i].id, entries[i].bytes, as_ids_));
  }
  out += "],\"token_logprobs\":[";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out += ',';
    append_logprob(out, entries[i].logprob);
  }
  out += "],\"top_logprobs\":[";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out += ',';
    append_top(out, entries[i]);
  }
  out += "],\"text_offset\":[";
  for (size_t i = 0; i < entries.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",", offset_);
    offset_ += count_code_points(entries[i].bytes);
  }
  out += "]}";
}

CompletionStreamWriter::CompletionStreamWriter(CompletionWriterOptions options)
    : options_(std::move(options)) {
  prefix_ = "data: " + response_prefix(options_.head);
  const auto count = static_cast<size_t>(options_.choices);
  prompt_ids_json_.resize(count);
  logprobs_.assign(count,
                   CompletionLogprobs(options_.logprobs, options_.return_tokens_as_token_ids));
}

void CompletionStreamWriter::set_prompt_ids(int32_t choice, const std::vector<int32_t>& ids) {
  WEFT_CHECK(choice >= 0 && choice < options_.choices);
  if (options_.return_token_ids)
    append_ids_field(prompt_ids_json_[static_cast<size_t>(choice)], "prompt_token_ids", ids);
}

void CompletionStreamWriter::chunk(int32_t choice, const CompletionPiece& piece, const char* finish,
                                   const StopReason& stop, const Usage& usage, std::string* out) {
  WEFT_CHECK(choice >= 0 && choice < options_.choices);
  const auto index = static_cast<size_t>(choice);
  const bool has_logprobs = options_.logprobs >= 0 && !piece.logprobs.empty();
  *out += prefix_;
  append_choice(*out, choice, piece, finish, stop, has_logprobs ? &logprobs_[index] : nullptr);
  if (options_.return_token_ids) append_ids_field(*out, "token_ids", piece.token_ids);
  *out += prompt_ids_json_[index];
  prompt_ids_json_[index].clear();
  *out += "}]";
  if (options_.continuous_usage) {
    *out += ",\"usage\":";
    append_usage(*out, reported_usage(usage, options_.policy, false), options_.policy);
  } else if (options_.include_usage) {
    *out += ",\"usage\":null";
  }
  *out += "}\n\n";
}

void CompletionStreamWriter::piece(int32_t choice, const CompletionPiece& piece, const Usage& usage,
                                   std::string* out) {
  chunk(choice, piece, nullptr, {}, usage, out);
}

void CompletionStreamWriter::finish(int32_t choice, const CompletionPiece& rest,
                                    FinishReason reason, const StopReason& stop, const Usage& usage,
                                    std::string* out) {
  chunk(choice, rest, finish_reason_text(reason), stop, usage, out);
}

void CompletionStreamWriter::end(const Usage& usage, std::string* out) {
  if (options_.include_usage) {
    *out += prefix_;
    *out += "],\"usage\":";
    append_usage(*out, reported_usage(usage, options_.policy, false), options_.policy);
    *out += "}\n\n";
  }
  *out += kSseDone;
}

void CompletionStreamWriter::error(const ApiError& error, std::string* out) {
  append_sse_data(*out, error_json(error));
  *out += kSseDone;
}

std::string completion_response_json(const CompletionWriterOptions& options,
                                     const std::vector<CompletionChoice>& choices,
                                     const Usage& usage) {
  std::string out = response_prefix(options.head);
  for (size_t i = 0; i < choices.size(); ++i) {
    const CompletionChoice& choice = choices[i];
    if (i > 0) out += ',';
    CompletionLogprobs logprobs(options.logprobs, options.return_tokens_as_token_ids);
    append_choice(out, static_cast<int32_t>(i), choice.output,
                  finish_reason_text(choice.finish_reason), choice.stop_reason,
                  options.logprobs >= 0 ? &logprobs : nullptr);
    if (options.return_token_ids) {
      append_ids_field(out, "token_ids", choice.output.token_ids);
      append_ids_field(out, "prompt_token_ids", choice.prompt_ids);
    }
    out += '}';
  }
  out += "],\"usage\":";
  append_usage(out, reported_usage(usage, options.policy, false), options.policy);
  out += '}';
  return out;
}

}  // namespace weft::api
