// UTF-8 helpers shared by the JSON reader and the text room. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

// Decodes the code point at `pos`. Returns its length in bytes, or 0 when the bytes are not well
// formed there.
size_t decode_utf8(std::string_view text, size_t pos, char32_t* code_point);
void append_utf8(std::string& out, char32_t code_point);
bool is_valid_utf8(std::string_view text);

}  // namespace weft
