#include "http/types.h"

#include <algorithm>
#include <optional>

#include "base/json_value.h"
#include "http/target.h"

namespace weft::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

}  // namespace

std::string_view trim_whitespace(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return lower(x) == lower(y); });
}

void Headers::set(std::string_view name, std::string value) {
  std::erase_if(fields_, [&](const Field& f) { return equals_ignoring_case(f.first, name); });
  fields_.emplace_back(std::string(name), std::move(value));
}

const std::string* Headers::get(std::string_view name) const {
  for (const Field& f : fields_) {
    if (equals_ignoring_case(f.first, name)) return &f.second;
  }
  return nullptr;
}

size_t Headers::count(std::string_view name) const {
  return static_cast<size_t>(std::count_if(fields_.begin(), fields_.end(), [&](const Field& f) {
    return equals_ignoring_case(f.first, name);
  }));
}

bool Headers::has_token(std::string_view name, std::string_view token) const {
  for (const Field& f : fields_) {
    if (!equals_ignoring_case(f.first, name)) continue;
    std::string_view rest = f.second;
    while (true) {
      const size_t comma = rest.find(',');
      if (equals_ignoring_case(trim_whitespace(rest.substr(0, comma)), token)) return true;
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  return false;
}

std::unique_ptr<std::string> Request::query_value(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const size_t end = rest.find('&');
    const std::string_view pair = rest.substr(0, end);
    const size_t equal = pair.find('=');
    const auto key = percent_decode(pair.substr(0, equal), true);
    if (key && *key == name) {
      const std::string_view raw =
          equal == std::string_view::npos ? std::string_view() : pair.substr(equal + 1);
      auto value = percent_decode(raw, true);
      return std::make_unique<std::string>(value ? std::move(*value) : std::string(raw));
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return nullptr;
}

std::string format_openai_error(const HttpError& error) {
  std::string out = "{\"error\":{\"message\":\"";
  append_json_escaped(out, error.message);
  out += error.status >= 500 ? "\",\"type\":\"server_error\""
                             : "\",\"type\":\"invalid_request_error\"";
  out += ",\"param\":null,\"code\":\"";
  append_json_escaped(out, error.code);
  out += "\"}}";
  return out;
}

const char* reason_phrase(int status) {
  struct Entry {
    int status;
    const char* phrase;
  };
  static constexpr Entry kTable[] = {
      {100, "Continue"},
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {304, "Not Modified"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {499, "Client Closed Request"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {502, "Bad Gateway"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
      {529, "Overloaded"},
  };
  for (const Entry& e : kTable) {
    if (e.status == status) return e.phrase;
  }
  return "Status";
}

}  // namespace weft::http
