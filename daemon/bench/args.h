// The small languages of the command line: lists of numbers ("1,16k,128k"), shapes
// ("n=1024,k=512") and settings ("cache_dtype=bf16"). Pure functions; errors say what was expected.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::bench {

// "512", "16k" (16384), "1m" (1048576).
Result<uint64_t> parse_count(std::string_view text);
Result<std::vector<uint32_t>> parse_counts(
    std::string_view text);  // separated by commas; "" = none
// "key=value,key=value"; every key must be in `known` (separated by spaces).
Result<std::map<std::string, uint32_t>> parse_shape(std::string_view text, std::string_view known);
// "key=value".
Result<std::pair<std::string, std::string>> parse_setting(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace weft::bench
