// The messages of a chat request: roles, content parts, tool calls and results, tools declared in
// mid-conversation.
#pragma once

#include <vector>

#include "api/chat_request.h"
#include "api/parse_tools.h"
#include "api/parsed.h"
#include "api/policy.h"
#include "base/json_value.h"

namespace weft::api {

Check parse_messages(const JsonValue& body, const ApiPolicy& policy, ToolNames* names,
                     std::vector<Message>* out);

}  // namespace weft::api
