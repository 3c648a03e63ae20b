// First look at an image reference in a request: is it a kind of URL that we take, is its base64
// well formed, does the data begin like an image? The real decoding happens later, in the text
// room, off the loop.
//
// Pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "api/policy.h"

namespace weft::api {

// What is wrong with the URL, as a sentence for the client; nothing when it may be tried.
std::optional<std::string> image_url_problem(std::string_view url, const ApiPolicy& policy);

// "data:...;base64,DATA" -> DATA, or nothing when the URL is not of that form.
std::optional<std::string_view> data_url_payload(std::string_view url);

}  // namespace weft::api
