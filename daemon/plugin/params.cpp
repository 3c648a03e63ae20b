#include "plugin/params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "plugin/status.h"

namespace weft::plugin {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kSizes[] = {{"", 1},
                           {"B", 1},
                           {"KB", 1e3},
                           {"MB", 1e6},
                           {"GB", 1e9},
                           {"TB", 1e12},
                           {"KiB", 1024.},
                           {"MiB", 1024. * 1024},
                           {"GiB", 1024. * 1024 * 1024},
                           {"TiB", 1024. * 1024 * 1024 * 1024}};
constexpr Unit kDurations[] = {{"ns", 1},  {"us", 1e3}, {"ms", 1e6},
                               {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};

// Number, optional spaces, unit. Nothing when the text has another form, the unit is unknown or the
// value does not fit.
template <size_t N>
std::optional<int64_t> scaled(std::string_view text, const Unit (&units)[N]) {
  double number = 0;
  const auto [end, ec] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (ec != std::errc() || text.front() == '-') return std::nullopt;
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& u : units) {
    if (u.name != unit) continue;
    // Whole numbers go through integers: doubles would round above 2^53.
    int64_t whole = 0;
    const auto [iend, iec] = std::from_chars(text.data(), text.data() + text.size(), whole);
    if (iec == std::errc() && iend == end) {
      int64_t out = 0;
      if (__builtin_mul_overflow(whole, static_cast<int64_t>(u.factor), &out)) return std::nullopt;
      return out;
    }
    const double value = number * u.factor;
    if (!(value < 9.2e18)) return std::nullopt;
    return static_cast<int64_t>(std::llround(value));
  }
  return std::nullopt;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

Error unknown_key(const weft_key* keys, std::string_view name) {
  const std::string shown = clean_text(name.substr(0, 64));
  if (keys == nullptr || keys[0].name == nullptr) {
    return make_error(ErrorCode::kInvalid,
                      "setting \"{}\": this interface has no settings; remove it", shown);
  }
  const weft_key* nearest = keys;
  for (const weft_key* key = keys; key->name != nullptr; ++key) {
    if (edit_distance(shown, key->name) < edit_distance(shown, nearest->name)) nearest = key;
  }
  return make_error(ErrorCode::kInvalid, "setting \"{}\" is unknown; did you mean \"{}\"? ({})",
                    shown, nearest->name, nearest->doc == nullptr ? "" : nearest->doc);
}

Error bad_value(const weft_key& key, std::string_view expected, std::string_view text) {
  return make_error(ErrorCode::kInvalid, "setting \"{}\": expected {}, came \"{}\"", key.name,
                    expected, clean_text(text.substr(0, 100)));
}

}  // namespace

Result<int64_t> parse_size(std::string_view text) {
  if (!text.empty())
    if (const auto value = scaled(text, kSizes)) return *value;
  return make_error(ErrorCode::kInvalid,
                    "expected a size such as 4096, 64MiB or 1.5GB, came \"{}\"", clean_text(text));
}

Result<int64_t> parse_duration(std::string_view text) {
  if (text == "0") return 0;
  if (!text.empty())
    if (const auto value = scaled(text, kDurations)) return *value;
  return make_error(
      ErrorCode::kInvalid,
      "expected a duration with unit ns, us, ms, s, m or h such as 250ms, came \"{}\"",
      clean_text(text));
}

Result<weft_param> parse_value(const weft_key& key, std::string_view text) {
  weft_param out{};
  out.name = key.name;
  out.type = key.type;
  out.text = weft_str{text.data(), text.size()};
  const char* end = text.data() + text.size();
  switch (key.type) {
    case WEFT_KEY_STR:
      return out;
    case WEFT_KEY_INT: {
      const auto [ptr, ec] = std::from_chars(text.data(), end, out.i);
      if (ec != std::errc() || ptr != end) return bad_value(key, "a whole number", text);
      return out;
    }
    case WEFT_KEY_BOOL:
      if (text != "true" && text != "false") return bad_value(key, "true or false", text);
      out.i = text == "true" ? 1 : 0;
      return out;
    case WEFT_KEY_REAL: {
      const auto [ptr, ec] = std::from_chars(text.data(), end, out.r);
      if (ec != std::errc() || ptr != end || !std::isfinite(out.r))
        return bad_value(key, "a finite number", text);
      return out;
    }
    case WEFT_KEY_SIZE: {
      auto value = parse_size(text);
      if (!value.ok()) return bad_value(key, "a size such as 4096, 64MiB or 1.5GB", text);
      out.i = *value;
      return out;
    }
    case WEFT_KEY_DURATION: {
      auto value = parse_duration(text);
      if (!value.ok()) return bad_value(key, "a duration with its unit such as 250ms or 30s", text);
      out.i = *value;
      return out;
    }
    default:
      return bad_value(key, "a known type in the key table", std::to_string(key.type));
  }
}

Result<ParamSet> ParamSet::make(const weft_key* keys, const ParamList& settings) {
  ParamSet out;
  const auto find_key = [keys](std::string_view name) -> const weft_key* {
    for (const weft_key* key = keys; key != nullptr && key->name != nullptr; ++key)
      if (name == key->name) return key;
    return nullptr;
  };
  const auto add = [&out](const weft_key& key, std::string_view text) -> Status {
    out.texts_.push_back(std::make_unique<std::pair<std::string, std::string>>(key.name, text));
    const auto& kept = *out.texts_.back();
    WEFT_ASSIGN(weft_param param, parse_value(key, kept.second));
    param.name = kept.first.c_str();
    out.params_.push_back(param);
    return {};
  };
  for (const auto& [name, text] : settings) {
    const weft_key* key = find_key(name);
    if (key == nullptr) return unknown_key(keys, name);
    if (out.find(name) != nullptr) {
      return make_error(ErrorCode::kInvalid,
                        "setting \"{}\": expected once, came twice; remove one", name);
    }
    WEFT_TRY(add(*key, text));
  }
  for (const weft_key* key = keys; key != nullptr && key->name != nullptr; ++key) {
    if (out.find(key->name) != nullptr) continue;
    if (key->dflt != nullptr) {
      WEFT_TRY(add(*key, key->dflt));
    } else if ((key->flags & WEFT_KEY_REQUIRED) != 0) {
      return make_error(ErrorCode::kInvalid,
                        "setting \"{}\": expected a value, came none; set it ({})", key->name,
                        key->doc == nullptr ? "" : key->doc);
    }
  }
  return out;
}

const weft_param* ParamSet::find(std::string_view name) const {
  for (const weft_param& param : params_)
    if (name == param.name) return &param;
  return nullptr;
}

}  // namespace weft::plugin
