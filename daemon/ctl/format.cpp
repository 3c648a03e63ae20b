#include "ctl/format.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"

namespace weft::ctl {

std::string terminal_safe(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    char32_t c = 0;
    const size_t n = decode_utf8(text, i, &c);
    const bool control = n == 0 || (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
    if (control) {
      out += '?';
    } else {
      out.append(text.substr(i, n));
    }
    i += std::max<size_t>(n, 1);
  }
  return out;
}

namespace {

// Code points, which is the width of everything that stands in these tables.
size_t width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) {
    cell = terminal_safe(cell);
    std::replace(cell.begin(), cell.end(), '\n', ' ');
    if (cell.empty()) cell.assign(1, '-');
  }
  rows_.push_back(std::move(row));
}

std::string Table::to_string() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      out += row[i];
      if (i + 1 < row.size()) out.append(widths[i] - width(row[i]) + 2, ' ');
    }
    out += '\n';
  }
  return out;
}

std::string format_duration_s(int64_t s) {
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m {}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h {}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d {}h", s / 86400, s / 3600 % 24);
}

std::string format_duration_ms(int64_t ms) {
  return ms < 1000 ? fmt::format("{}ms", ms) : format_duration_s(ms / 1000);
}

std::string format_percent(int64_t done, int64_t total) {
  if (total <= 0) return "";
  const double part = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  return fmt::format("{:.0f}%", part * 100.0);
}

}  // namespace weft::ctl
