// Names from checkpoint files, made fit for an error message: quoted, control bytes escaped, long
// ones cut, and valid UTF-8 whatever came (messages travel through protobuf and JSON).
#pragma once

#include <string>
#include <string_view>

namespace weft::engine {

inline constexpr size_t kQuotedBytesMax = 120;

std::string quote_name(std::string_view name);

}  // namespace weft::engine
