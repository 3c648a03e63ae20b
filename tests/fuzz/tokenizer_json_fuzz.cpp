// tokenizer.json documents: loading ends in a tokenizer that can encode anything, or in an error
// with a message.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/hf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto document = weft::parse_json(text);
  if (!document.ok()) return 0;
  auto made = weft::text::HfTokenizer::create(*document);
  if (!made.ok()) {
    if (made.error().message.empty()) std::abort();
    return 0;
  }
  const std::string_view sample = text.substr(0, 1000);
  for (const bool special : {false, true}) {
    auto ids = made.value()->encode(sample, special);
    made.value()->add_prompt_template(&ids);
    for (const int32_t id : ids) {
      if (id < 0) std::abort();
      (void)made.value()->token_bytes(id);
    }
  }
  return 0;
}
