// Arbitrary bytes as a request body: JSON reader, then every parser and converter of the api room.
// Must not crash, and an accepted value must survive a round trip through its own text.
#include <cstdlib>

#include "api/anthropic.h"
#include "api/parse_chat.h"
#include "api/parse_completion.h"
#include "api/responses.h"
#include "api/tokenize.h"
#include "base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto body = api::parse_body(text);
  if (!body.ok()) return 0;
  const std::string again = dump_json(body.value());
  const auto reread = parse_json(again);
  if (!reread.ok() || !(*reread == body.value())) std::abort();

  api::ApiPolicy policy;
  policy.vocab_size = 163840;
  policy.model_required = false;
  for (auto sampling : {api::SamplingPolicy::kHonour, api::SamplingPolicy::kReject}) {
    policy.sampling_policy = sampling;
    if (const auto chat = api::parse_chat_request(body.value(), policy); chat.ok())
      (void)api::unsupported_reason(chat.value(), {});
    else if (chat.error().message.empty() || !is_valid_utf8(chat.error().message))
      std::abort();
  }
  (void)api::parse_completion_request(body.value(), policy);
  (void)api::parse_tokenize(body.value(), policy);
  (void)api::parse_detokenize(body.value(), policy);
  if (const auto chat = api::anthropic_to_chat(body.value()); chat.ok())
    (void)api::parse_chat_request(chat.value(), policy);
  if (const auto chat = api::responses_to_chat(body.value()); chat.ok())
    (void)api::parse_chat_request(chat.value(), policy);
  return 0;
}
