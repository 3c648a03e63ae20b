// The vectors' request objects as ChatRequest. Only for tests: bodies from clients are the api
// room's business.
#pragma once

#include "api/chat_request.h"
#include "text/k3_format.h"
#include "vectors.h"

namespace weft::test {

inline std::vector<api::Tool> tools_of(const JsonValue& array) {
  std::vector<api::Tool> out;
  for (const JsonValue& item : array.items()) {
    api::Tool tool;
    tool.declaration = item;
    tool.name = str(at(item, "function"), "name");
    out.push_back(std::move(tool));
  }
  return out;
}

inline bool message_of(const JsonValue& json, api::Message* out) {
  const std::string role = str(json, "role");
  if (role == "system")
    out->role = api::Role::kSystem;
  else if (role == "user")
    out->role = api::Role::kUser;
  else if (role == "assistant")
    out->role = api::Role::kAssistant;
  else if (role == "tool")
    out->role = api::Role::kTool;
  else
    return false;  // the renderer of the vectors skips unknown roles
  out->name = str_or(json, "name");
  const JsonValue* content = json.find("content");
  if (content == nullptr || content->is_null()) {
    out->content_is_null = true;
  } else if (content->is_string()) {
    out->content.push_back(api::TextPart{content->as_string()});
  } else {
    out->content_is_array = true;
    for (const JsonValue& part : content->items()) {
      if (str(part, "type") == "text")
        out->content.push_back(api::TextPart{str(part, "text")});
      else
        out->content.push_back(api::ImagePart{"data:", ""});
    }
  }
  out->reasoning = str_or(json, "reasoning_content");
  if (out->reasoning.empty()) out->reasoning = str_or(json, "reasoning");
  out->tool_call_id = str_or(json, "tool_call_id");
  if (const JsonValue* calls = json.find("tool_calls"))
    for (const JsonValue& call : calls->items())
      out->tool_calls.push_back({str_or(call, "id"), str(at(call, "function"), "name"),
                                 at(at(call, "function"), "arguments")});
  if (const JsonValue* tools = json.find("tools")) out->tools = tools_of(*tools);
  return true;
}

inline api::ChatRequest request_of(const JsonValue& json) {
  api::ChatRequest request;
  for (const JsonValue& item : at(json, "messages").items()) {
    api::Message message;
    if (message_of(item, &message)) request.messages.push_back(std::move(message));
  }
  if (const JsonValue* tools = json.find("tools"); tools != nullptr && tools->is_array()) {
    request.tools_json = *tools;
    request.tools = tools_of(*tools);
  }
  const std::string choice = str_or(json, "tool_choice", "auto");
  request.tool_choice = choice == "required" ? api::ToolChoice::kRequired
                        : choice == "none"   ? api::ToolChoice::kNone
                                             : api::ToolChoice::kAuto;
  if (const JsonValue* format = json.find("response_format");
      format != nullptr && format->is_object()) {
    request.response_format_json = *format;
    const std::string type = str(*format, "type");
    request.response_format = type == "json_object"   ? api::ResponseFormat::kJsonObject
                              : type == "json_schema" ? api::ResponseFormat::kJsonSchema
                                                      : api::ResponseFormat::kText;
  }
  request.thinking = flag_or(json, "thinking", true);
  const std::string effort = str_or(json, "effort", "max");
  request.effort = effort == "low"    ? api::Effort::kLow
                   : effort == "high" ? api::Effort::kHigh
                                      : api::Effort::kMax;
  return request;
}

// "<|media_begin|>image 56x28<|media_content|><|media_pad|>...<|media_end|>"
inline std::vector<text::ImageInfo> images_of(const JsonValue& json) {
  std::vector<text::ImageInfo> out;
  const JsonValue* prompts = json.find("image_prompts");
  if (prompts == nullptr) return out;
  for (const std::string& prompt : strings_of(*prompts)) {
    text::ImageInfo image;
    const size_t size = prompt.find("image ") + 6;
    image.width = std::stoll(prompt.substr(size));
    image.height = std::stoll(prompt.substr(prompt.find('x', size) + 1));
    for (size_t at = prompt.find("<|media_pad|>"); at != std::string::npos;
         at = prompt.find("<|media_pad|>", at + 1))
      ++image.rows;
    out.push_back(image);
  }
  return out;
}

}  // namespace weft::test
