// Segments to ids, and what the ids of a prompt say about the start of the answer.
#include "text/k3_format.h"

#include <algorithm>

#include "text/k3_names.h"

namespace weft::text {

Result<K3Markers> K3Markers::of(const Tokenizer& tokenizer) {
  K3Markers m;
  const std::pair<std::string_view, int32_t*> wanted[] = {{kOpen, &m.open},
                                                          {kClose, &m.close},
                                                          {kSep, &m.sep},
                                                          {kEndOfMsg, &m.end_of_msg},
                                                          {kMediaBegin, &m.media_begin},
                                                          {kMediaContent, &m.media_content},
                                                          {kMediaEnd, &m.media_end},
                                                          {kMediaPad, &m.media_pad}};
  for (const auto& [name, place] : wanted) {
    const auto id = tokenizer.special_id(name);
    if (!id)
      return make_error(ErrorCode::kInvalid,
                        "the tokenizer has no special token {}; the K3 chat format needs it", name);
    *place = *id;
  }
  return m;
}

Result<K3Format> K3Format::create(const Tokenizer& tokenizer) {
  K3Format format;
  format.tokenizer_ = &tokenizer;
  WEFT_ASSIGN(format.markers_, K3Markers::of(tokenizer));
  for (const std::string_view name :
       {kOpen, kClose, kSep, kEndOfMsg, kMediaBegin, kMediaContent, kMediaEnd, kMediaPad})
    format.specials_.add(name, *tokenizer.special_id(name));

  // The segments every prompt repeats. What is not listed is encoded each time; the result is the
  // same.
  for (const char* constant : {"message",
                               "think",
                               "response",
                               "tools",
                               "call",
                               "argument",
                               "json",
                               " role",
                               " type",
                               " name",
                               " tool",
                               " index",
                               " key",
                               "=\"",
                               "\"",
                               "system",
                               "user",
                               "assistant",
                               "tool",
                               "tool-declare",
                               "thinking-effort",
                               "tool-choice",
                               "response-format",
                               "string",
                               "number",
                               "boolean",
                               "null",
                               "array",
                               "object",
                               "1",
                               "2",
                               "3",
                               "4",
                               "5",
                               "6",
                               "7",
                               "8",
                               "9"})
    format.constants_.emplace(constant, tokenizer.encode(constant));
  for (const char* effort : {"low", "high", "max"}) {
    const std::string body = std::string(kEffortBody) + effort + "`.";
    format.constants_.emplace(body, tokenizer.encode(body));
  }
  for (const std::string_view body : {kToolsRequired, kToolsForbidden})
    format.constants_.emplace(body, tokenizer.encode(body));

  format.stop_ids_ = tokenizer.eos_ids();
  format.stop_ids_.push_back(format.markers_.end_of_msg);
  std::sort(format.stop_ids_.begin(), format.stop_ids_.end());
  format.stop_ids_.erase(std::unique(format.stop_ids_.begin(), format.stop_ids_.end()),
                         format.stop_ids_.end());
  return format;
}

std::vector<int32_t> K3Format::encode(std::span<const Segment> segments) const {
  std::vector<int32_t> ids;
  encode_into(segments, &ids);
  return ids;
}

void K3Format::encode_into(std::span<const Segment> segments, std::vector<int32_t>* ids) const {
  const auto ordinary = [&](std::string_view text) {
    if (text.empty()) return;
    if (text.size() <= 512)
      if (const auto it = constants_.find(text); it != constants_.end()) {
        ids->insert(ids->end(), it->second.begin(), it->second.end());
        return;
      }
    tokenizer_->encode_into(text, false, ids);
  };
  for (const Segment& segment : segments) {
    size_t at = 0;
    SpecialMatcher::Match match;
    while (segment.special && specials_.find(segment.text, at, &match)) {
      ordinary(std::string_view(segment.text).substr(at, match.begin - at));
      ids->push_back(match.id);
      at = match.end;
    }
    ordinary(std::string_view(segment.text).substr(at));
  }
}

Result<K3Prompt> K3Format::prompt(const api::ChatRequest& request,
                                  std::span<const ImageInfo> images,
                                  const RenderOptions& options) const {
  size_t head = 0;
  WEFT_ASSIGN(const std::vector<Segment> segments, render_k3(request, images, options, &head));
  // Segments never merge, so the ids of the head are the head of the ids.
  K3Prompt out;
  encode_into(std::span(segments).first(head), &out.ids);
  const size_t boundary = out.ids.size();
  encode_into(std::span(segments).subspan(head), &out.ids);
  if (boundary > 0 && boundary < out.ids.size())
    out.boundaries.push_back(static_cast<uint32_t>(boundary));
  return out;
}

Result<std::vector<int32_t>> K3Format::prompt_ids(const api::ChatRequest& request,
                                                  std::span<const ImageInfo> images,
                                                  const RenderOptions& options) const {
  WEFT_ASSIGN(K3Prompt made, prompt(request, images, options));
  return std::move(made.ids);
}

StartState K3Format::start_state(std::span<const int32_t> ids) const {
  constexpr size_t kTagMax = 8;
  // The text of a continued message may follow the tag; any other marker means that nothing is
  // open.
  size_t open = ids.size();
  while (open > 0) {
    const int32_t id = ids[--open];
    if (id == markers_.open) break;
    if (id == markers_.close || id == markers_.end_of_msg) return StartState::kIdle;
  }
  std::string name;
  for (size_t i = open + 1; i < ids.size() && i <= open + kTagMax + 1; ++i) {
    if (ids[i] == markers_.sep) {
      if (name == "think") return StartState::kThink;
      if (name == "response") return StartState::kResponse;
      return StartState::kIdle;
    }
    name += tokenizer_->token_bytes(ids[i]);
  }
  return StartState::kIdle;
}

}  // namespace weft::text
