// One generation request as the engine sees it: checked against the model, nothing of the wire left
// in it.
//
// parse_generate is the only door: whatever weftd sends, a Request that exists is safe to run (ids
// inside the vocabulary, media that fits the tower and the prompt, parameters in range, a prompt
// that fits the context). Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/cache/key.h"
#include "engine/sampler.h"
#include "weft/model.h"
#include "wire/weft.pb.h"

namespace weft::engine {

struct MediaInput {
  std::vector<float> patches;  // dropped once encoded
  uint32_t grid_t = 0, grid_h = 0, grid_w = 0;
  uint32_t first = 0;          // position of the first placeholder
  uint32_t rows = 0;           // placeholders
  cache::Key128 content;       // of grid and patches: images are equal when these are
  std::vector<float> encoded;  // [rows, hidden] once encoded; kept until the request ends
};

struct Request {
  uint64_t id = 0;
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  std::vector<MediaInput> media;  // by rising position

  std::string tenant;
  std::string cache_salt;
  uint32_t tenant_weight = 1;
  int32_t priority = 0;
  uint64_t deadline_ms = 0;          // from arrival to the first token; 0 = none
  std::vector<uint32_t> boundaries;  // lengths inside the prompt where later ones may go on
  bool no_cache = false;

  uint64_t bytes() const;  // what it costs to let it wait
};

// kInvalid names the field, what was expected and what came. max_context counts prompt and output
// together.
Result<Request> parse_generate(const wire::Generate& message, const weft_model_info& model,
                               uint32_t max_context);

// The word for error_code of a SequenceTokens or WorkerFault.
const char* error_word(ErrorCode code);

}  // namespace weft::engine
