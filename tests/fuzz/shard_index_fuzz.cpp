// An index file from anywhere. What is accepted must name plain files only, in order, each tensor once.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/load/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index =
      weft::engine::parse_shard_index(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!index.ok()) {
    WEFT_CHECK(!index.error().message.empty());
    return 0;
  }
  for (const std::string& shard : index->shards) {
    WEFT_CHECK(shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos);
  }
  for (size_t i = 0; i < index->tensors.size(); ++i) {
    WEFT_CHECK(index->tensors[i].shard < index->shards.size());
    WEFT_CHECK(i == 0 || index->tensors[i - 1].tensor < index->tensors[i].tensor);
  }
  return 0;
}
