// TableReader: reads one TOML table key by key into typed fields, remembers which keys exist, and
// reports everything that does not fit with its place in the file. Used only while a config is
// parsed.
#pragma once

#include <toml++/toml.h>

#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace weft::config {

class TableReader {
 public:
  // `where` names the table in messages: "http", "deployment \"k3\"". Both references outlive the
  // reader.
  TableReader(const toml::table& table, std::string where, std::vector<ConfigIssue>& issues)
      : table_(table), where_(std::move(where)), issues_(issues) {}

  void boolean(const char* key, bool& out);
  void integer(const char* key, int64_t& out, int64_t low, int64_t high);
  void size(const char* key, uint64_t& out, uint64_t low, uint64_t high);
  void duration(const char* key, int64_t& out_ms, int64_t low_ms, int64_t high_ms);
  void string(const char* key, std::string& out);
  void choice(const char* key, std::string& out, std::initializer_list<const char*> allowed);
  void absolute_path(const char* key, std::string& out);
  void strings(const char* key, std::vector<std::string>& out);
  // Sub-table, or nullptr when absent.
  const toml::table* table(const char* key);
  const toml::array* tables(const char* key);
  // Reports the keys nobody asked for.
  void finish();

  bool has(const char* key) const { return table_.contains(key); }
  void report(const toml::source_region& at, std::string message, std::string hint = {});
  void report_here(std::string message, std::string hint = {}) {
    report(table_.source(), std::move(message), std::move(hint));
  }
  const toml::node* node(const char* key) const { return table_.get(key); }

 private:
  const toml::node* take(const char* key);
  void wrong_type(const toml::node& node, const char* key, const char* expected);

  const toml::table& table_;
  std::string where_;
  std::vector<ConfigIssue>& issues_;
  std::set<std::string> known_;
};

}  // namespace weft::config
