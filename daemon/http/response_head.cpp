#include "http/response_head.h"

#include <fmt/format.h>

#include <ctime>

namespace weft::http {
namespace {

void append_clean(std::string& out, std::string_view text) {
  for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 && c != '\t' ? ' ' : c;
}

}  // namespace

std::string http_date(int64_t unix_seconds) {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const time_t t = unix_seconds;
  tm parts{};
  gmtime_r(&t, &parts);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[parts.tm_wday], parts.tm_mday,
                     kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min,
                     parts.tm_sec);
}

std::string response_head(int status, const Headers& headers, int version_minor) {
  // A 1.0 client gets its own version back: some treat a 1.1 answer as licence for chunked bodies.
  std::string out =
      fmt::format("HTTP/1.{} {} {}\r\n", version_minor, status, reason_phrase(status));
  for (const auto& [name, value] : headers.fields()) {
    append_clean(out, name);
    out += ": ";
    append_clean(out, value);
    out += "\r\n";
  }
  out += "\r\n";
  return out;
}

}  // namespace weft::http
