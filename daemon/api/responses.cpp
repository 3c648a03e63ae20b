#include "api/responses.h"

#include <fmt/format.h>

#include "api/errors.h"
#include "api/fields.h"
#include "api/json_build.h"

namespace weft::api {
namespace {

class Converter {
 public:
  explicit Converter(const JsonValue& body) : body_(body), fields_(body) {}

  Check run(JsonValue* out) {
    chat_ = JsonValue::object();
    messages_ = JsonValue::array();
    WEFT_API_TRY(refuse_what_needs_a_store());
    copy_member(body_, "model", chat_, "model");
    std::string instructions;
    WEFT_API_TRY(fields_.string("instructions", SIZE_MAX, &instructions));
    if (!instructions.empty()) add_message("system", JsonValue::string(std::move(instructions)));
    WEFT_API_TRY(convert_input());
    flush_assistant();
    put(chat_, "messages", std::move(messages_));
    WEFT_API_TRY(convert_tools());
    WEFT_API_TRY(convert_tool_choice());
    convert_options();
    WEFT_API_TRY(convert_text_format());
    *out = std::move(chat_);
    return std::nullopt;
  }

 private:
  Check refuse_what_needs_a_store() const {
    for (const char* key : {"previous_response_id", "conversation", "prompt"})
      if (fields_.get(key) != nullptr)
        return unsupported(
            key, fmt::format(
                     "{} is not supported: this server stores nothing; send the whole input", key));
    bool background = false;
    WEFT_API_TRY(fields_.boolean("background", &background));
    if (background) return unsupported("background", "background responses are not supported");
    const JsonValue* truncation = fields_.get("truncation");
    if (truncation != nullptr &&
        (!truncation->is_string() || truncation->as_string() != "disabled"))
      return unsupported("truncation", "only truncation \"disabled\" is supported");
    return std::nullopt;
  }

  void add_message(std::string_view role, JsonValue content) {
    flush_assistant();
    JsonValue message = JsonValue::object();
    put(message, "role", role);
    put(message, "content", std::move(content));
    messages_.items().push_back(std::move(message));
  }

  // Reasoning, text and calls that follow each other are one assistant turn.
  struct AssistantTurn {
    bool open = false;
    bool has_text = false;
    std::string text;
    std::string reasoning;
    JsonValue calls = JsonValue::array();
  };
  void flush_assistant() {
    if (!turn_.open) return;
    JsonValue message = JsonValue::object();
    put(message, "role", "assistant");
    if (turn_.has_text) put(message, "content", turn_.text);
    if (!turn_.reasoning.empty()) put(message, "reasoning_content", turn_.reasoning);
    if (!turn_.calls.items().empty()) put(message, "tool_calls", std::move(turn_.calls));
    messages_.items().push_back(std::move(message));
    turn_ = AssistantTurn();
  }

  Check convert_input() {
    const JsonValue* input = fields_.get("input");
    if (input == nullptr) return bad_request("input", "input is required");
    if (input->is_string()) {
      add_message("user", *input);
      return std::nullopt;
    }
    if (!input->is_array())
      return bad_request("input", "input must be a string or an array of items");
    for (size_t i = 0; i < input->items().size(); ++i)
      WEFT_API_TRY(convert_item(input->items()[i], index_path("input", i)));
    return std::nullopt;
  }

  Check convert_item(const JsonValue& item, const std::string& path) {
    const std::string_view type = text_member(item, "type");
    if (type == "message" || (type.empty() && !text_member(item, "role").empty()))
      return convert_message(item, path);
    if (type == "reasoning") {
      turn_.open = true;
      if (!add_texts(item, "content", &turn_.reasoning))
        add_texts(item, "summary", &turn_.reasoning);
      return std::nullopt;
    }
    if (type == "function_call") {
      turn_.open = true;
      JsonValue function = JsonValue::object();
      put(function, "name", text_member(item, "name"));
      copy_member(item, "arguments", function, "arguments");
      JsonValue call = JsonValue::object();
      put(call, "id", text_member(item, "call_id"));
      put(call, "type", "function");
      put(call, "function", std::move(function));
      turn_.calls.items().push_back(std::move(call));
      return std::nullopt;
    }
    if (type == "function_call_output") return convert_output(item, path);
    return bad_request(path + ".type",
                       fmt::format("input items of the type \"{}\" are not supported", type));
  }

  static bool add_texts(const JsonValue& item, const char* key, std::string* out) {
    const JsonValue* list = item.find(key);
    if (list == nullptr || !list->is_array() || list->items().empty()) return false;
    for (const JsonValue& part : list->items()) *out += text_member(part, "text");
    return true;
  }

  Check convert_message(const JsonValue& item, const std::string& path) {
    const std::string_view role = text_member(item, "role");
    const JsonValue* content = item.find("content");
    if (content == nullptr || (!content->is_string() && !content->is_array()))
      return bad_request(path + ".content",
                         path + ".content must be a string or an array of parts");
    if (role == "assistant") {
      turn_.open = turn_.has_text = true;
      if (content->is_string())
        turn_.text += content->as_string();
      else
        add_texts(item, "content", &turn_.text);
      return std::nullopt;
    }
    JsonValue parts;
    WEFT_API_TRY(convert_parts(*content, path + ".content", &parts));
    add_message(role, std::move(parts));
    return std::nullopt;
  }

  static Check convert_parts(const JsonValue& content, const std::string& path, JsonValue* out) {
    if (!content.is_array()) {
      *out = content;
      return std::nullopt;
    }
    *out = JsonValue::array();
    for (size_t i = 0; i < content.items().size(); ++i) {
      const JsonValue& part = content.items()[i];
      const std::string_view type = text_member(part, "type");
      if (type == "input_text" || type == "output_text" || type == "text") {
        out->items().push_back(text_part(text_member(part, "text")));
      } else if (type == "input_image") {
        out->items().push_back(image_part(text_member(part, "image_url")));
      } else {
        return bad_request(index_path(path, i) + ".type",
                           fmt::format("parts of the type \"{}\" are not supported", type));
      }
    }
    return std::nullopt;
  }

  Check convert_output(const JsonValue& item, const std::string& path) {
    const JsonValue* output = item.find("output");
    if (output == nullptr) return bad_request(path + ".output", path + ".output is required");
    JsonValue content;
    WEFT_API_TRY(convert_parts(*output, path + ".output", &content));
    add_message("tool", std::move(content));
    put(messages_.items().back(), "tool_call_id", text_member(item, "call_id"));
    return std::nullopt;
  }

  Check convert_tools() {
    const JsonValue* tools = nullptr;
    WEFT_API_TRY(fields_.array("tools", &tools));
    if (tools == nullptr) return std::nullopt;
    JsonValue list = JsonValue::array();
    for (size_t i = 0; i < tools->items().size(); ++i) {
      const JsonValue& tool = tools->items()[i];
      if (text_member(tool, "type") != "function")
        return bad_request(index_path("tools", i) + ".type",
                           fmt::format("tools of the type \"{}\" are not available here",
                                       text_member(tool, "type")));
      JsonValue function = JsonValue::object();
      for (const char* key : {"name", "description", "parameters", "strict"})
        copy_member(tool, key, function, key);
      JsonValue entry = JsonValue::object();
      put(entry, "type", "function");
      put(entry, "function", std::move(function));
      list.items().push_back(std::move(entry));
    }
    put(chat_, "tools", std::move(list));
    return std::nullopt;
  }

  Check convert_tool_choice() {
    const JsonValue* choice = fields_.get("tool_choice");
    if (choice == nullptr) return std::nullopt;
    if (choice->is_string()) {
      put(chat_, "tool_choice", *choice);
      return std::nullopt;
    }
    if (text_member(*choice, "type") != "function")
      return bad_request(
          "tool_choice",
          "tool_choice must be a string or {\"type\": \"function\", \"name\": NAME}");
    JsonValue function = JsonValue::object();
    put(function, "name", text_member(*choice, "name"));
    JsonValue named = JsonValue::object();
    put(named, "type", "function");
    put(named, "function", std::move(function));
    put(chat_, "tool_choice", std::move(named));
    return std::nullopt;
  }

  void convert_options() {
    copy_member(body_, "max_output_tokens", chat_, "max_completion_tokens");
    for (const char* key :
         {"temperature", "top_p", "stream", "parallel_tool_calls", "user", "prompt_cache_key"})
      copy_member(body_, key, chat_, key);
    if (const JsonValue* reasoning = fields_.get("reasoning"))
      copy_member(*reasoning, "effort", chat_, "reasoning_effort");
  }

  Check convert_text_format() {
    const JsonValue* text = nullptr;
    WEFT_API_TRY(fields_.object("text", &text));
    const JsonValue* format = text == nullptr ? nullptr : text->find("format");
    if (format == nullptr || format->is_null()) return std::nullopt;
    JsonValue response_format = JsonValue::object();
    put(response_format, "type", text_member(*format, "type"));
    if (text_member(*format, "type") == "json_schema") {
      JsonValue wrapper = JsonValue::object();
      for (const char* key : {"name", "description", "schema", "strict"})
        copy_member(*format, key, wrapper, key);
      put(response_format, "json_schema", std::move(wrapper));
    }
    put(chat_, "response_format", std::move(response_format));
    return std::nullopt;
  }

  const JsonValue& body_;
  Fields fields_;
  JsonValue chat_;
  JsonValue messages_;
  AssistantTurn turn_;
};

}  // namespace

Parsed<JsonValue> responses_to_chat(const JsonValue& body) {
  if (!body.is_object())
    return bad_request("", fmt::format("the body must be a JSON object, not {}", kind_name(body)));
  JsonValue chat;
  WEFT_API_TRY(Converter(body).run(&chat));
  return chat;
}

}  // namespace weft::api
