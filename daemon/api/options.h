// Which thinking mode and effort a request asks for. Clients say it in six places
// (reasoning_effort, thinking, chat_template_kwargs, reasoning.effort, output_config.effort); this
// is the one place that ranks them.
//
// Pure function, any thread.
#pragma once

#include <variant>

#include "api/api_error.h"
#include "api/chat_request.h"
#include "base/json_value.h"

namespace weft::api {

struct ThinkingChoice {
  bool thinking = true;
  Effort effort = Effort::kMax;  // meaningful only when thinking
};

// `body` is the request object. With strict_effort only low, high and max are accepted as effort.
std::variant<ThinkingChoice, ApiError> resolve_thinking(const JsonValue& body,
                                                        bool strict_effort = false);

const char* to_string(Effort effort);

}  // namespace weft::api
