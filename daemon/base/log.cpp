#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <string>

namespace weft {
namespace {

std::atomic<int> g_level{static_cast<int>(LogLevel::kInfo)};
std::atomic<bool> g_journal{false};
char g_name[32] = "weft";  // written once by configure_log before threads start

}  // namespace

void configure_log(LogLevel level, bool journal_prefix, std::string_view process_name) {
  g_level = static_cast<int>(level);
  g_journal = journal_prefix;
  const size_t n = process_name.copy(g_name, sizeof(g_name) - 1);
  g_name[n] = '\0';
}

bool log_enabled(LogLevel level) {
  return static_cast<int>(level) <= g_level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view message) {
  std::string line;
  line.reserve(message.size() + 48);
  if (g_journal)
    line += fmt::format("<{}>", static_cast<int>(level));
  else
    line += fmt::format("{}: ", g_name);
  for (char c : message)
    line += (c == '\n' || c == '\r') ? ' ' : c;  // one record per line; no forged records
  line += '\n';
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n <= 0) return;  // nowhere left to report to
    done += static_cast<size_t>(n);
  }
}

}  // namespace weft
