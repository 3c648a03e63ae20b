// A safetensors file from anywhere. What is accepted must tile its data area, whatever the bytes.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/load/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto header = weft::engine::parse_safetensors(file, size);
  if (!header.ok()) {
    WEFT_CHECK(!header.error().message.empty());
    return 0;
  }
  WEFT_CHECK(header->data_start + header->data_bytes == size);
  uint64_t at = 0;
  for (const auto& tensor : header->tensors) {
    WEFT_CHECK(tensor.begin == at && tensor.end >= at && tensor.rank <= WEFT_RANK_MAX);
    at = tensor.end;
  }
  WEFT_CHECK(at == header->data_bytes);
  return 0;
}
