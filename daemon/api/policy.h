// ApiPolicy: what the operator decided about the API of one gateway. Built from the configuration,
// read by all parsers and writers, never written while in use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::api {

enum class SamplingPolicy {
  kHonour,  // apply what the client sends, within its range
  kIgnore,  // accept, but use the model's fixed values
  kReject   // refuse what the hosted service refuses
};

struct ApiPolicy {
  std::vector<std::string>
      models;  // served names and aliases; others are 404. Empty: any name is accepted
  bool model_required = true;  // a body without `model` is 400

  SamplingPolicy sampling_policy = SamplingPolicy::kHonour;
  double default_temperature = 1.0;
  double default_top_p = 0.95;
  bool strict_effort = false;

  int64_t max_tokens_limit = 1'048'576;  // larger requests are clamped to it
  int64_t completion_max_tokens_default = 16;
  int32_t vocab_size = 0;  // 0: unknown, token ids are only checked to be non-negative
  int32_t n_max = 128;
  int32_t logprobs_max = 20;
  size_t stop_strings_max = 16;
  size_t messages_max = 100'000;
  size_t prompts_max = 2'048;
  size_t prompt_tokens_max = 16u << 20;
  size_t images_max = 10;
  size_t image_bytes_max = 20u << 20;
  bool partial_messages =
      false;  // a last assistant message with `partial` is continued; off refuses it
  bool image_urls_http = false;  // http(s) image URLs need a fetcher; off refuses them

  bool usage_excludes_opener =
      true;  // prompt_tokens without the tokens that open the first channel
  int64_t opener_tokens = 3;
  bool usage_moonshot_fields = true;   // usage.cached_tokens at top level too
  bool usage_in_final_choice = false;  // usage inside the choice of a stream's finish chunk
  bool reasoning_alias = false;        // `reasoning` beside `reasoning_content`
};

// What the engine behind the gateway can do; see unsupported_reason.
struct EngineFeatures {
  bool n_choices = false;  // n > 1
  bool grammar = false;    // constrained decoding
  bool images = false;
};

}  // namespace weft::api
