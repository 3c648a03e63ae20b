#include "api/anthropic.h"

#include <fmt/format.h>

#include <array>

#include "api/errors.h"
#include "api/fields.h"
#include "api/json_build.h"

namespace weft::api {
namespace {

// Claude Code puts a per-request hash into a system block with this prefix; it would defeat the
// prefix cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

class Converter {
 public:
  explicit Converter(const JsonValue& body) : body_(body), fields_(body) {}

  Check run(AnthropicCall call, JsonValue* out) {
    chat_ = JsonValue::object();
    messages_ = JsonValue::array();
    copy_member(body_, "model", chat_, "model");
    if (call == AnthropicCall::kMessages && fields_.get("max_tokens") == nullptr)
      return bad_request("max_tokens", "max_tokens is required");
    copy_member(body_, "max_tokens", chat_, "max_completion_tokens");
    WEFT_API_TRY(convert_system());
    WEFT_API_TRY(convert_messages());
    put(chat_, "messages", std::move(messages_));
    WEFT_API_TRY(convert_tools());
    WEFT_API_TRY(convert_tool_choice());
    convert_options();
    WEFT_API_TRY(convert_output_config());
    *out = std::move(chat_);
    return std::nullopt;
  }

 private:
  Check convert_system() {
    const JsonValue* system = fields_.get("system");
    if (system == nullptr) return std::nullopt;
    std::string text;
    if (system->is_string()) {
      text = system->as_string();
    } else if (system->is_array()) {
      bool first = true;
      for (size_t i = 0; i < system->items().size(); ++i) {
        const JsonValue& block = system->items()[i];
        if (text_member(block, "type") != "text")
          return bad_request(index_path("system", i), "system blocks must be of the type \"text\"");
        const std::string_view part = text_member(block, "text");
        if (part.substr(0, kBillingHeader.size()) == kBillingHeader) continue;
        if (!std::exchange(first, false)) text += '\n';
        text += part;
      }
    } else {
      return bad_request("system", "system must be a string or an array of text blocks");
    }
    if (!text.empty()) add_message("system", JsonValue::string(std::move(text)));
    return std::nullopt;
  }

  void add_message(std::string_view role, JsonValue content) {
    JsonValue message = JsonValue::object();
    put(message, "role", role);
    put(message, "content", std::move(content));
    messages_.items().push_back(std::move(message));
  }

  Check convert_messages() {
    const JsonValue* messages = fields_.get("messages");
    if (messages == nullptr || !messages->is_array())
      return bad_request("messages", "messages must be an array");
    for (size_t i = 0; i < messages->items().size(); ++i) {
      const JsonValue& message = messages->items()[i];
      const std::string path = index_path("messages", i);
      const std::string_view role = text_member(message, "role");
      const JsonValue* content = message.find("content");
      if (role != "user" && role != "assistant" && role != "system")
        return bad_request(path + ".role", path + ".role must be user, assistant or system");
      if (content != nullptr && content->is_string()) {
        add_message(role, *content);
        continue;
      }
      if (content == nullptr || !content->is_array())
        return bad_request(path + ".content",
                           path + ".content must be a string or an array of blocks");
      WEFT_API_TRY(role == "assistant" ? convert_assistant(*content, path + ".content")
                                       : convert_user(role, *content, path + ".content"));
    }
    return std::nullopt;
  }

  // Text and image blocks; anything else is not for this place.
  static Check convert_block(const JsonValue& block, const std::string& path, JsonValue* out) {
    const std::string_view type = text_member(block, "type");
    if (type == "text") {
      *out = text_part(text_member(block, "text"));
      return std::nullopt;
    }
    if (type == "image") {
      const JsonValue* source = block.find("source");
      const std::string_view kind = source == nullptr ? "" : text_member(*source, "type");
      if (kind == "base64") {
        *out = image_part(fmt::format("data:{};base64,{}", text_member(*source, "media_type"),
                                      text_member(*source, "data")));
        return std::nullopt;
      }
      if (kind == "url") {
        *out = image_part(text_member(*source, "url"));
        return std::nullopt;
      }
      return bad_request(path + ".source",
                         "unsupported image url: source.type must be \"base64\" or \"url\"");
    }
    return bad_request(
        path + ".type",
        fmt::format("content blocks of the type \"{}\" are not supported here", type));
  }

  // One text part is a string, anything else stays a list of parts.
  static JsonValue compact_parts(std::vector<JsonValue> parts) {
    if (parts.empty()) return JsonValue::string("");
    if (parts.size() == 1 && text_member(parts[0], "type") == "text")
      return JsonValue::string(std::string(text_member(parts[0], "text")));
    return JsonValue::array(std::move(parts));
  }

  Check convert_tool_result(const JsonValue& block, const std::string& path) {
    JsonValue message = JsonValue::object();
    put(message, "role", "tool");
    put(message, "tool_call_id", text_member(block, "tool_use_id"));
    const JsonValue* content = block.find("content");
    if (content == nullptr || content->is_null()) {
      put(message, "content", "");
    } else if (content->is_array()) {
      std::vector<JsonValue> parts(content->items().size());
      for (size_t i = 0; i < parts.size(); ++i)
        WEFT_API_TRY(
            convert_block(content->items()[i], index_path(path + ".content", i), &parts[i]));
      put(message, "content", compact_parts(std::move(parts)));
    } else {
      put(message, "content", *content);
    }
    messages_.items().push_back(std::move(message));
    return std::nullopt;
  }

  Check convert_user(std::string_view role, const JsonValue& content, const std::string& path) {
    std::vector<JsonValue> rest;
    for (size_t i = 0; i < content.items().size(); ++i) {
      const JsonValue& block = content.items()[i];
      if (text_member(block, "type") == "tool_result") {
        WEFT_API_TRY(convert_tool_result(block, index_path(path, i)));
        continue;
      }
      rest.emplace_back();
      WEFT_API_TRY(convert_block(block, index_path(path, i), &rest.back()));
    }
    if (!rest.empty() || content.items().empty()) add_message(role, compact_parts(std::move(rest)));
    return std::nullopt;
  }

  Check convert_assistant(const JsonValue& content, const std::string& path) {
    std::string text, thinking;
    JsonValue calls = JsonValue::array();
    for (size_t i = 0; i < content.items().size(); ++i) {
      const JsonValue& block = content.items()[i];
      const std::string_view type = text_member(block, "type");
      if (type == "text") {
        text += text_member(block, "text");
      } else if (type == "thinking") {
        thinking += text_member(block, "thinking");
      } else if (type == "tool_use") {
        const JsonValue* input = block.find("input");
        JsonValue function = JsonValue::object();
        put(function, "name", text_member(block, "name"));
        put(function, "arguments", input == nullptr || input->is_null() ? "{}" : dump_json(*input));
        JsonValue call = JsonValue::object();
        put(call, "id", text_member(block, "id"));
        put(call, "type", "function");
        put(call, "function", std::move(function));
        calls.items().push_back(std::move(call));
      } else if (type != "redacted_thinking") {
        return bad_request(
            index_path(path, i) + ".type",
            fmt::format("content blocks of the type \"{}\" are not supported here", type));
      }
    }
    add_message("assistant", JsonValue::string(std::move(text)));
    JsonValue& message = messages_.items().back();
    if (!thinking.empty()) put(message, "reasoning_content", thinking);
    if (!calls.items().empty()) put(message, "tool_calls", std::move(calls));
    return std::nullopt;
  }

  Check convert_tools() {
    const JsonValue* tools = nullptr;
    WEFT_API_TRY(fields_.array("tools", &tools));
    if (tools == nullptr) return std::nullopt;
    JsonValue list = JsonValue::array();
    for (size_t i = 0; i < tools->items().size(); ++i) {
      const JsonValue& tool = tools->items()[i];
      const std::string_view type = text_member(tool, "type");
      if (!type.empty() && type != "custom")
        return bad_request(index_path("tools", i) + ".type",
                           fmt::format("server tools such as \"{}\" are not available here", type));
      JsonValue function = JsonValue::object();
      for (const auto& [key, name] :
           {std::pair("name", "name"), std::pair("description", "description"),
            std::pair("input_schema", "parameters"), std::pair("strict", "strict")})
        copy_member(tool, key, function, name);
      JsonValue item = JsonValue::object();
      put(item, "type", "function");
      put(item, "function", std::move(function));
      list.items().push_back(std::move(item));
    }
    put(chat_, "tools", std::move(list));
    return std::nullopt;
  }

  Check convert_tool_choice() {
    const JsonValue* choice = fields_.get("tool_choice");
    if (choice == nullptr) return std::nullopt;
    const std::string_view type = text_member(*choice, "type");
    if (type == "auto" || type == "none") {
      put(chat_, "tool_choice", type);
    } else if (type == "any") {
      put(chat_, "tool_choice", "required");
    } else if (type == "tool") {
      JsonValue function = JsonValue::object();
      put(function, "name", text_member(*choice, "name"));
      JsonValue named = JsonValue::object();
      put(named, "type", "function");
      put(named, "function", std::move(function));
      put(chat_, "tool_choice", std::move(named));
    } else {
      return bad_request("tool_choice.type", "tool_choice.type must be auto, any, tool or none");
    }
    bool no_parallel = false;
    WEFT_API_TRY(Fields(*choice, "tool_choice").boolean("disable_parallel_tool_use", &no_parallel));
    if (no_parallel) put(chat_, "parallel_tool_calls", JsonValue::boolean(false));
    return std::nullopt;
  }

  void convert_options() {
    copy_member(body_, "stop_sequences", chat_, "stop");
    for (const char* key : {"temperature", "top_p", "top_k", "stream", "thinking"})
      copy_member(body_, key, chat_, key);
    if (const JsonValue* metadata = fields_.get("metadata"))
      copy_member(*metadata, "user_id", chat_, "user");
  }

  Check convert_output_config() {
    const JsonValue* config = nullptr;
    WEFT_API_TRY(fields_.object("output_config", &config));
    if (config == nullptr) return std::nullopt;
    copy_member(*config, "effort", chat_, "reasoning_effort");
    const JsonValue* format = config->find("format");
    if (format == nullptr || format->is_null()) return std::nullopt;
    if (text_member(*format, "type") != "json_schema")
      return bad_request("output_config.format.type",
                         "output_config.format.type must be \"json_schema\"");
    JsonValue wrapper = JsonValue::object();
    put(wrapper, "name", "output");
    copy_member(*format, "schema", wrapper, "schema");
    JsonValue response_format = JsonValue::object();
    put(response_format, "type", "json_schema");
    put(response_format, "json_schema", std::move(wrapper));
    put(chat_, "response_format", std::move(response_format));
    return std::nullopt;
  }

  const JsonValue& body_;
  Fields fields_;
  JsonValue chat_;
  JsonValue messages_;
};

}  // namespace

Parsed<JsonValue> anthropic_to_chat(const JsonValue& body, AnthropicCall call) {
  if (!body.is_object())
    return bad_request("", fmt::format("the body must be a JSON object, not {}", kind_name(body)));
  JsonValue chat;
  WEFT_API_TRY(Converter(body).run(call, &chat));
  return chat;
}

}  // namespace weft::api
