#include "sim/scenario.h"

#include "config/table_reader.h"

namespace weft::sim {
namespace {

using config::TableReader;

constexpr int64_t kCountMax = 1 << 28;
constexpr int64_t kHourUs = 3'600'000'000;
constexpr int64_t kDayMs = 24 * 3600 * 1000;
constexpr uint64_t kNsPerUs = 1000;

template <class T>
void read(TableReader& r, const char* key, T& out, int64_t low, int64_t high) {
  auto value = static_cast<int64_t>(out);
  r.integer(key, value, low, high);
  out = static_cast<T>(value);
}

void read_us(TableReader& r, const char* key, uint64_t& out_ns) {
  uint64_t us = out_ns / kNsPerUs;
  read(r, key, us, 0, kHourUs);
  out_ns = us * kNsPerUs;
}

void read_worker(const toml::table& table, SimOptions& o,
                 std::vector<config::ConfigIssue>& issues) {
  TableReader r(table, "worker", issues);
  read_us(r, "step_us", o.step_ns);
  read_us(r, "row_us", o.row_ns);
  read(r, "context_token_ns", o.context_token_ns, 0, 1'000'000);
  read(r, "token_budget", o.token_budget, 1, kCountMax);
  read(r, "seq_budget", o.seq_budget, 1, kCountMax);
  read(r, "run_budget", o.run_budget, 1, kCountMax);
  read(r, "max_waiting", o.max_waiting, 1, kCountMax);
  read(r, "prefill_chunk", o.prefill_chunk, 0, kCountMax);
  read_us(r, "step_target_us", o.step_target_ns);
  read(r, "page_tokens", o.page_tokens, 1, 1 << 16);
  read(r, "pages", o.pages, 1, kCountMax);
  read(r, "states", o.states, 1, kCountMax);
  read(r, "watermark_pages", o.watermark_pages, 0, kCountMax);
  r.size("swap", o.swap_bytes, 0, 1ull << 50);
  r.size("token_bytes", o.token_bytes, 0, 1ull << 40);
  r.size("state_bytes", o.state_bytes, 0, 1ull << 40);
  read(r, "block_tokens", o.block_tokens, 1, 1 << 20);
  read(r, "cached_blocks", o.cached_blocks, 0, kCountMax);
  r.boolean("retry", o.retry);
  r.finish();
}

TenantLoad read_tenant(const toml::table& table, size_t place,
                       std::vector<config::ConfigIssue>& issues) {
  TenantLoad t;
  t.tenant = static_cast<uint32_t>(place);
  TableReader r(table, "tenants", issues);
  read(r, "id", t.tenant, 0, UINT32_MAX);
  read(r, "weight", t.weight, 1, 1 << 20);
  read(r, "priority", t.priority, -1000, 1000);
  read(r, "requests", t.requests, 1, 1'000'000);
  read(r, "per_minute", t.per_minute, 1, 1 << 24);
  read(r, "start_ms", t.start_ms, 0, kDayMs);
  read(r, "prompt", t.prompt, 1, kCountMax / 2);
  read(r, "cached_percent", t.cached_percent, 0, 100);
  read(r, "output", t.output, 1, kCountMax / 2);
  read(r, "deadline_ms", t.deadline_ms, 0, kDayMs);
  r.boolean("sheddable", t.sheddable);
  r.finish();
  return t;
}

void read_all(const toml::table& root, Scenario& out, std::vector<config::ConfigIssue>& issues) {
  TableReader r(root, "scenario", issues);
  read(r, "seed", out.worker.seed, 0, INT64_MAX);
  if (const toml::table* worker = r.table("worker")) read_worker(*worker, out.worker, issues);
  if (const toml::array* tenants = r.tables("tenants")) {
    for (const toml::node& node : *tenants) {
      if (const toml::table* table = node.as_table()) {
        out.tenants.push_back(read_tenant(*table, out.tenants.size(), issues));
      }
    }
  }
  r.finish();
}

}  // namespace

Result<Scenario> parse_scenario(std::string_view text) {
  Scenario out;
  std::vector<config::ConfigIssue> issues;
  try {
    read_all(toml::parse(text), out, issues);
  } catch (const toml::parse_error& e) {
    return make_error(ErrorCode::kInvalid, "line {}, column {}: {}", e.source().begin.line,
                      e.source().begin.column, e.description());
  }
  if (issues.empty()) return out;
  return make_error(ErrorCode::kInvalid, "line {}, column {}: {}", issues.front().line,
                    issues.front().column, issues.front().message);
}

}  // namespace weft::sim
