// Unicode normalisation form C, for tokenizers whose normalizer asks for it. Pure function, any
// thread.
#pragma once

#include <string>
#include <string_view>

namespace weft::text {

// Invalid UTF-8 bytes become U+FFFD.
std::string to_nfc(std::string_view text);

}  // namespace weft::text
