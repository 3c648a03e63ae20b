#include "file_uri.h"

namespace storage_file {
namespace {

constexpr std::string_view kScheme = "file://";
constexpr int kScoreScheme = 100;
constexpr int kScorePath = 50;
constexpr size_t kPrintableBytesMax = 200;

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool percent_decode(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      *out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) return false;
    *out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return true;
}

}  // namespace

int score_uri(std::string_view uri) {
  if (starts_with(uri, kScheme)) return kScoreScheme;
  return starts_with(uri, "/") ? kScorePath : 0;
}

bool path_of_uri(std::string_view uri, std::string* path, std::string* error) {
  std::string result;
  if (starts_with(uri, kScheme)) {
    std::string_view rest = uri.substr(kScheme.size());
    if (starts_with(rest, "localhost/")) rest.remove_prefix(std::string_view("localhost").size());
    if (!starts_with(rest, "/")) {
      *error = "expected file:///absolute/path, got '" + printable(uri) + "'";
      return false;
    }
    if (!percent_decode(rest, &result)) {
      *error =
          "'" + printable(uri) + "' has a '%' that two hex digits do not follow; write '%' as %25";
      return false;
    }
  } else if (starts_with(uri, "/")) {
    result = uri;
  } else {
    *error = "expected file:///absolute/path or an absolute path, got '" + printable(uri) + "'";
    return false;
  }
  if (result.find('\0') != std::string::npos) {
    *error = "'" + printable(uri) + "' has a NUL byte, which no file name can have";
    return false;
  }
  if (result.size() > kPathBytesMax) {
    *error = "the path has " + std::to_string(result.size()) + " bytes, the limit is " +
             std::to_string(kPathBytesMax);
    return false;
  }
  *path = std::move(result);
  return true;
}

std::string printable(std::string_view name) {
  std::string out;
  for (char c : name.substr(0, kPrintableBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  if (name.size() > kPrintableBytesMax) out += "...";
  return out;
}

}  // namespace storage_file
