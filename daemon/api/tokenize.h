// POST /tokenize and /detokenize: the union of the shapes that other servers use.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "api/chat_request.h"
#include "api/parsed.h"
#include "api/policy.h"
#include "base/json_value.h"

namespace weft::api {

struct TokenizeRequest {
  std::string model;
  std::variant<std::string, ChatRequest>
      input;  // `prompt` (special tokens recognised), or `messages`
  bool add_special_tokens = true;
  bool add_generation_prompt = true;
  bool return_token_strs = false;
};
// `model` may be absent here.
Parsed<TokenizeRequest> parse_tokenize(const JsonValue& body, const ApiPolicy& policy);
// `token_strs` (one per token) is null when the client did not ask for it.
std::string tokenize_response_json(const std::vector<int32_t>& tokens, int64_t max_model_len,
                                   const std::vector<std::string>* token_strs);

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
  bool skip_special_tokens = false;
};
Parsed<DetokenizeRequest> parse_detokenize(const JsonValue& body, const ApiPolicy& policy);
std::string detokenize_response_json(std::string_view text);

}  // namespace weft::api
