// tools, tool_choice and response_format of a chat request.
//
// ToolNames collects the names of one request over its global tools and those that system messages
// declare.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "api/chat_request.h"
#include "api/parsed.h"
#include "base/json_value.h"

namespace weft::api {

class ToolNames {
 public:
  // Messages are read first, global tools after them; a clash between the two is reported at the
  // dynamic tool.
  Check add_dynamic(const std::string& name, const std::string& path);
  Check add_global(const std::string& name, const std::string& path);
  bool has(const std::string& name) const {
    return dynamic_.count(name) > 0 || global_.count(name) > 0;
  }
  bool empty() const { return dynamic_.empty() && global_.empty(); }

 private:
  std::map<std::string, std::string> dynamic_;  // name -> path of its first declaration
  std::map<std::string, std::string> global_;
};

enum class ToolScope { kGlobal, kDynamic };

// `path` names the array, e.g. "tools" or "messages[2].tools".
Check parse_tool_list(const JsonValue& list, const std::string& path, ToolScope scope,
                      ToolNames* names, std::vector<Tool>* out);
Check parse_tool_choice(const JsonValue& body, const ToolNames& names, ChatRequest* out);
Check parse_response_format(const JsonValue& body, ChatRequest* out);

}  // namespace weft::api
