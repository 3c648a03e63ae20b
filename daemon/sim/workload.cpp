#include "sim/workload.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/json_value.h"

namespace weft::sim {
namespace {

constexpr size_t kBlocksMax = 1u << 20;
constexpr double kSecondsMax = 1e9;
constexpr double kNsPerSecond = 1e9;

// Members of one line; the first problem is kept.
class Line {
 public:
  explicit Line(const JsonValue& object) : object_(object) {}

  bool has(const char* key) const { return object_.find(key) != nullptr; }
  uint64_t time(const char* key, double ns_per_unit) {
    const JsonValue* v = object_.find(key);
    const double most = kSecondsMax * kNsPerSecond / ns_per_unit;
    const double value = v != nullptr && v->is_number() ? v->as_double().value_or(-1) : -1;
    if (value >= 0 && value <= most) return static_cast<uint64_t>(value * ns_per_unit);
    fail(fmt::format("\"{}\": a number from 0 to {:g} expected, got {}", key, most, shown(v)));
    return 0;
  }
  int64_t integer(const char* key, int64_t low, int64_t high, int64_t dflt) {
    const JsonValue* v = object_.find(key);
    if (v == nullptr && dflt >= low) return dflt;
    const int64_t value = v != nullptr && v->is_number() ? v->as_int().value_or(low - 1) : low - 1;
    if (value >= low && value <= high) return value;
    fail(
        fmt::format("\"{}\": an integer from {} to {} expected, got {}", key, low, high, shown(v)));
    return low;
  }
  uint32_t count(const char* key, int64_t low, int64_t dflt) {
    return static_cast<uint32_t>(integer(key, low, kTokensMax, dflt));
  }
  void hashes(const char* key, std::vector<uint64_t>* out) {
    const JsonValue* v = object_.find(key);
    if (v == nullptr) return;
    if (!v->is_array() || v->items().size() > kBlocksMax) {
      return fail(fmt::format("\"{}\": an array of at most {} integers expected", key, kBlocksMax));
    }
    for (const JsonValue& item : v->items()) {
      const auto hash = item.is_number() ? item.as_int() : std::nullopt;
      if (!hash) return fail(fmt::format("\"{}\": integers expected, got {}", key, shown(&item)));
      out->push_back(static_cast<uint64_t>(*hash));
    }
  }
  void fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }
  const std::string& problem() const { return problem_; }

 private:
  static std::string shown(const JsonValue* v) {
    return v == nullptr ? "nothing" : dump_json(*v).substr(0, 40);
  }
  const JsonValue& object_;
  std::string problem_;
};

SimRequest read_ours(Line& line) {
  SimRequest r;
  r.arrive_ns = line.time("arrival_s", kNsPerSecond);
  r.prompt = line.count("prompt", 1, 0);
  r.output = line.count("output", 1, 0);
  r.cached = line.count("cached", 0, 0);
  r.tenant = static_cast<uint32_t>(line.integer("tenant", 0, UINT32_MAX, 0));
  r.weight = line.count("weight", 1, 1);
  r.priority = static_cast<int32_t>(line.integer("priority", -1000, 1000, 0));
  if (line.has("deadline_s")) r.deadline_ns = line.time("deadline_s", kNsPerSecond);
  return r;
}

SimRequest read_hashed(Line& line) {
  SimRequest r;
  r.arrive_ns = line.time("timestamp", kNsPerSecond / 1000);
  r.prompt = line.count("input_length", 1, 0);
  r.output = line.count("output_length", 1, 0);
  line.hashes("hash_ids", &r.blocks);
  return r;
}

}  // namespace

Result<std::vector<SimRequest>> parse_workload(std::string_view jsonl) {
  std::vector<SimRequest> out;
  JsonLimits limits;
  limits.depth_max = 4;
  size_t number = 0;
  while (!jsonl.empty()) {
    const size_t end = std::min(jsonl.find('\n'), jsonl.size());
    std::string_view text = jsonl.substr(0, end);
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
    ++number;
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    if (text.empty()) continue;
    auto parsed = parse_json(text, limits);
    if (!parsed.ok()) return std::move(parsed).error().within(fmt::format("line {}", number));
    Line line(*parsed);
    if (!parsed->is_object()) line.fail("an object expected");
    SimRequest r;
    if (parsed->is_object()) r = line.has("timestamp") ? read_hashed(line) : read_ours(line);
    if (!line.problem().empty()) {
      return make_error(ErrorCode::kInvalid, "line {}: {}", number, line.problem());
    }
    if (out.size() == kRequestsMax) {
      return make_error(ErrorCode::kInvalid, "line {}: at most {} requests", number, kRequestsMax);
    }
    r.id = out.size() + 1;
    out.push_back(std::move(r));
  }
  return out;
}

std::vector<SimRequest> make_workload(const std::vector<TenantLoad>& tenants, uint64_t seed) {
  std::vector<SimRequest> out;
  for (const TenantLoad& t : tenants) {
    std::mt19937_64 rng(seed * 1'000'003 + t.tenant);
    // Not std::uniform_*: their results differ between libraries.
    const auto unit = [&] { return static_cast<double>(rng() >> 11) * 0x1p-53; };
    const auto spread = [&](uint32_t mean) {
      return static_cast<uint32_t>(std::max(1.0, mean * (0.5 + unit())));
    };
    double at_ns = static_cast<double>(t.start_ms) * 1e6;
    const double mean_gap_ns = 60e9 / std::max(1u, t.per_minute);
    for (uint32_t i = 0; i < t.requests; ++i) {
      at_ns += -std::log(1 - unit()) * mean_gap_ns;
      SimRequest r;
      r.id = out.size() + 1;
      r.arrive_ns = static_cast<uint64_t>(at_ns);
      r.tenant = t.tenant;
      r.weight = t.weight;
      r.priority = t.priority;
      r.prompt = spread(t.prompt);
      r.cached = static_cast<uint32_t>(uint64_t{r.prompt} * t.cached_percent / 100);
      r.output = spread(t.output);
      r.deadline_ns = t.deadline_ms * 1'000'000;
      r.sheddable = t.sheddable;
      out.push_back(std::move(r));
    }
  }
  return out;
}

}  // namespace weft::sim
