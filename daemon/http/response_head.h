// Serialises status line and headers. Pure.
#pragma once

#include <string>

#include "http/types.h"

namespace weft::http {

// Control characters in names and values become spaces: an answer can never be split by what it
// quotes.
std::string response_head(int status, const Headers& headers, int version_minor);
std::string http_date(int64_t unix_seconds);

}  // namespace weft::http
