#include "text/python_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace weft::text {
namespace {

// Python's float repr: shortest digits that round trip; exponent form below 1e-4 and from 1e16 on.
std::string python_float(double value) {
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  std::string digits;
  const bool negative = text.front() == '-';
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  int exponent = 0;
  const size_t skip = text[e + 1] == '+' ? 2 : 1;  // from_chars takes no plus sign
  std::from_chars(text.data() + e + skip, text.data() + text.size(), exponent);

  std::string out = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    const int magnitude = std::abs(exponent);
    out += exponent < 0 ? "e-" : "e+";
    if (magnitude < 10) out += '0';
    return out + std::to_string(magnitude);
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

struct Printer {
  bool sorted;
  std::string_view comma;
  std::string_view colon;
  std::string out;

  void string(std::string_view s) {
    out += '"';
    append_json_escaped(out, s);
    out += '"';
  }
  void number(const JsonValue& v) {
    if (v.is_integer_spelling())
      out += v.spelling() == "-0" ? "0" : v.spelling();
    else
      out += python_float(*v.as_double());
  }
  void array(const JsonValue& v) {
    out += '[';
    bool first = true;
    for (const JsonValue& item : v.items()) {
      if (!first) out += comma;
      first = false;
      print(item);
    }
    out += ']';
  }
  void object(const JsonValue& v) {
    std::vector<const JsonValue::Member*> members;
    for (const auto& member : v.members()) members.push_back(&member);
    if (sorted)  // UTF-8 bytes sort like code points
      std::sort(members.begin(), members.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    out += '{';
    bool first = true;
    for (const auto* member : members) {
      if (!first) out += comma;
      first = false;
      string(member->first);
      out += colon;
      print(member->second);
    }
    out += '}';
  }
  void print(const JsonValue& v) {
    switch (v.kind()) {
      case JsonValue::Kind::kNull:
        out += "null";
        break;
      case JsonValue::Kind::kBool:
        out += v.as_bool() ? "true" : "false";
        break;
      case JsonValue::Kind::kNumber:
        number(v);
        break;
      case JsonValue::Kind::kString:
        string(v.as_string());
        break;
      case JsonValue::Kind::kArray:
        array(v);
        break;
      case JsonValue::Kind::kObject:
        object(v);
        break;
    }
  }
};

}  // namespace

std::string python_json(const JsonValue& value) {
  Printer printer{false, ", ", ": ", {}};
  printer.print(value);
  return std::move(printer.out);
}

std::string compact_sorted_json(const JsonValue& value) {
  Printer printer{true, ",", ":", {}};
  printer.print(value);
  return std::move(printer.out);
}

std::string argument_body(const JsonValue& value) {
  return value.is_string() ? value.as_string() : python_json(value);
}

const char* json_type_name(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return "boolean";
    case JsonValue::Kind::kNumber:
      return "number";
    case JsonValue::Kind::kString:
      return "string";
    case JsonValue::Kind::kArray:
      return "array";
    case JsonValue::Kind::kObject:
      return "object";
  }
  return "null";
}

bool minify_json(std::string_view text, std::string* out) {
  if (!parse_json(text).ok()) return false;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      *out += c;
      if (c == '\\' && i + 1 < text.size()) *out += text[++i];
      if (c == '"') in_string = false;
    } else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
      *out += c;
      in_string = c == '"';
    }
  }
  return true;
}

}  // namespace weft::text
