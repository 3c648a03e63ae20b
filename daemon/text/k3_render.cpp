// Request to segments.
#include <algorithm>
#include <array>
#include <set>

#include "api/options.h"
#include "text/k3_format.h"
#include "text/k3_names.h"
#include "text/python_json.h"
#include "text/unicode.h"

namespace weft::text {
namespace {

using api::ChatRequest;
using api::Message;
using api::Role;

Error bad_request(std::string_view path, std::string_view what) {
  return make_error(ErrorCode::kInvalid, "{}: {}", path, what);
}

class Writer {
 public:
  std::vector<Segment> out;

  void marker(std::string_view name) { out.push_back({std::string(name), true}); }
  void text(std::string_view s) {
    if (!s.empty()) out.push_back({std::string(s), false});
  }
  using Attribute = std::pair<std::string_view, std::string_view>;
  void open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    marker(kOpen);
    text(tag);
    for (const auto& [key, value] : attributes) {
      if (key.empty()) continue;
      text(" " + std::string(key));
      text("=\"");
      text(escape(value));
      text("\"");
    }
    marker(kSep);
  }
  void close(std::string_view tag) {
    marker(kClose);
    text(tag);
    marker(kSep);
  }
  void end_message() {
    close("message");
    marker(kEndOfMsg);
  }
  void system(std::string_view type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", type}});
    text(body);
    end_message();
  }

 private:
  static std::string escape(std::string_view value) {
    std::string escaped;
    for (const char c : value) {
      if (c == '&')
        escaped += "&amp;";
      else if (c == '"')
        escaped += "&quot;";
      else
        escaped += c;
    }
    return escaped;
  }
};

std::string fenced_json(std::string_view intro, const JsonValue& json) {
  return std::string(intro) + "```json\n" + compact_sorted_json(json) + "\n```";
}

JsonValue declarations(const std::vector<api::Tool>& tools) {
  std::vector<JsonValue> items;
  for (const api::Tool& tool : tools) items.push_back(tool.declaration);
  return JsonValue::array(std::move(items));
}

class Renderer {
 public:
  Renderer(const ChatRequest& request, std::span<const ImageInfo> images,
           const RenderOptions& options)
      : request_(request), images_(images), options_(options) {}

  // Segments before the first message of the conversation, when they say more than how long to
  // think.
  size_t head_segments() const { return head_; }

  Result<std::vector<Segment>> run() {
    const auto& messages = request_.messages;
    const bool partial =
        !messages.empty() && messages.back().partial && messages.back().role == Role::kAssistant;
    if (partial && !options_.allow_partial)
      return bad_request(path(messages.size() - 1) + ".partial",
                         "continuing a message is not enabled");
    write_tools();
    if (request_.thinking)
      w_.system("thinking-effort",
                std::string(kEffortBody) + api::to_string(request_.effort) + "`.");
    has_head_ = any_tools_;
    head_ = w_.out.size();
    const size_t count = messages.size() - (partial ? 1 : 0);
    bool in_head = true;
    for (size_t i = 0; i < count;) {
      in_head = in_head && is_system(messages[i]);
      if (in_head) has_head_ = true;
      if (messages[i].role == Role::kTool) {
        size_t end = i;
        while (end < count && messages[end].role == Role::kTool) ++end;
        WEFT_TRY(write_results(i, end));
        i = end;
      } else {
        WEFT_TRY(write_message(i));
        ++i;
      }
      if (in_head) head_ = w_.out.size();
    }
    if (!has_head_) head_ = 0;
    write_tool_choice();
    WEFT_TRY(write_response_format());
    if (partial)
      WEFT_TRY(write_partial(messages.back()));
    else if (options_.generation_prompt)
      write_generation_prompt();
    if (!images_.empty() && next_image_ != images_.size())
      return make_error(ErrorCode::kInternal, "{} images were given for {} image parts",
                        images_.size(), next_image_);
    return std::move(w_.out);
  }

 private:
  static bool is_system(const Message& message) {
    return message.role == Role::kSystem || message.role == Role::kDeveloper;
  }
  static std::string path(size_t index) { return fmt::format("messages[{}]", index); }

  void write_tools() {
    const bool given = request_.tools_json.is_array() && !request_.tools_json.items().empty();
    if (!given && request_.tools.empty()) return;
    any_tools_ = true;
    w_.system("tool-declare",
              fenced_json(kToolsIntro, given ? request_.tools_json : declarations(request_.tools)));
  }

  void write_generation_prompt() {
    w_.open("message", {{"role", "assistant"}});
    w_.open(request_.thinking ? "think" : "response");
  }

  void write_tool_choice() {
    if (!any_tools_) return;
    if (request_.tool_choice == api::ToolChoice::kRequired)
      w_.system("tool-choice", kToolsRequired);
    if (request_.tool_choice == api::ToolChoice::kNone) w_.system("tool-choice", kToolsForbidden);
  }

  Status write_response_format() {
    if (request_.response_format == api::ResponseFormat::kText) return {};
    const bool object = request_.response_format == api::ResponseFormat::kJsonObject;
    std::string body =
        std::string(kFormatBody) + (object ? "json_object" : "json_schema") + kFormatRule.data();
    if (!object) {
      JsonValue schema;
      if (const JsonValue* wrapper = request_.response_format_json.find("json_schema")) {
        const JsonValue* inner = wrapper->find("schema");
        if (inner == nullptr) inner = wrapper->find("json_schema");
        schema = inner == nullptr ? *wrapper : *inner;
      }
      body += fenced_json(kSchemaIntro, schema);
    }
    w_.system("response-format", body);
    return {};
  }

  Status write_content(const Message& message, size_t index) {
    for (const api::ContentPart& part : message.content) {
      if (const auto* text = std::get_if<api::TextPart>(&part)) {
        w_.text(text->text);
        continue;
      }
      if (images_.empty()) {
        w_.marker(kImagePlaceholder);
        continue;
      }
      if (next_image_ == images_.size())
        return make_error(ErrorCode::kInternal, "{}: more image parts than images ({})",
                          path(index), images_.size());
      const ImageInfo& image = images_[next_image_++];
      std::string prompt =
          fmt::format("{}image {}x{}{}", kMediaBegin, image.width, image.height, kMediaContent);
      for (int64_t row = 0; row < image.rows; ++row) prompt += kMediaPad;
      w_.out.push_back({prompt + std::string(kMediaEnd), true});
    }
    return {};
  }

  Status write_message(size_t index) {
    const Message& message = request_.messages[index];
    const bool system = is_system(message);
    if (system && !message.tools.empty()) {
      any_tools_ = true;
      w_.system("tool-declare", fenced_json(kDynamicToolsIntro, declarations(message.tools)));
      return {};
    }
    const std::string_view role = message.role == Role::kAssistant ? "assistant"
                                  : system                         ? "system"
                                                                   : "user";
    w_.open("message", {{"role", role}, {message.name.empty() ? "" : "name", message.name}});
    if (message.role == Role::kAssistant)
      WEFT_TRY(write_assistant(message, index));
    else
      WEFT_TRY(write_content(message, index));
    w_.end_message();
    return {};
  }

  Status write_assistant(const Message& message, size_t index) {
    calls_ = &message;
    results_since_ = 0;
    if (request_.thinking) {
      w_.open("think");
      if (!is_blank(message.reasoning)) w_.text(message.reasoning);
      w_.close("think");
    }
    w_.open("response");
    WEFT_TRY(write_content(message, index));
    w_.close("response");
    if (message.tool_calls.empty()) return {};
    w_.open("tools");
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      const api::ToolCall& call = message.tool_calls[i];
      w_.open("call", {{"tool", call.name}, {"index", std::to_string(i + 1)}});
      WEFT_TRY(write_arguments(
          call.arguments, fmt::format("{}.tool_calls[{}].function.arguments", path(index), i)));
      w_.close("call");
    }
    w_.close("tools");
    return {};
  }

  Status write_arguments(const JsonValue& arguments, const std::string& where) {
    if (arguments.is_null()) return {};
    if (arguments.is_object()) {
      write_members(arguments);
      return {};
    }
    if (!arguments.is_string())
      return bad_request(where, "must be a JSON object, or a string holding one");
    if (is_blank(arguments.as_string())) return {};
    const auto parsed = parse_json(arguments.as_string());
    if (!parsed.ok()) {  // shown to the model as it wrote it
      w_.open("json", {{"type", "object"}});
      w_.text(arguments.as_string());
      w_.close("json");
      return {};
    }
    if (!parsed->is_object())
      return bad_request(where, "the string must hold a JSON object, not another value");
    write_members(*parsed);
    return {};
  }

  void write_members(const JsonValue& object) {
    for (const auto& [key, value] : object.members()) {
      w_.open("argument", {{"key", key}, {"type", json_type_name(value)}});
      w_.text(argument_body(value));
      w_.close("argument");
    }
  }

  // Index of the first call of the last assistant message with this id, or nothing.
  std::optional<size_t> call_of(const std::string& id) const {
    if (calls_ == nullptr || id.empty()) return std::nullopt;
    for (size_t i = 0; i < calls_->tool_calls.size(); ++i)
      if (calls_->tool_calls[i].id == id) return i;
    return std::nullopt;
  }

  // Messages [begin, end) are tool results. When all of them answer a call they are put in the
  // order of the calls.
  Status write_results(size_t begin, size_t end) {
    struct Result {
      size_t message;
      std::optional<size_t> call;
    };
    std::vector<Result> results;
    for (size_t i = begin; i < end; ++i)
      results.push_back({i, call_of(request_.messages[i].tool_call_id)});
    const bool all = std::all_of(results.begin(), results.end(),
                                 [](const Result& r) { return r.call.has_value(); });
    if (all)
      std::stable_sort(results.begin(), results.end(),
                       [](const Result& a, const Result& b) { return *a.call < *b.call; });
    for (const Result& result : results) {
      const Message& message = request_.messages[result.message];
      const size_t ordinal = results_since_++;
      std::string name = message.name;
      if (all)
        name = calls_->tool_calls[*result.call].name;
      else if (name.empty() && calls_ != nullptr && ordinal < calls_->tool_calls.size())
        name = calls_->tool_calls[ordinal].name;
      if (name.empty())
        return bad_request(
            path(result.message) + ".tool_call_id",
            fmt::format("\"{}\" answers no tool call of the assistant message before it",
                        message.tool_call_id));
      w_.open("message",
              {{"role", "tool"}, {"tool", name}, {"index", std::to_string(ordinal + 1)}});
      WEFT_TRY(write_content(message, result.message));
      w_.end_message();
    }
    return {};
  }

  // The last message without its closers: generation goes on where it stops.
  Status write_partial(const Message& message) {
    const size_t index = request_.messages.size() - 1;
    if (!message.tool_calls.empty())
      return bad_request(path(index) + ".tool_calls", "a partial message cannot hold tool calls");
    w_.open("message", {{"role", "assistant"}, {message.name.empty() ? "" : "name", message.name}});
    const bool content = std::any_of(message.content.begin(), message.content.end(),
                                     [](const api::ContentPart& part) {
                                       const auto* text = std::get_if<api::TextPart>(&part);
                                       return text == nullptr || !text->text.empty();
                                     });
    if (request_.thinking) {
      w_.open("think");
      w_.text(message.reasoning);
      if (!content) return {};
      w_.close("think");
    }
    w_.open("response");
    return write_content(message, index);
  }

  const ChatRequest& request_;
  std::span<const ImageInfo> images_;
  const RenderOptions& options_;
  Writer w_;
  size_t next_image_ = 0;
  bool any_tools_ = false;
  bool has_head_ = false;
  size_t head_ = 0;
  const Message* calls_ = nullptr;  // the last assistant message
  size_t results_since_ = 0;        // tool messages since then
};

}  // namespace

Result<std::vector<Segment>> render_k3(const ChatRequest& request,
                                       std::span<const ImageInfo> images,
                                       const RenderOptions& options, size_t* head_segments) {
  Renderer renderer(request, images, options);
  auto segments = renderer.run();
  if (head_segments != nullptr) *head_segments = renderer.head_segments();
  return segments;
}

}  // namespace weft::text
