#include "bench/cache_bench.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/cache/coordinator.h"

namespace weft::bench {
namespace {

using engine::Caches;
using engine::Coordinator;
using engine::PrefixView;
using engine::SequenceCache;
using engine::cache::KeyChain;

constexpr uint32_t kPageTokens = 32;
constexpr uint32_t kOtherTokens = 4096;

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<int32_t> random_tokens(uint32_t n, uint64_t seed) {
  std::vector<int32_t> tokens(n);
  for (uint32_t i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    tokens[i] = static_cast<int32_t>(seed >> 45);
  }
  return tokens;
}

class CacheBench {
 public:
  explicit CacheBench(const CacheBenchOptions& options) : options_(options) {}

  Status prepare() {
    weft_mem_plan plan = {};
    plan.struct_size = sizeof(plan);
    plan.n_groups = 2;
    plan.groups[0] = {"rows", WEFT_CACHE_ROWS, kPageTokens, 64};
    plan.groups[1] = {"state", WEFT_CACHE_STATE, 0, 64};
    engine::CacheSizes sizes;
    const uint64_t tokens =
        2 * uint64_t{options_.tokens} + uint64_t{options_.others + 2} * (kOtherTokens + 64);
    sizes.units = {static_cast<uint32_t>(tokens / kPageTokens + 64), options_.others + 64};
    WEFT_ASSIGN(caches_, Caches::make(plan, sizes, /*poison=*/false));
    engine::CoordinatorOptions coordinator;
    coordinator.now_us = [] { return static_cast<uint64_t>(now_us()); };
    coordinator_ = std::make_unique<Coordinator>(caches_.get(), coordinator);
    for (uint32_t i = 0; i < options_.others; ++i) keep(random_tokens(kOtherTokens, i + 1));
    tokens_ = random_tokens(options_.tokens + 1, 0);
    keep({tokens_.begin(), tokens_.end() - 1});
    return {};
  }

  void measure() {
    for (uint32_t i = 0; i < options_.repeat; ++i) {
      double at = now_us();
      KeyChain chain(root_);
      chain.extend(tokens_);
      hash_.push_back(lap(&at));
      const PrefixView view{&chain, tokens_, options_.tokens};
      const engine::CacheProbe probe = coordinator_->probe(view);
      probe_.push_back(lap(&at));
      WEFT_CHECK(probe.device == options_.tokens);
      SequenceCache sequence(caches_.get());
      const bool ok = coordinator_->admit(view, options_.tokens + 1, 0, &sequence).ok;
      admit_.push_back(lap(&at));
      WEFT_CHECK(ok);
      sequence.clear();
      free_.push_back(lap(&at));
    }
  }

  std::vector<std::pair<const char*, std::vector<double>*>> results() {
    return {{"hash", &hash_}, {"probe", &probe_}, {"admit", &admit_}, {"free", &free_}};
  }

 private:
  static double lap(double* at) {
    const double now = now_us();
    return now - std::exchange(*at, now);
  }
  void keep(const std::vector<int32_t>& tokens) {
    const auto n = static_cast<uint32_t>(tokens.size());
    KeyChain chain(root_);
    chain.extend(tokens);
    SequenceCache sequence(caches_.get());
    WEFT_CHECK(sequence.reserve(n, 0));
    uint64_t last = 0;
    coordinator_->publish({&chain, tokens, n}, n, engine::cache::SnapshotKind::kTurn,
                          /*goes_on=*/false, &sequence, &last);
  }

  const CacheBenchOptions options_;
  const engine::cache::Key128 root_ = engine::cache::root_key("bench", "", "");
  std::unique_ptr<Caches> caches_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<int32_t> tokens_;
  std::vector<double> hash_, probe_, admit_, free_;
};

}  // namespace

Status run_cache_bench(const CacheBenchOptions& options, const Streams& streams) {
  CacheBench bench(options);
  WEFT_TRY(bench.prepare());
  bench.measure();
  nlohmann::ordered_json json{{"what", "cache"}, {"tokens", options.tokens}};
  if (!options.json) {
    fmt::print(streams.out, "prompt of {} tokens, {} other conversations kept; milliseconds\n",
               options.tokens, options.others);
    fmt::print(streams.out, "{:<8} {:>9} {:>9}\n", "", "p50", "max");
  }
  for (auto& [name, times] : bench.results()) {
    std::sort(times->begin(), times->end());
    const double p50 = (*times)[times->size() / 2] / 1e3, most = times->back() / 1e3;
    json[name] = {{"p50_ms", p50}, {"max_ms", most}};
    if (!options.json) fmt::print(streams.out, "{:<8} {:>9.3f} {:>9.3f}\n", name, p50, most);
  }
  if (options.json) streams.out << json.dump() << "\n";
  return {};
}

}  // namespace weft::bench
