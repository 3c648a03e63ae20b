// Rank files: whatever the bytes, parsing ends in a table that fulfils its promises or in an error
// with a message.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/tiktoken.h"

namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto ranks = weft::text::parse_rank_file(text);
  if (!ranks.ok()) {
    require(!ranks.error().message.empty());
    return 0;
  }
  for (int32_t id = 0; id < ranks->id_end(); ++id) require(ranks->find(ranks->bytes(id)) == id);
  auto made =
      weft::text::TiktokenTokenizer::create(std::move(ranks).value(), weft::JsonValue::object());
  require(made.ok());
  const std::string_view sample = text.substr(0, 2000);
  std::string joined;
  for (const int32_t id : made.value()->encode(sample)) joined += made.value()->token_bytes(id);
  require(joined == sample);
  return 0;
}
