#include "text/output_parser.h"

#include <algorithm>

#include "text/unicode.h"

namespace weft::text {

using api::Delta;
using api::FinishReason;
using api::TokenLogprob;

// ---- stop strings ----

void ContentStops::release(std::string text, std::vector<Delta>* out) {
  released_ += text.size();
  Delta delta{Delta::Kind::kContent, 0, {}, std::move(text), {}};
  // A token that a match cuts in two stays with the part that is shown.
  while (!entries_.empty() &&
         (entries_.front().end <= released_ || (matched() && entries_.front().begin < released_))) {
    delta.logprobs.push_back(std::move(entries_.front().logprob));
    entries_.pop_front();
  }
  if (!delta.text.empty() || !delta.logprobs.empty()) out->push_back(std::move(delta));
}

void ContentStops::content(Delta delta, std::vector<Delta>* out) {
  const size_t end = fed_ + delta.text.size();
  size_t at = fed_;
  for (size_t i = 0; i < delta.logprobs.size(); ++i) {
    // Replaced bytes change lengths; the last token of a delta ends where its text ends.
    const bool last = i + 1 == delta.logprobs.size();
    const size_t next = last ? end : std::min(end, at + delta.logprobs[i].bytes.size());
    entries_.push_back({at, next, std::move(delta.logprobs[i])});
    at = next;
  }
  fed_ = end;
  release(matcher_.feed(delta.text), out);
}

std::vector<Delta> ContentStops::apply(std::vector<Delta> deltas) {
  if (!matcher_.active()) return deltas;
  std::vector<Delta> out;
  for (Delta& delta : deltas) {
    if (matched()) break;
    if (delta.kind == Delta::Kind::kContent) {
      content(std::move(delta), &out);
    } else {
      release(matcher_.flush(), &out);
      out.push_back(std::move(delta));
    }
  }
  return out;
}

std::vector<Delta> ContentStops::finish() {
  std::vector<Delta> out;
  if (matcher_.active() && !matched()) release(matcher_.flush(), &out);
  return out;
}

std::vector<Delta> OutputParser::finish_stops(std::vector<Delta> last) {
  std::vector<Delta> out = stops_.apply(std::move(last));
  for (Delta& delta : stops_.finish()) out.push_back(std::move(delta));
  return out;
}

// ---- K3, tokens ----

K3OutputParser::K3OutputParser(const Tokenizer& tokenizer, const K3Format& format,
                               const K3ParserOptions& options, StopOptions stops)
    : OutputParser(std::move(stops)),
      tokenizer_(tokenizer),
      markers_(format.markers()),
      stop_ids_(format.stop_ids()),
      machine_(options) {}

void K3OutputParser::flush_bytes() {
  if (!utf8_.pending()) return;
  std::string text;
  utf8_.flush(&text);
  machine_.text(text);
}

void K3OutputParser::token(int32_t id, const TokenLogprob* logprob) {
  if (machine_.state() == K3Machine::State::kThink) ++reasoning_tokens_;
  const auto marker = [&](K3Machine::Marker m) {
    flush_bytes();  // structure cannot be in the middle of a code point
    if (logprob != nullptr) machine_.logprob(*logprob);
    machine_.marker(m);
  };
  if (id == markers_.open) return marker(K3Machine::Marker::kOpenTag);
  if (id == markers_.close) return marker(K3Machine::Marker::kCloseTag);
  if (id == markers_.sep) return marker(K3Machine::Marker::kTagEnd);
  if (std::binary_search(stop_ids_.begin(), stop_ids_.end(), id))
    return marker(K3Machine::Marker::kMessageEnd);
  if (tokenizer_.is_special(id)) {
    flush_bytes();
    ++dropped_specials_;
    return;
  }
  if (logprob != nullptr) machine_.logprob(*logprob);
  std::string text;
  utf8_.feed(tokenizer_.token_bytes(id), &text);
  machine_.text(text);
}

std::vector<Delta> K3OutputParser::feed(std::span<const int32_t> ids,
                                        std::span<const TokenLogprob> logprobs) {
  for (size_t i = 0; i < ids.size(); ++i)
    token(ids[i], i < logprobs.size() ? &logprobs[i] : nullptr);
  return stops_.apply(machine_.take());
}

std::vector<Delta> K3OutputParser::finish(EndReason reason, FinishReason* finish_reason) {
  flush_bytes();
  *finish_reason = machine_.finish(stopped() ? EndReason::kStopString : reason);
  return finish_stops(machine_.take());
}

// ---- K3, text ----

K3TextParser::K3TextParser(const K3ParserOptions& options, StopOptions stops)
    : machine_(options), stops_(std::move(stops)) {}

std::vector<Delta> K3TextParser::feed(std::string_view bytes) {
  std::string text;
  utf8_.feed(bytes, &text);
  lexer_.feed(text);
  return stops_.apply(machine_.take());
}

std::vector<Delta> K3TextParser::finish(EndReason reason, FinishReason* finish_reason) {
  std::string text;
  utf8_.flush(&text);
  lexer_.feed(text);
  lexer_.finish();
  *finish_reason = machine_.finish(stopped() ? EndReason::kStopString : reason);
  std::vector<Delta> out = stops_.apply(machine_.take());
  for (Delta& delta : stops_.finish()) out.push_back(std::move(delta));
  return out;
}

// ---- plain ----

std::vector<Delta> PlainParser::feed(std::span<const int32_t> ids,
                                     std::span<const TokenLogprob> logprobs) {
  std::vector<Delta> out;
  Delta delta;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i < logprobs.size()) pending_.push_back(logprobs[i]);
    if (skip_special_ && tokenizer_.is_special(ids[i])) {
      // No text, but an entry: log-probabilities stay in step with the token ids.
      if (i < logprobs.size()) pending_.back().bytes.clear();
      continue;
    }
    const size_t before = delta.text.size();
    utf8_.feed(tokenizer_.token_bytes(ids[i]), &delta.text);
    if (delta.text.size() == before) continue;
    std::move(pending_.begin(), pending_.end(), std::back_inserter(delta.logprobs));
    pending_.clear();
  }
  if (!delta.text.empty()) out.push_back(std::move(delta));
  return stops_.apply(std::move(out));
}

std::vector<Delta> PlainParser::finish(EndReason reason, FinishReason* finish_reason) {
  std::vector<Delta> out;
  Delta delta;
  utf8_.flush(&delta.text);
  delta.logprobs = std::exchange(pending_, {});
  if (!delta.text.empty() || !delta.logprobs.empty()) out.push_back(std::move(delta));
  out = finish_stops(std::move(out));
  *finish_reason = stopped() || reason == EndReason::kStop || reason == EndReason::kStopString
                       ? FinishReason::kStop
                   : reason == EndReason::kLength ? FinishReason::kLength
                                                  : FinishReason::kAbort;
  return out;
}

// ---- messages ----

void MessageBuilder::add(std::span<const Delta> deltas) {
  for (const Delta& delta : deltas) {
    switch (delta.kind) {
      case Delta::Kind::kReasoning:
        message_.reasoning += delta.text;
        break;
      case Delta::Kind::kContent:
        message_.content += delta.text;
        message_.logprobs.insert(message_.logprobs.end(), delta.logprobs.begin(),
                                 delta.logprobs.end());
        break;
      case Delta::Kind::kToolOpen:
        message_.tool_calls.push_back({delta.id, delta.text, {}});
        break;
      case Delta::Kind::kToolArguments:
        message_.tool_calls[static_cast<size_t>(delta.call_index)].arguments += delta.text;
        break;
    }
  }
}

ParsedMessage MessageBuilder::finish(const std::vector<bool>& calls_complete) {
  ParsedMessage out = std::exchange(message_, {});
  size_t kept = 0;
  for (size_t i = 0; i < out.tool_calls.size(); ++i)
    if (i < calls_complete.size() && calls_complete[i]) {
      if (kept != i) out.tool_calls[kept] = std::move(out.tool_calls[i]);
      ++kept;
    }
  out.tool_calls.resize(kept);
  out.content_is_null = !out.tool_calls.empty() && is_blank(out.content);
  return out;
}

}  // namespace weft::text
