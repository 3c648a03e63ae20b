// Logging to stderr in the form systemd's journal understands ("<6>message"). One line per call,
// any thread. Library rooms do not log: they return errors and the caller decides. Programs and
// long-lived objects log.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace weft {

enum class LogLevel { kError = 3, kWarning = 4, kNotice = 5, kInfo = 6, kDebug = 7 };

// Messages above `level` are dropped. `journal_prefix` writes "<N>" before each line (set when
// systemd reads us).
void configure_log(LogLevel level, bool journal_prefix, std::string_view process_name);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view message);

template <class... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> f, Args&&... a) {
  log_at(LogLevel::kError, f, std::forward<Args>(a)...);
}
template <class... Args>
void log_warning(fmt::format_string<Args...> f, Args&&... a) {
  log_at(LogLevel::kWarning, f, std::forward<Args>(a)...);
}
template <class... Args>
void log_notice(fmt::format_string<Args...> f, Args&&... a) {
  log_at(LogLevel::kNotice, f, std::forward<Args>(a)...);
}
template <class... Args>
void log_info(fmt::format_string<Args...> f, Args&&... a) {
  log_at(LogLevel::kInfo, f, std::forward<Args>(a)...);
}
template <class... Args>
void log_debug(fmt::format_string<Args...> f, Args&&... a) {
  log_at(LogLevel::kDebug, f, std::forward<Args>(a)...);
}

}  // namespace weft
