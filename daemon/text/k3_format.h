// The prompt format of Kimi K3: a request becomes a list of segments, each encoded on its own. Only
// segments written by this code may hold special tokens; whatever a client sent is ordinary text,
// even when it spells a marker. The borders of the segments are part of the format: merging across
// them would give ids the model never saw.
//
// Immutable after creation; every function may be called from any thread (encode is slow-lane
// work).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat_request.h"
#include "base/result.h"
#include "text/special_matcher.h"
#include "text/tokenizer.h"

namespace weft::text {

struct Segment {
  std::string text;
  bool special = false;
  bool operator==(const Segment&) const = default;
};

// An image of the request in the order of the parts: original pixel size and the number of feature
// rows it becomes.
struct ImageInfo {
  int64_t width = 0;
  int64_t height = 0;
  int64_t rows = 0;
};

struct RenderOptions {
  bool generation_prompt = true;
  bool allow_partial = false;  // continue a final assistant message that says "partial"
};

// Ids of the structural tokens, looked up by name.
struct K3Markers {
  int32_t open = -1;
  int32_t close = -1;
  int32_t sep = -1;
  int32_t end_of_msg = -1;
  int32_t media_begin = -1;
  int32_t media_content = -1;
  int32_t media_end = -1;
  int32_t media_pad = -1;

  static Result<K3Markers> of(const Tokenizer& tokenizer);
};

// Errors are the client's (kInvalid) and begin with the path of the field. With no `images` at all,
// image parts become the text marker <|kimi_image_placeholder|>; otherwise there must be one entry
// per image part. `head_segments`: how many of them stand before the first user, assistant or tool
// message; 0 when there are neither tools nor a system message.
Result<std::vector<Segment>> render_k3(const api::ChatRequest& request,
                                       std::span<const ImageInfo> images,
                                       const RenderOptions& options = {},
                                       size_t* head_segments = nullptr);

// A prompt, and the lengths at which other requests are likely to leave it: the end of system
// message and tools. Ascending, between 0 and the prompt's length, neither included.
struct K3Prompt {
  std::vector<int32_t> ids;
  std::vector<uint32_t> boundaries;
};

// Where the model's own text begins, from the end of the prompt.
enum class StartState { kThink, kIdle, kResponse };

class K3Format {
 public:
  // kInvalid when the tokenizer lacks a marker. The tokenizer must outlive the format.
  static Result<K3Format> create(const Tokenizer& tokenizer);

  std::vector<int32_t> encode(std::span<const Segment> segments) const;
  // Render and encode in one go.
  Result<K3Prompt> prompt(const api::ChatRequest& request, std::span<const ImageInfo> images,
                          const RenderOptions& options = {}) const;
  Result<std::vector<int32_t>> prompt_ids(const api::ChatRequest& request,
                                          std::span<const ImageInfo> images,
                                          const RenderOptions& options = {}) const;
  StartState start_state(std::span<const int32_t> prompt_ids) const;

  const K3Markers& markers() const { return markers_; }
  // Ids that end the assistant's turn, ascending.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }

 private:
  void encode_into(std::span<const Segment> segments, std::vector<int32_t>* ids) const;

  const Tokenizer* tokenizer_ = nullptr;
  K3Markers markers_;
  SpecialMatcher specials_;  // the narrow set that rendering may produce
  std::map<std::string, std::vector<int32_t>, std::less<>> constants_;
  std::vector<int32_t> stop_ids_;
};

}  // namespace weft::text
