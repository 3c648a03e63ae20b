// From the bytes of a request body to something an engine can run: parse, look the model up,
// render, tokenise, check the length. Pure work for the fast lane: reads only immutable state, so
// it never needs the loop.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "api/chat_request.h"
#include "api/parsed.h"
#include "api/policy.h"
#include "api/tokenize.h"
#include "gateway/served_model.h"
#include "wire/weft.pb.h"

namespace weft::gateway {

// What a replica has told about itself, copied on the loop thread for use on a lane.
struct ReplicaFacts {
  bool ready = false;
  std::string not_ready_reason;
  int32_t vocab_size = 0;
  int64_t max_context = 0;
  bool images = false;
  int64_t max_tokens_default = 131'072;
  bool raw_special_tokens = true;
};

struct PrepareInput {
  std::string body;
  std::shared_ptr<const api::ApiPolicy> policy;
  // Every served name.
  std::map<std::string, std::pair<std::shared_ptr<const ServedModel>, ReplicaFacts>> models;
};

struct PreparedChat {
  std::shared_ptr<const ServedModel> model;
  api::ChatRequest request;
  std::vector<int32_t> prompt;
  std::vector<uint32_t> boundaries;  // of the prompt, for the prefix cache
  std::vector<wire::Media> media;
  uint32_t max_tokens = 0;
};

struct PreparedCompletion {
  std::shared_ptr<const ServedModel> model;
  api::CompletionRequest request;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<uint32_t> max_tokens;  // per prompt
};

api::Parsed<PreparedChat> prepare_chat(const PrepareInput& input);
api::Parsed<PreparedCompletion> prepare_completion(const PrepareInput& input);
// Whole response bodies.
api::Parsed<std::string> answer_tokenize(const PrepareInput& input);
api::Parsed<std::string> answer_detokenize(const PrepareInput& input);

// The sampling part of a Generate message; `sample` shifts the seed of each of n samples.
wire::Sampling to_wire(const api::SamplingParams& params, const std::vector<int32_t>& stop_ids,
                       uint32_t max_tokens, int32_t sample, uint64_t fallback_seed);

}  // namespace weft::gateway
