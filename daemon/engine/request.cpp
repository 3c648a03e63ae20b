#include "engine/request.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace weft::engine {
namespace {

constexpr int kStopIdsMax = 2048;  // the client's 1,024 and those that end every answer
constexpr int kMediaMax = 1024;

Status check_range(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return {};  // false for NaN
  return make_error(ErrorCode::kInvalid, "{} must lie in {}..{}, got {}", name, low, high, value);
}

Status check_id(const char* name, int32_t id, uint32_t vocab) {
  if (id >= 0 && static_cast<uint32_t>(id) < vocab) return {};
  return make_error(ErrorCode::kInvalid, "{} must lie in 0..{}, got {}", name, vocab - 1, id);
}

Status check_logprobs(const char* name, int32_t n) {
  if (n >= -1 && n <= kTopLogprobsMax) return {};
  return make_error(ErrorCode::kInvalid, "{} must lie in -1..{}, got {}", name, kTopLogprobsMax, n);
}

Result<SamplingParams> parse_sampling(const wire::Sampling& s, uint32_t vocab) {
  constexpr float kPenaltyMax = 100.0f;
  SamplingParams p;
  p.temperature = s.temperature();
  p.top_p = s.top_p() == 0.0f ? 1.0f : s.top_p();  // unset
  p.top_k = s.top_k();
  p.min_p = s.min_p();
  p.presence_penalty = s.presence_penalty();
  p.frequency_penalty = s.frequency_penalty();
  p.repetition_penalty = s.repetition_penalty() == 0.0f ? 1.0f : s.repetition_penalty();  // unset
  p.seed = s.seed();
  p.min_tokens = s.min_tokens();
  p.max_tokens = s.max_tokens();
  p.logprobs = s.logprobs();
  p.prompt_logprobs = s.prompt_logprobs();
  WEFT_TRY(check_range("temperature", p.temperature, 0.0f, 1e6f));
  WEFT_TRY(check_range("top_p", p.top_p, 0.0f, 1.0f));
  WEFT_TRY(check_range("min_p", p.min_p, 0.0f, 1.0f));
  WEFT_TRY(check_range("presence_penalty", p.presence_penalty, -kPenaltyMax, kPenaltyMax));
  WEFT_TRY(check_range("frequency_penalty", p.frequency_penalty, -kPenaltyMax, kPenaltyMax));
  WEFT_TRY(check_range("repetition_penalty", p.repetition_penalty, 1e-6f, 1e6f));
  WEFT_TRY(check_logprobs("logprobs", p.logprobs));
  WEFT_TRY(check_logprobs("prompt_logprobs", p.prompt_logprobs));
  if (p.top_k < 0) p.top_k = 0;  // -1 is the usual word for "off"
  if (s.bias_ids_size() != s.bias_values_size()) {
    return make_error(ErrorCode::kInvalid, "logit_bias has {} ids and {} values", s.bias_ids_size(),
                      s.bias_values_size());
  }
  for (int i = 0; i < s.bias_ids_size(); ++i) {
    WEFT_TRY(check_id("logit_bias id", s.bias_ids(i), vocab));
    WEFT_TRY(check_range("logit_bias value", s.bias_values(i), -1e6f, 1e6f));
    p.bias.emplace_back(s.bias_ids(i), s.bias_values(i));
  }
  if (s.stop_ids_size() > kStopIdsMax) {
    return make_error(ErrorCode::kInvalid, "stop_ids has {} entries, at most {} are allowed",
                      s.stop_ids_size(), kStopIdsMax);
  }
  for (const int32_t id : s.stop_ids()) {
    WEFT_TRY(check_id("stop id", id, vocab));
    p.stop_ids.push_back(id);
  }
  return p;
}

Result<MediaInput> parse_media(const wire::Media& m, const weft_model_info& model) {
  const uint64_t t = m.grid_t(), h = m.grid_h(), w = m.grid_w(), merge = model.media_merge;
  constexpr uint64_t kSideMax = 1u << 14;
  if (t == 0 || h == 0 || w == 0 || t > kSideMax || h > kSideMax || w > kSideMax || merge == 0 ||
      h % merge != 0 || w % merge != 0) {
    return make_error(
        ErrorCode::kInvalid,
        "media grid must be 1..{} patches per side, height and width multiples of {}, "
        "got {} x {} x {}",
        kSideMax, merge, t, h, w);
  }
  const uint64_t floats = t * h * w * model.media_patch_values;
  if (m.patches().size() != floats * sizeof(float)) {
    return make_error(ErrorCode::kInvalid,
                      "media of grid {} x {} x {} needs {} bytes of patches, got {}", t, h, w,
                      floats * sizeof(float), m.patches().size());
  }
  if (m.rows() != (h / merge) * (w / merge)) {
    return make_error(ErrorCode::kInvalid, "media of grid {} x {} gives {} rows, the prompt has {}",
                      h, w, (h / merge) * (w / merge), m.rows());
  }
  MediaInput out;
  out.grid_t = m.grid_t();
  out.grid_h = m.grid_h();
  out.grid_w = m.grid_w();
  out.first = m.first_position();
  out.rows = m.rows();
  out.patches.resize(floats);
  std::memcpy(out.patches.data(), m.patches().data(), m.patches().size());
  const std::string grid = fmt::format("{} {} {} ", out.grid_t, out.grid_h, out.grid_w);
  out.content = cache::root_key("image", grid, m.patches());
  return out;
}

Status parse_all_media(const wire::Generate& message, const weft_model_info& model, Request* out) {
  if (message.media_size() == 0) return {};
  if (model.accepts_media == 0) {
    return Error(ErrorCode::kUnsupported, "this model does not accept images");
  }
  if (message.media_size() > kMediaMax) {
    return make_error(ErrorCode::kInvalid, "{} images, at most {} are allowed",
                      message.media_size(), kMediaMax);
  }
  uint64_t end = 0;
  for (const wire::Media& m : message.media()) {
    WEFT_ASSIGN(MediaInput input, parse_media(m, model));
    if (input.first < end || uint64_t{input.first} + input.rows > out->prompt.size()) {
      return make_error(ErrorCode::kInvalid,
                        "media rows {}..{} overlap others or leave the prompt of {} tokens",
                        input.first, uint64_t{input.first} + input.rows, out->prompt.size());
    }
    end = uint64_t{input.first} + input.rows;
    for (uint64_t i = input.first; i < end && model.media_token >= 0; ++i) {
      if (out->prompt[i] != model.media_token) {
        return make_error(ErrorCode::kInvalid,
                          "prompt token {} must be the media placeholder {}, got {}", i,
                          model.media_token, out->prompt[i]);
      }
    }
    out->media.push_back(std::move(input));
  }
  return {};
}

}  // namespace

namespace {

// Beyond this many useful lengths a prompt would be cut into pieces that are too small.
constexpr int kBoundariesMax = 64;

Status parse_cache_hints(const wire::Generate& message, Request* out) {
  if (message.boundaries_size() > kBoundariesMax) {
    return make_error(ErrorCode::kInvalid, "{} boundaries, at most {} are allowed",
                      message.boundaries_size(), kBoundariesMax);
  }
  uint32_t last = 0;
  for (const uint32_t b : message.boundaries()) {
    if (b <= last || b >= out->prompt.size()) {
      return make_error(ErrorCode::kInvalid,
                        "boundaries must rise and lie inside the prompt of {} tokens, got {} after "
                        "{}",
                        out->prompt.size(), b, last);
    }
    last = b;
    out->boundaries.push_back(b);
  }
  out->tenant = message.tenant();
  out->cache_salt = message.cache_salt();
  out->tenant_weight = std::max(1u, message.tenant_weight());
  out->priority = message.priority();
  out->deadline_ms = message.deadline_ms();
  out->no_cache = message.no_cache();
  return {};
}

}  // namespace

uint64_t Request::bytes() const {
  uint64_t sum = prompt.size() * sizeof(int32_t);
  for (const MediaInput& m : media) sum += m.patches.size() * sizeof(float);
  return sum;
}

Result<Request> parse_generate(const wire::Generate& message, const weft_model_info& model,
                               uint32_t max_context) {
  if (!message.grammar_json().empty()) {
    return Error(ErrorCode::kUnsupported,
                 "constrained decoding is not supported by this worker: send the request without a "
                 "grammar");
  }
  if (message.prompt_size() == 0) {
    return Error(ErrorCode::kInvalid, "the prompt must have at least one token");
  }
  const auto length = static_cast<uint64_t>(message.prompt_size());
  if (length >= max_context) {
    return make_error(
        ErrorCode::kInvalid,
        "the prompt has {} tokens; this worker can hold {} tokens of prompt and output "
        "together: shorten the prompt",
        length, max_context);
  }
  Request out;
  out.id = message.id();
  for (const int32_t id : message.prompt()) WEFT_TRY(check_id("prompt token", id, model.vocab));
  out.prompt.assign(message.prompt().begin(), message.prompt().end());
  WEFT_ASSIGN(out.sampling, parse_sampling(message.sampling(), model.vocab));
  WEFT_TRY(parse_all_media(message, model, &out));
  WEFT_TRY(parse_cache_hints(message, &out));
  return out;
}

const char* error_word(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
    case ErrorCode::kNotFound:
    case ErrorCode::kCorrupt:
    case ErrorCode::kPermission:
      return "invalid";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kUnavailable:
    case ErrorCode::kTimeout:
    case ErrorCode::kCancelled:
      return "unavailable";
    case ErrorCode::kIo:
    case ErrorCode::kPeer:
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

}  // namespace weft::engine
