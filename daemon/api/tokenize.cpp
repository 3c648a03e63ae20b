#include "api/tokenize.h"

#include <fmt/format.h>

#include <iterator>

#include "api/errors.h"
#include "api/fields.h"
#include "api/parse_chat.h"
#include "api/parse_sampling.h"
#include "api/wire_json.h"
#include "base/check.h"

namespace weft::api {
namespace {

ApiPolicy without_model_rule(const ApiPolicy& policy) {
  ApiPolicy relaxed = policy;
  relaxed.model_required = false;
  return relaxed;
}

Check require_object(const JsonValue& body) {
  if (body.is_object()) return std::nullopt;
  return bad_request("", fmt::format("the body must be a JSON object, not {}", kind_name(body)));
}

}  // namespace

Parsed<TokenizeRequest> parse_tokenize(const JsonValue& body, const ApiPolicy& policy) {
  WEFT_API_TRY(require_object(body));
  const ApiPolicy relaxed = without_model_rule(policy);
  const Fields fields(body);
  TokenizeRequest request;
  WEFT_API_TRY(parse_model(body, relaxed, &request.model));
  WEFT_API_TRY(fields.boolean("add_special_tokens", &request.add_special_tokens));
  WEFT_API_TRY(fields.boolean("add_generation_prompt", &request.add_generation_prompt));
  WEFT_API_TRY(fields.boolean("return_token_strs", &request.return_token_strs));
  if (fields.get("messages") != nullptr) {
    auto chat = parse_chat_request(body, relaxed);
    if (!chat.ok()) return chat.error();
    request.input = std::move(chat.value());
    return request;
  }
  if (fields.get("prompt") == nullptr)
    return bad_request("prompt", "prompt or messages is required");
  std::string prompt;
  WEFT_API_TRY(fields.string("prompt", SIZE_MAX, &prompt));
  request.input = std::move(prompt);
  return request;
}

std::string tokenize_response_json(const std::vector<int32_t>& tokens, int64_t max_model_len,
                                   const std::vector<std::string>* token_strs) {
  std::string out =
      fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":", tokens.size(), max_model_len);
  append_token_ids(out, tokens);
  out += ",\"token_strs\":";
  if (token_strs == nullptr) {
    out += "null";
  } else {
    WEFT_CHECK(token_strs->size() == tokens.size());
    out += '[';
    for (size_t i = 0; i < token_strs->size(); ++i) {
      if (i > 0) out += ',';
      append_json_string(out, lossy_utf8((*token_strs)[i]));
    }
    out += ']';
  }
  out += '}';
  return out;
}

Parsed<DetokenizeRequest> parse_detokenize(const JsonValue& body, const ApiPolicy& policy) {
  WEFT_API_TRY(require_object(body));
  const Fields fields(body);
  DetokenizeRequest request;
  WEFT_API_TRY(parse_model(body, without_model_rule(policy), &request.model));
  WEFT_API_TRY(fields.boolean("skip_special_tokens", &request.skip_special_tokens));
  const JsonValue* tokens = nullptr;
  WEFT_API_TRY(fields.array("tokens", &tokens));
  if (tokens == nullptr) return bad_request("tokens", "tokens is required");
  if (tokens->items().size() > policy.prompt_tokens_max)
    return bad_request("tokens",
                       fmt::format("tokens holds more than {} ids", policy.prompt_tokens_max));
  request.tokens.reserve(tokens->items().size());
  for (const JsonValue& item : tokens->items()) {
    int32_t id = 0;
    WEFT_API_TRY(parse_token_id(item, policy, "tokens", &id));
    request.tokens.push_back(id);
  }
  return request;
}

std::string detokenize_response_json(std::string_view text) {
  std::string out = "{\"prompt\":";
  append_json_string(out, text);
  out += ",\"text\":";
  append_json_string(out, text);
  out += '}';
  return out;
}

}  // namespace weft::api
