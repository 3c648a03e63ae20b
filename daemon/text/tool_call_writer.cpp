#include "text/tool_call_writer.h"

#include <fmt/format.h>

#include "base/json_value.h"
#include "text/python_json.h"

namespace weft::text {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

std::string quoted(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  return out + '"';
}

std::string decode_entities(std::string text) {
  const auto replace = [&](std::string_view from, char to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1))
      text.replace(at, from.size(), 1, to);
  };
  replace("&quot;", '"');
  replace("&amp;", '&');
  return text;
}

bool name_char(char c, bool first) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_') return true;
  return !first && ((c >= '0' && c <= '9') || c == '.' || c == '-');
}

}  // namespace

std::string make_call_id(uint64_t seed, size_t ordinal) {
  return fmt::format("call_{:016x}_{:03d}", seed, ordinal);
}

std::map<std::string, std::string, std::less<>> parse_attributes(std::string_view text) {
  std::map<std::string, std::string, std::less<>> out;
  size_t i = 0;
  const auto skip = [&] {
    const size_t from = i;
    while (i < text.size() && kBlank.find(text[i]) != std::string_view::npos) ++i;
    return i > from;
  };
  while (skip()) {
    const size_t begin = i;
    while (i < text.size() && name_char(text[i], i == begin)) ++i;
    const std::string_view name = text.substr(begin, i - begin);
    skip();
    if (name.empty() || i == text.size() || text[i++] != '=') break;
    skip();
    if (i == text.size() || text[i++] != '"') break;
    const size_t end = text.find('"', i);
    if (end == std::string_view::npos) break;
    out.emplace(name, decode_entities(std::string(text.substr(i, end - i))));
    i = end + 1;
  }
  return out;
}

void ToolCallWriter::begin_call() { *this = ToolCallWriter(); }

std::string ToolCallWriter::key_prefix() {
  std::string out = wrote_ ? "," : "{";
  wrote_ = true;
  return out + quoted(key_) + ":";
}

std::string ToolCallWriter::begin_argument(
    const std::map<std::string, std::string, std::less<>>& attributes) {
  if (kind_ == Kind::kNone) kind_ = Kind::kArguments;
  const auto key = attributes.find("key");
  value_ = Value::kIgnored;
  if (kind_ != Kind::kArguments || key == attributes.end()) return {};
  key_ = key->second;
  typed_.clear();
  const auto type = attributes.find("type");
  if (type != attributes.end() && !type->second.empty() && type->second != "string") {
    value_ = Value::kTyped;
    return {};
  }
  value_ = Value::kString;
  return key_prefix() + '"';
}

std::string ToolCallWriter::begin_json() {
  if (kind_ == Kind::kNone) kind_ = Kind::kJson;
  value_ = kind_ == Kind::kJson ? Value::kJson : Value::kIgnored;
  return {};
}

std::string ToolCallWriter::value(std::string_view text) {
  switch (value_) {
    case Value::kString: {
      std::string out;
      append_json_escaped(out, text);
      return out;
    }
    case Value::kTyped:
      typed_ += text;
      return {};
    case Value::kJson:
      wrote_ = wrote_ || !text.empty();
      return std::string(text);
    case Value::kIgnored:
    case Value::kNone:
      break;
  }
  return {};
}

std::string ToolCallWriter::end_value(bool cut) {
  const Value ended = std::exchange(value_, Value::kNone);
  if (ended == Value::kString) return "\"";
  if (ended != Value::kTyped) return {};
  std::string json;
  if (minify_json(typed_, &json)) return key_prefix() + json;
  return cut ? "" : key_prefix() + quoted(typed_);
}

std::string ToolCallWriter::end_call() {
  if (kind_ == Kind::kJson) return wrote_ ? "" : "{}";
  return wrote_ ? "}" : "{}";
}

}  // namespace weft::text
