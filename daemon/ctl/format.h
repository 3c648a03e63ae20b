// What weftctl prints for people: tables, durations, text that is safe on a terminal. Pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::ctl {

// Control characters (C0 but newline and tab, DEL, C1) become '?': what a model or a peer says
// cannot drive the terminal.
std::string terminal_safe(std::string_view text);

class Table {
 public:
  explicit Table(std::vector<std::string> header) { add(std::move(header)); }
  void add(std::vector<std::string> row);
  std::string to_string() const;  // columns aligned, two spaces between, no trailing blanks

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string format_duration_s(int64_t seconds);  // "42s", "3m 7s", "2h 5m", "4d 1h"
std::string format_duration_ms(int64_t ms);      // "850ms", then as above
std::string format_percent(int64_t done, int64_t total);

}  // namespace weft::ctl
