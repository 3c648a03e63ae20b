#include "config/table_reader.h"

#include <fmt/format.h>

#include "config/units.h"

namespace weft::config {
namespace {

const char* type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

}  // namespace

void TableReader::report(const toml::source_region& at, std::string message, std::string hint) {
  issues_.push_back({at.begin.line, at.begin.column, std::move(message), std::move(hint)});
}

const toml::node* TableReader::take(const char* key) {
  known_.insert(key);
  return table_.get(key);
}

void TableReader::wrong_type(const toml::node& node, const char* key, const char* expected) {
  const auto text = node.value_exact<std::string>();
  const std::string got = text ? fmt::format("\"{}\"", *text) : type_name(node);
  report(node.source(), fmt::format("[{}] {}: expected {}, got {}", where_, key, expected, got));
}

void TableReader::boolean(const char* key, bool& out) {
  const toml::node* n = take(key);
  if (n == nullptr) return;
  if (const auto v = n->value_exact<bool>())
    out = *v;
  else
    wrong_type(*n, key, "true or false");
}

void TableReader::integer(const char* key, int64_t& out, int64_t low, int64_t high) {
  const toml::node* n = take(key);
  if (n == nullptr) return;
  const auto v = n->value_exact<int64_t>();
  if (!v) return wrong_type(*n, key, "an integer");
  if (*v < low || *v > high)
    return report(n->source(),
                  fmt::format("[{}] {}: expected {} to {}, got {}", where_, key, low, high, *v));
  out = *v;
}

void TableReader::size(const char* key, uint64_t& out, uint64_t low, uint64_t high) {
  const toml::node* n = take(key);
  if (n == nullptr) return;
  std::optional<uint64_t> v;
  if (const auto text = n->value_exact<std::string>())
    v = parse_size(*text);
  else if (const auto number = n->value_exact<int64_t>(); number && *number >= 0)
    v = static_cast<uint64_t>(*number);
  if (!v) return wrong_type(*n, key, "a size such as \"64MiB\" or a number of bytes");
  if (*v < low || *v > high)
    return report(n->source(), fmt::format("[{}] {}: expected {} to {} bytes, got {}", where_, key,
                                           low, high, *v));
  out = *v;
}

void TableReader::duration(const char* key, int64_t& out_ms, int64_t low_ms, int64_t high_ms) {
  const toml::node* n = take(key);
  if (n == nullptr) return;
  const auto text = n->value_exact<std::string>();
  const auto v = text ? parse_duration_ms(*text) : std::nullopt;
  if (!v) return wrong_type(*n, key, "a duration such as \"250ms\", \"30s\" or \"5m\"");
  if (*v < low_ms || *v > high_ms)
    return report(n->source(), fmt::format("[{}] {}: expected {} ms to {} ms, got {} ms", where_,
                                           key, low_ms, high_ms, *v));
  out_ms = *v;
}

void TableReader::string(const char* key, std::string& out) {
  const toml::node* n = take(key);
  if (n == nullptr) return;
  if (auto v = n->value_exact<std::string>())
    out = std::move(*v);
  else
    wrong_type(*n, key, "a string");
}

void TableReader::choice(const char* key, std::string& out,
                         std::initializer_list<const char*> allowed) {
  const toml::node* n = take(key);
  if (n == nullptr) return;
  const auto v = n->value_exact<std::string>();
  if (!v) return wrong_type(*n, key, "a string");
  const std::vector<std::string> words(allowed.begin(), allowed.end());
  for (const std::string& word : words)
    if (word == *v) {
      out = *v;
      return;
    }
  report(n->source(),
         fmt::format("[{}] {}: expected one of \"{}\", got \"{}\"", where_, key,
                     fmt::join(words, "\", \""), *v),
         nearest(*v, words));
}

void TableReader::absolute_path(const char* key, std::string& out) {
  const toml::node* n = take(key);
  if (n == nullptr) return;
  const auto v = n->value_exact<std::string>();
  if (!v) return wrong_type(*n, key, "a string");
  if (!v->starts_with('/') || v->find('\0') != std::string::npos)
    return report(n->source(),
                  fmt::format("[{}] {}: expected an absolute path, got \"{}\"", where_, key, *v));
  out = *v;
}

void TableReader::strings(const char* key, std::vector<std::string>& out) {
  const toml::node* n = take(key);
  if (n == nullptr) return;
  const toml::array* list = n->as_array();
  if (list == nullptr) return wrong_type(*n, key, "an array of strings");
  std::vector<std::string> values;
  for (const toml::node& item : *list) {
    const auto v = item.value_exact<std::string>();
    if (!v) return wrong_type(item, key, "an array of strings");
    values.push_back(*v);
  }
  out = std::move(values);
}

const toml::table* TableReader::table(const char* key) {
  const toml::node* n = take(key);
  if (n == nullptr) return nullptr;
  if (n->as_table() == nullptr) wrong_type(*n, key, "a table");
  return n->as_table();
}

const toml::array* TableReader::tables(const char* key) {
  const toml::node* n = take(key);
  if (n == nullptr) return nullptr;
  const toml::array* list = n->as_array();
  if (list == nullptr || !list->is_homogeneous(toml::node_type::table)) {
    wrong_type(*n, key, fmt::format("[[{}]] tables", key).c_str());
    return nullptr;
  }
  return list;
}

void TableReader::finish() {
  for (const auto& [key, value] : table_) {
    const std::string name(key.str());
    if (known_.contains(name)) continue;
    const std::string near = nearest(name, known_);
    report(key.source(), fmt::format("[{}] unknown key \"{}\"", where_, name),
           near.empty() ? fmt::format("valid keys: {}", fmt::join(known_, ", "))
                        : fmt::format("did you mean \"{}\"?", near));
  }
}

}  // namespace weft::config
