#include "api/parse_tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/errors.h"
#include "api/fields.h"

namespace weft::api {
namespace {

constexpr size_t kToolNameMax = 256;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_tool_name(const std::string& name) {
  if (name.empty() || name.size() > kToolNameMax || !is_letter(name[0])) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-';
  });
}

ApiError duplicate(const std::string& name, const std::string& path) {
  return bad_request(
      path, fmt::format("the tool name \"{}\" is declared twice; names must be unique", name));
}

Check parse_tool(const JsonValue& item, const std::string& path, Tool* out) {
  if (!item.is_object())
    return bad_request(path, fmt::format("{} must be an object, not {}", path, kind_name(item)));
  const Fields tool(item, path);
  const JsonValue* type = tool.get("type");
  if (type == nullptr || !type->is_string() || type->as_string() != "function")
    return bad_request(tool.param("type"),
                       fmt::format("{} must be \"function\"; hosted tools are not available here",
                                   tool.param("type")));
  const JsonValue* function = nullptr;
  WEFT_API_TRY(tool.object("function", &function));
  if (function == nullptr)
    return bad_request(tool.param("function"), tool.param("function") + " is required");
  const Fields fields(*function, tool.param("function"));
  const JsonValue* name = fields.get("name");
  if (name == nullptr || !name->is_string() || !is_tool_name(name->as_string()))
    return bad_request(fields.param("name"),
                       fmt::format("{} must be a letter or _ followed by letters, digits, _, - or "
                                   "., at most {} characters",
                                   fields.param("name"), kToolNameMax));
  out->name = name->as_string();
  if (const JsonValue* text = fields.get("description"); text != nullptr && text->is_string())
    out->description = text->as_string();
  const JsonValue* parameters = nullptr;
  WEFT_API_TRY(fields.object("parameters", &parameters));
  if (parameters != nullptr) out->parameters = *parameters;
  WEFT_API_TRY(fields.boolean("strict", &out->strict));
  out->declaration = item;
  return std::nullopt;
}

}  // namespace

Check ToolNames::add_dynamic(const std::string& name, const std::string& path) {
  return dynamic_.emplace(name, path).second ? Check() : duplicate(name, path);
}

Check ToolNames::add_global(const std::string& name, const std::string& path) {
  if (!global_.emplace(name, path).second) return duplicate(name, path);
  const auto clash = dynamic_.find(name);
  return clash == dynamic_.end() ? Check() : duplicate(name, clash->second);
}

Check parse_tool_list(const JsonValue& list, const std::string& path, ToolScope scope,
                      ToolNames* names, std::vector<Tool>* out) {
  for (size_t i = 0; i < list.items().size(); ++i) {
    const std::string item_path = index_path(path, i);
    Tool tool;
    WEFT_API_TRY(parse_tool(list.items()[i], item_path, &tool));
    const std::string name_path = item_path + ".function.name";
    WEFT_API_TRY(scope == ToolScope::kDynamic ? names->add_dynamic(tool.name, name_path)
                                              : names->add_global(tool.name, name_path));
    out->push_back(std::move(tool));
  }
  return std::nullopt;
}

Check parse_tool_choice(const JsonValue& body, const ToolNames& names, ChatRequest* out) {
  const Fields fields(body);
  WEFT_API_TRY(fields.boolean("parallel_tool_calls", &out->parallel_tool_calls));
  const JsonValue* choice = fields.get("tool_choice");
  if (choice == nullptr) return std::nullopt;
  const auto refuse = [](std::string message) -> Check {
    return bad_request("tool_choice", std::move(message));
  };
  out->tool_choice_given = true;
  if (choice->is_string()) {
    const std::string& word = choice->as_string();
    if (word == "auto")
      out->tool_choice = ToolChoice::kAuto;
    else if (word == "none")
      out->tool_choice = ToolChoice::kNone;
    else if (word == "required")
      out->tool_choice = ToolChoice::kRequired;
    else
      return refuse(fmt::format(
          "tool_choice \"{}\" is unknown; use \"auto\", \"none\", \"required\" or a function",
          word));
    if (out->tool_choice == ToolChoice::kRequired && names.empty())
      return refuse("tool_choice \"required\" needs at least one tool");
    return std::nullopt;
  }
  const JsonValue* type = choice->find("type");
  const JsonValue* function = choice->find("function");
  const JsonValue* name = function == nullptr ? nullptr : function->find("name");
  if (type == nullptr || !type->is_string() || type->as_string() != "function" || name == nullptr ||
      !name->is_string())
    return refuse(
        "tool_choice must be a string or {\"type\": \"function\", \"function\": {\"name\": NAME}}");
  if (!names.has(name->as_string()))
    return refuse(
        fmt::format("tool_choice names \"{}\", which is not among the tools", name->as_string()));
  out->tool_choice = ToolChoice::kNamed;
  out->tool_choice_name = name->as_string();
  return std::nullopt;
}

Check parse_response_format(const JsonValue& body, ChatRequest* out) {
  const JsonValue* format = nullptr;
  WEFT_API_TRY(Fields(body).object("response_format", &format));
  if (format == nullptr) return std::nullopt;
  const Fields fields(*format, "response_format");
  const JsonValue* type = fields.get("type");
  const std::string name = type != nullptr && type->is_string() ? type->as_string() : "";
  if (name == "text") {
    out->response_format = ResponseFormat::kText;
    return std::nullopt;
  }
  if (name == "json_object") {
    out->response_format = ResponseFormat::kJsonObject;
  } else if (name == "json_schema") {
    const JsonValue* wrapper = nullptr;
    WEFT_API_TRY(fields.object("json_schema", &wrapper));
    if (wrapper == nullptr)
      return bad_request(fields.param("json_schema"), "response_format.json_schema is required");
    const Fields inner(*wrapper, fields.param("json_schema"));
    std::string schema_name;
    bool strict = true;
    const JsonValue* schema = nullptr;
    if (inner.get("name") == nullptr)
      return bad_request(inner.param("name"), inner.param("name") + " is required");
    WEFT_API_TRY(inner.string("name", kToolNameMax, &schema_name));
    WEFT_API_TRY(inner.object("schema", &schema));
    if (schema == nullptr)
      return bad_request(inner.param("schema"), inner.param("schema") + " is required");
    WEFT_API_TRY(inner.boolean("strict", &strict));
    out->response_format = ResponseFormat::kJsonSchema;
  } else {
    return bad_request(fields.param("type"),
                       "response_format.type must be \"text\", \"json_object\" or \"json_schema\"");
  }
  out->response_format_json = *format;
  return std::nullopt;
}

}  // namespace weft::api
