#include "api/parse_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "api/errors.h"
#include "api/fields.h"
#include "api/image_url.h"

namespace weft::api {
namespace {

constexpr size_t kNameMax = 256;
constexpr size_t kCallIdMax = 1024;
constexpr size_t kUnlimited = SIZE_MAX;

std::optional<Role> role_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Role>, 5> kRoles = {
      {{"system", Role::kSystem},
       {"developer", Role::kDeveloper},
       {"user", Role::kUser},
       {"assistant", Role::kAssistant},
       {"tool", Role::kTool}}};
  for (const auto& [known, role] : kRoles)
    if (known == name) return role;
  return std::nullopt;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

class MessageParser {
 public:
  MessageParser(const ApiPolicy& policy, ToolNames* names) : policy_(policy), names_(names) {}

  Check parse(const JsonValue& item, const std::string& path, Message* out) {
    if (!item.is_object())
      return bad_request(path, fmt::format("{} must be an object, not {}", path, kind_name(item)));
    const Fields fields(item, path);
    const JsonValue* role_value = fields.get("role");
    const auto role = role_value != nullptr && role_value->is_string()
                          ? role_named(role_value->as_string())
                          : std::nullopt;
    if (!role)
      return bad_request(fields.param("role"),
                         fmt::format("{} must be system, developer, user, assistant or tool",
                                     fields.param("role")));
    out->role = *role;
    if (out->role != Role::kTool) WEFT_API_TRY(fields.string("name", kNameMax, &out->name));
    WEFT_API_TRY(parse_dynamic_tools(fields, out));
    WEFT_API_TRY(parse_content(fields, out));
    if (out->role == Role::kAssistant) return parse_assistant(fields, out);
    if (out->role == Role::kTool) return parse_tool_result(fields, out);
    return std::nullopt;
  }

 private:
  Check parse_dynamic_tools(const Fields& fields, Message* out) {
    const JsonValue* tools = fields.get("tools");
    if (tools == nullptr) return std::nullopt;
    const std::string path = fields.param("tools");
    if (out->role != Role::kSystem)
      return bad_request(path, "only system messages may declare tools");
    if (!tools->is_array())
      return bad_request(path, fmt::format("{} must be an array, not {}", path, kind_name(*tools)));
    return parse_tool_list(*tools, path, ToolScope::kDynamic, names_, &out->tools);
  }

  Check parse_content(const Fields& fields, Message* out) {
    const std::string path = fields.param("content");
    const JsonValue* content = fields.get("content");
    const bool declares_tools = !out->tools.empty();
    out->content_is_null = content == nullptr;
    if (content == nullptr) {
      if (out->role == Role::kAssistant || out->role == Role::kTool || declares_tools)
        return std::nullopt;
      return bad_request(path, path + " is required");
    }
    if (declares_tools) {
      const bool empty = (content->is_string() && content->as_string().empty()) ||
                         (content->is_array() && content->items().empty());
      if (!empty) return bad_request(path, "a message that declares tools must have no content");
      return std::nullopt;
    }
    if (content->is_string()) {
      out->content.emplace_back(TextPart{content->as_string()});
      return std::nullopt;
    }
    if (!content->is_array())
      return bad_request(path, fmt::format("{} must be a string or an array of parts, not {}", path,
                                           kind_name(*content)));
    out->content_is_array = true;
    for (size_t i = 0; i < content->items().size(); ++i)
      WEFT_API_TRY(parse_part(content->items()[i], index_path(path, i), &out->content));
    return std::nullopt;
  }

  Check parse_part(const JsonValue& item, const std::string& path, std::vector<ContentPart>* out) {
    if (!item.is_object())
      return bad_request(path, fmt::format("{} must be an object, not {}", path, kind_name(item)));
    const Fields fields(item, path);
    const JsonValue* type_value = fields.get("type");
    const std::string type =
        type_value != nullptr && type_value->is_string() ? type_value->as_string() : "";
    if (type == "text" || type == "input_text" || type == "output_text") {
      if (fields.get("text") == nullptr)
        return bad_request(fields.param("text"), fields.param("text") + " is required");
      TextPart part;
      WEFT_API_TRY(fields.string("text", kUnlimited, &part.text));
      out->emplace_back(std::move(part));
      return std::nullopt;
    }
    if (type == "image_url" || type == "input_image" || type == "image")
      return parse_image(fields, type, out);
    return bad_request(
        fields.param("type"),
        fmt::format(
            "{} must be \"text\" or \"image_url\"; audio, video and files are not supported",
            fields.param("type")));
  }

  Check parse_image(const Fields& fields, const std::string& type, std::vector<ContentPart>* out) {
    const char* key = type == "image" && fields.get("image") != nullptr ? "image" : "image_url";
    const std::string path = fields.param(key);
    const JsonValue* source = fields.get(key);
    ImagePart part;
    if (source != nullptr && source->is_object()) {
      const Fields inner(*source, path);
      if (inner.get("url") == nullptr)
        return bad_request(inner.param("url"), inner.param("url") + " is required");
      WEFT_API_TRY(inner.string("url", kUnlimited, &part.url));
      WEFT_API_TRY(inner.string("detail", kNameMax, &part.detail));
    } else if (source != nullptr && source->is_string()) {
      part.url = source->as_string();
      WEFT_API_TRY(fields.string("detail", kNameMax, &part.detail));
    } else {
      return bad_request(path, path + " must be {\"url\": URL} or a string");
    }
    if (auto problem = image_url_problem(part.url, policy_))
      return bad_request(path, std::move(*problem));
    if (++images_ > policy_.images_max)
      return bad_request(path, fmt::format("invalid image: a request may have at most {} images",
                                           policy_.images_max));
    out->emplace_back(std::move(part));
    return std::nullopt;
  }

  Check parse_assistant(const Fields& fields, Message* out) {
    calls_.clear();
    results_ = 0;
    std::string alias;
    WEFT_API_TRY(fields.string("reasoning_content", kUnlimited, &out->reasoning));
    WEFT_API_TRY(fields.string("reasoning", kUnlimited, &alias));
    if (out->reasoning.empty()) out->reasoning = std::move(alias);
    if (fields.get("reasoning_content") == nullptr && fields.get("reasoning") == nullptr)
      WEFT_API_TRY(parse_reasoning_details(fields, out));
    WEFT_API_TRY(fields.boolean("partial", &out->partial));
    if (out->partial && !policy_.partial_messages)
      return bad_request(fields.param("partial"),
                         "continuing a partial assistant message is not enabled here");
    const JsonValue* calls = nullptr;
    WEFT_API_TRY(fields.array("tool_calls", &calls));
    if (calls == nullptr) return std::nullopt;
    for (size_t i = 0; i < calls->items().size(); ++i) {
      ToolCall call;
      WEFT_API_TRY(parse_call(calls->items()[i], index_path(fields.param("tool_calls"), i), &call));
      calls_.push_back(call.id);
      out->tool_calls.push_back(std::move(call));
    }
    return std::nullopt;
  }

  static Check parse_reasoning_details(const Fields& fields, Message* out) {
    const JsonValue* details = nullptr;
    WEFT_API_TRY(fields.array("reasoning_details", &details));
    if (details == nullptr) return std::nullopt;
    for (const JsonValue& item : details->items()) {
      const JsonValue* type = item.find("type");
      const JsonValue* text = item.find("text");
      if (type != nullptr && type->is_string() && type->as_string() == "reasoning.text" &&
          text != nullptr && text->is_string())
        out->reasoning += text->as_string();
    }
    return std::nullopt;
  }

  static Check parse_call(const JsonValue& item, const std::string& path, ToolCall* out) {
    if (!item.is_object())
      return bad_request(path, fmt::format("{} must be an object, not {}", path, kind_name(item)));
    const Fields fields(item, path);
    WEFT_API_TRY(fields.string("id", kCallIdMax, &out->id));
    const JsonValue* function = nullptr;
    WEFT_API_TRY(fields.object("function", &function));
    if (function == nullptr)
      return bad_request(fields.param("function"), fields.param("function") + " is required");
    const Fields inner(*function, fields.param("function"));
    if (inner.get("name") == nullptr)
      return bad_request(inner.param("name"), inner.param("name") + " is required");
    WEFT_API_TRY(inner.string("name", kCallIdMax, &out->name));
    const JsonValue* arguments = inner.get("arguments");
    if (arguments == nullptr) return std::nullopt;
    const ApiError not_object = bad_request(
        inner.param("arguments"),
        fmt::format("{} must be an object or a string with one", inner.param("arguments")));
    if (arguments->is_string()) {
      // Text that does not parse is shown to the model as it is; text that parses to something else
      // is a mistake.
      if (!is_blank(arguments->as_string())) {
        const auto parsed = parse_json(arguments->as_string());
        if (parsed.ok() && !parsed->is_object()) return not_object;
      }
    } else if (!arguments->is_object()) {
      return not_object;
    }
    out->arguments = *arguments;
    return std::nullopt;
  }

  Check parse_tool_result(const Fields& fields, Message* out) {
    WEFT_API_TRY(fields.string("tool", kNameMax, &out->name));
    if (out->name.empty()) WEFT_API_TRY(fields.string("name", kNameMax, &out->name));
    WEFT_API_TRY(fields.string("tool_call_id", kCallIdMax, &out->tool_call_id));
    if (out->tool_call_id.empty())
      WEFT_API_TRY(fields.string("id", kCallIdMax, &out->tool_call_id));
    const std::string path = fields.param("tool_call_id");
    if (out->tool_call_id.empty()) return bad_request(path, path + " is required");
    // The tool is known by the call's id, else by its own name, else by its place among the
    // results.
    const bool by_id = std::find(calls_.begin(), calls_.end(), out->tool_call_id) != calls_.end();
    const bool by_place = results_ < calls_.size();
    ++results_;
    if (by_id || by_place || !out->name.empty()) return std::nullopt;
    return bad_request(path, fmt::format("no tool call with the id \"{}\" precedes this result",
                                         out->tool_call_id));
  }

  const ApiPolicy& policy_;
  ToolNames* names_;
  std::vector<std::string> calls_;  // ids of the last assistant message
  size_t results_ = 0;              // tool messages since then
  size_t images_ = 0;
};

}  // namespace

Check parse_messages(const JsonValue& body, const ApiPolicy& policy, ToolNames* names,
                     std::vector<Message>* out) {
  const JsonValue* messages = Fields(body).get("messages");
  if (messages == nullptr) return bad_request("messages", "messages is required");
  if (!messages->is_array())
    return bad_request("messages",
                       fmt::format("messages must be an array, not {}", kind_name(*messages)));
  const auto& items = messages->items();
  if (items.empty()) return bad_request("messages", "messages must not be empty");
  if (items.size() > policy.messages_max)
    return bad_request("messages", fmt::format("messages has {} entries; at most {} are accepted",
                                               items.size(), policy.messages_max));
  MessageParser parser(policy, names);
  out->resize(items.size());
  for (size_t i = 0; i < items.size(); ++i)
    WEFT_API_TRY(parser.parse(items[i], index_path("messages", i), &(*out)[i]));
  for (size_t i = 0; i + 1 < items.size(); ++i)
    if ((*out)[i].partial)
      return bad_request(index_path("messages", i) + ".partial",
                         "only the last message may be partial");
  return std::nullopt;
}

}  // namespace weft::api
