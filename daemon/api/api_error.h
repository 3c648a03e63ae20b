// ApiError: an error as a client sees it, in OpenAI's shape. `param` names the offending field as a path.
#pragma once

#include <string>

namespace weft::api {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::string param;  // empty = null
  std::string code;   // empty = null
};

}  // namespace weft::api
