#include "base/json_value.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <unordered_map>

#include "base/utf8.h"

namespace weft {

JsonValue JsonValue::boolean(bool v) {
  JsonValue j;
  j.kind_ = Kind::kBool;
  j.bool_ = v;
  return j;
}
JsonValue JsonValue::integer(int64_t v) { return number(std::to_string(v)); }
JsonValue JsonValue::number(std::string spelling) {
  JsonValue j;
  j.kind_ = Kind::kNumber;
  j.text_ = std::move(spelling);
  return j;
}
JsonValue JsonValue::string(std::string v) {
  JsonValue j;
  j.kind_ = Kind::kString;
  j.text_ = std::move(v);
  return j;
}
JsonValue JsonValue::array(std::vector<JsonValue> v) {
  JsonValue j;
  j.kind_ = Kind::kArray;
  j.items_ = std::move(v);
  return j;
}
JsonValue JsonValue::object(std::vector<Member> v) {
  JsonValue j;
  j.kind_ = Kind::kObject;
  j.members_ = std::move(v);
  return j;
}

bool JsonValue::as_bool() const {
  WEFT_CHECK(is_bool());
  return bool_;
}
const std::string& JsonValue::as_string() const {
  WEFT_CHECK(is_string());
  return text_;
}
const std::string& JsonValue::spelling() const {
  WEFT_CHECK(is_number());
  return text_;
}
bool JsonValue::is_integer_spelling() const {
  return is_number() && text_.find_first_of(".eE") == std::string::npos;
}
std::optional<int64_t> JsonValue::as_int() const {
  if (!is_integer_spelling()) return std::nullopt;
  int64_t v = 0;
  const auto [end, ec] = std::from_chars(text_.data(), text_.data() + text_.size(), v);
  if (ec != std::errc() || end != text_.data() + text_.size()) return std::nullopt;
  return v;
}
std::optional<double> JsonValue::as_double() const {
  if (!is_number()) return std::nullopt;
  return std::strtod(text_.c_str(), nullptr);
}
const std::vector<JsonValue>& JsonValue::items() const {
  WEFT_CHECK(is_array());
  return items_;
}
std::vector<JsonValue>& JsonValue::items() {
  WEFT_CHECK(is_array());
  return items_;
}
const std::vector<JsonValue::Member>& JsonValue::members() const {
  WEFT_CHECK(is_object());
  return members_;
}
std::vector<JsonValue::Member>& JsonValue::members() {
  WEFT_CHECK(is_object());
  return members_;
}
const JsonValue* JsonValue::find(std::string_view key) const {
  for (const auto& [name, value] : members_)
    if (name == key) return &value;
  return nullptr;
}

bool JsonValue::operator==(const JsonValue& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kNull:
      return true;
    case Kind::kBool:
      return bool_ == other.bool_;
    case Kind::kNumber:
    case Kind::kString:
      return text_ == other.text_;
    case Kind::kArray:
      return items_ == other.items_;
    case Kind::kObject:
      break;
  }
  if (members_.size() != other.members_.size()) return false;
  return std::all_of(members_.begin(), members_.end(), [&](const Member& m) {
    const JsonValue* found = other.find(m.first);
    return found != nullptr && *found == m.second;
  });
}

namespace {

class Parser {
 public:
  Parser(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  Result<JsonValue> run() {
    JsonValue value;
    if (!parse_value(0, &value)) return std::move(error_);
    skip_space();
    if (pos_ != text_.size()) {
      fail("expected the end of the document");
      return std::move(error_);
    }
    return value;
  }

 private:
  bool fail(std::string_view what) {
    const size_t line = 1 + static_cast<size_t>(std::count(
                                text_.begin(), text_.begin() + static_cast<long>(pos_), '\n'));
    const size_t start = text_.rfind('\n', pos_ == 0 ? 0 : pos_ - 1);
    const size_t column = pos_ - (line == 1 || start == std::string_view::npos ? 0 : start + 1) + 1;
    error_ = make_error(ErrorCode::kInvalid, "invalid JSON at line {}, column {}: {}", line, column,
                        what);
    return false;
  }
  void skip_space() {
    while (pos_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[pos_]) != std::string_view::npos)
      ++pos_;
  }
  char peek() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }
  bool at_end() const { return pos_ >= text_.size(); }

  bool parse_value(size_t depth, JsonValue* out) {
    skip_space();
    if (at_end()) return fail("unexpected end, expected a value");
    switch (peek()) {
      case '{':
        return parse_object(depth, out);
      case '[':
        return parse_array(depth, out);
      case '"': {
        std::string s;
        if (!parse_string(&s)) return false;
        *out = JsonValue::string(std::move(s));
        return true;
      }
      case 't':
        return parse_word("true", JsonValue::boolean(true), out);
      case 'f':
        return parse_word("false", JsonValue::boolean(false), out);
      case 'n':
        return parse_word("null", JsonValue::null(), out);
      default:
        return parse_number(out);
    }
  }

  bool parse_word(std::string_view word, JsonValue value, JsonValue* out) {
    if (text_.substr(pos_, word.size()) != word) return fail("expected a value");
    pos_ += word.size();
    *out = std::move(value);
    return true;
  }

  bool digits() {
    const size_t start = pos_;
    while (peek() >= '0' && peek() <= '9') ++pos_;
    return pos_ > start;
  }
  bool parse_number(JsonValue* out) {
    const size_t start = pos_;
    if (peek() == '-') ++pos_;
    if (peek() == '0') {
      ++pos_;
    } else if (!digits()) {
      pos_ = start;
      return fail("expected a value");
    }
    if (peek() == '.') {
      ++pos_;
      if (!digits()) return fail("expected a digit after the decimal point");
    }
    if (peek() == 'e' || peek() == 'E') {
      ++pos_;
      if (peek() == '+' || peek() == '-') ++pos_;
      if (!digits()) return fail("expected a digit in the exponent");
    }
    *out = JsonValue::number(std::string(text_.substr(start, pos_ - start)));
    return true;
  }

  bool parse_hex4(uint32_t* out) {
    if (text_.size() - pos_ < 4) return fail("truncated \\u escape");
    uint32_t v = 0;
    const char* first = text_.data() + pos_;
    for (int i = 0; i < 4; ++i)
      if (!std::isxdigit(static_cast<unsigned char>(first[i])))
        return fail("expected four hex digits after \\u");
    std::from_chars(first, first + 4, v, 16);
    pos_ += 4;
    *out = v;
    return true;
  }
  bool parse_unicode_escape(std::string* out) {
    uint32_t unit = 0;
    if (!parse_hex4(&unit)) return false;
    const bool high = unit >= 0xD800 && unit <= 0xDBFF;
    if (high && text_.substr(pos_, 2) == "\\u") {
      const size_t mark = pos_;
      uint32_t low = 0;
      pos_ += 2;
      if (!parse_hex4(&low)) return false;
      if (low >= 0xDC00 && low <= 0xDFFF) {
        append_utf8(*out, 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00));
        return true;
      }
      pos_ = mark;  // not a pair: the second escape stands for itself
    }
    const bool surrogate = unit >= 0xD800 && unit <= 0xDFFF;
    append_utf8(*out, surrogate ? 0xFFFD : unit);
    return true;
  }
  bool parse_escape(std::string* out) {
    ++pos_;
    if (at_end()) return fail("unexpected end inside a string");
    const char c = text_[pos_++];
    switch (c) {
      case '"':
      case '\\':
      case '/':
        *out += c;
        return true;
      case 'b':
        *out += '\b';
        return true;
      case 'f':
        *out += '\f';
        return true;
      case 'n':
        *out += '\n';
        return true;
      case 'r':
        *out += '\r';
        return true;
      case 't':
        *out += '\t';
        return true;
      case 'u':
        return parse_unicode_escape(out);
      default:
        --pos_;
        return fail("unknown escape in a string");
    }
  }
  bool parse_string(std::string* out) {
    ++pos_;
    while (true) {
      if (at_end()) return fail("unexpected end inside a string");
      const auto c = static_cast<unsigned char>(text_[pos_]);
      if (c == '"') break;
      if (c == '\\') {
        if (!parse_escape(out)) return false;
      } else if (c < 0x20) {
        return fail("control character inside a string; write it as an escape");
      } else {
        char32_t cp = 0;
        const size_t n = decode_utf8(text_, pos_, &cp);
        if (n == 0) return fail("invalid UTF-8 inside a string");
        out->append(text_, pos_, n);
        pos_ += n;
      }
    }
    ++pos_;
    return true;
  }

  bool enter(size_t depth) {
    if (depth >= limits_.depth_max)
      return fail(fmt::format("nested deeper than {} levels", limits_.depth_max));
    ++pos_;
    skip_space();
    return true;
  }
  bool parse_array(size_t depth, JsonValue* out) {
    if (!enter(depth)) return false;
    *out = JsonValue::array();
    if (peek() == ']') return ++pos_, true;
    while (true) {
      out->items().emplace_back();
      if (!parse_value(depth + 1, &out->items().back())) return false;
      skip_space();
      if (peek() == ']') return ++pos_, true;
      if (peek() != ',') return fail("expected ',' or ']'");
      ++pos_;
    }
  }
  bool parse_object(size_t depth, JsonValue* out) {
    if (!enter(depth)) return false;
    *out = JsonValue::object();
    std::unordered_map<std::string, size_t> seen;
    if (peek() == '}') return ++pos_, true;
    while (true) {
      skip_space();
      if (peek() != '"') return fail("expected a string as object key");
      std::string key;
      if (!parse_string(&key)) return false;
      skip_space();
      if (peek() != ':') return fail("expected ':' after an object key");
      ++pos_;
      JsonValue value;
      if (!parse_value(depth + 1, &value)) return false;
      const auto [place, fresh] = seen.emplace(key, out->members().size());
      if (fresh)
        out->members().emplace_back(std::move(key), std::move(value));
      else
        out->members()[place->second].second = std::move(value);
      skip_space();
      if (peek() == '}') return ++pos_, true;
      if (peek() != ',') return fail("expected ',' or '}'");
      ++pos_;
    }
  }

  std::string_view text_;
  JsonLimits limits_;
  size_t pos_ = 0;
  Error error_;
};

void dump_to(std::string& out, const JsonValue& v) {
  switch (v.kind()) {
    case JsonValue::Kind::kNull:
      out += "null";
      return;
    case JsonValue::Kind::kBool:
      out += v.as_bool() ? "true" : "false";
      return;
    case JsonValue::Kind::kNumber:
      out += v.spelling();
      return;
    case JsonValue::Kind::kString:
      out += '"';
      append_json_escaped(out, v.as_string());
      out += '"';
      return;
    case JsonValue::Kind::kArray: {
      out += '[';
      bool first = true;
      for (const JsonValue& item : v.items()) {
        if (!std::exchange(first, false)) out += ',';
        dump_to(out, item);
      }
      out += ']';
      return;
    }
    case JsonValue::Kind::kObject: {
      out += '{';
      bool first = true;
      for (const auto& [key, value] : v.members()) {
        if (!std::exchange(first, false)) out += ',';
        out += '"';
        append_json_escaped(out, key);
        out += "\":";
        dump_to(out, value);
      }
      out += '}';
      return;
    }
  }
}

}  // namespace

Result<JsonValue> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max)
    return make_error(ErrorCode::kInvalid, "JSON document of {} bytes exceeds the limit of {}",
                      text.size(), limits.bytes_max);
  return Parser(text, limits).run();
}

std::string dump_json(const JsonValue& value) {
  std::string out;
  dump_to(out, value);
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          out += c;
    }
  }
}

}  // namespace weft
