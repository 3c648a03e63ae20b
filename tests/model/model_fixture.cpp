#include "model_fixture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

namespace weft_test {
namespace {

using weft::plugin::HostOptions;
using weft::plugin::HostTable;
using weft::plugin::Instance;
using weft::plugin::LoadedPlugin;
using weft::plugin::Loader;
using weft::plugin::TrustPolicy;

std::unique_ptr<LoadedPlugin> open_plugin(const char* name, HostTable& host) {
  auto plugin =
      Loader(TrustPolicy::kUnchecked).load(std::string(WEFT_PLUGIN_DIR "/") + name + ".so");
  REQUIRE_MESSAGE(plugin.ok(), (plugin.ok() ? std::string() : plugin.error().message));
  const auto opened = (*plugin)->open(host);
  REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
  return std::move(plugin).value();
}

weft_err empty_err() {
  weft_err err{};
  err.struct_size = sizeof(err);
  return err;
}

}  // namespace

Bench::Bench(const std::string& isa, uint32_t threads) {
  HostOptions options;
  options.threads = threads;
  options.log = [](int32_t, std::string_view, std::string_view) {};
  host_ = HostTable::make(options);
  kernels_ = open_plugin("kernels_cpu", *host_);
  const auto chosen = host_->use_kernels(*kernels_, isa);
  REQUIRE_MESSAGE(chosen.ok(), (chosen.ok() ? std::string() : chosen.error().message));
  model_ = open_plugin("model_kimi", *host_);
}

Bench::~Bench() {
  storage_.reset();
  model_.reset();
  kernels_.reset();
}

LoadedPlugin& Bench::storage_plugin() {
  if (storage_ == nullptr) storage_ = open_plugin("storage_file", *host_);
  return *storage_;
}

TestModel::TestModel(Bench& bench, const ModelSetup& setup) : setup_(setup) {
  weft::plugin::ParamList settings = setup.settings;
  settings.emplace_back("config", setup.config);
  auto made = Instance::create(bench.model_plugin(), WEFT_MODEL_ID, settings);
  REQUIRE_MESSAGE(made.ok(), (made.ok() ? std::string() : made.error().message));
  instance_ = std::move(made).value();
  table_ = instance_.table<weft_model_v1>();
}

TestModel::~TestModel() {
  instance_ = Instance();
  for (void* p : memory_) std::free(p);
}

void TestModel::note(weft_status status, const weft_err& err) {
  error_ = status == WEFT_OK ? "" : err.msg;
}

weft_status TestModel::declare(const weft_catalog* catalog) {
  weft_err err = empty_err();
  const weft_status s = table_->declare(self(), catalog, &err);
  note(s, err);
  return s;
}

weft_status TestModel::plan() {
  weft_limits limits{};
  limits.struct_size = sizeof(limits);
  limits.max_rows = setup_.max_rows;
  limits.max_seqs = setup_.max_seqs;
  limits.max_context = setup_.max_context;
  limits.max_logit_rows = setup_.max_rows;
  limits.page_tokens = setup_.page_tokens;
  limits.cache_dtype = setup_.cache_dtype;
  weft_err err = empty_err();
  const weft_status s = table_->plan(self(), &limits, &plan_, &err);
  note(s, err);
  return s;
}

weft_status TestModel::load(MemoryCheckpoint& checkpoint) {
  weft_err err = empty_err();
  for (uint64_t i = 0;; ++i) {
    weft_want want{};
    want.struct_size = sizeof(want);
    weft_status s = table_->want(self(), i, &want);
    if (s == WEFT_END) return WEFT_OK;
    if (s != WEFT_OK) return s;
    const auto& bytes = checkpoint.tensors().at(std::string(want.name.data, want.name.len)).bytes;
    CHECK(bytes.size() == want.bytes);
    void* dst = nullptr;
    s = table_->place(self(), i, &dst, &err);
    if (s == WEFT_OK) {
      std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(dst));
      s = table_->placed(self(), i, &err);
    }
    note(s, err);
    if (s != WEFT_OK) return s;
  }
}

weft_status TestModel::ready() {
  arenas_.clear();
  const auto scrambled =
      [](uint32_t n) {  // descending with a stride, so that neighbours are never neighbours
        std::vector<int32_t> out;
        for (uint32_t lane = 0; lane < 3; ++lane) {
          for (uint32_t i = lane; i < n; i += 3) out.push_back(static_cast<int32_t>(n - 1 - i));
        }
        return out;
      };
  for (uint32_t g = 0; g < plan_.n_groups; ++g) {
    const bool rows = plan_.groups[g].kind == WEFT_CACHE_ROWS;
    const uint32_t units = rows ? setup_.pages : setup_.slots;
    weft_arena arena{};
    arena.stride = (plan_.groups[g].unit_bytes + 127) / 64 * 64;
    arena.n_units = units;
    arena.base = std::aligned_alloc(64, arena.stride * units);
    std::fill_n(static_cast<uint8_t*>(arena.base), arena.stride * units, uint8_t{0x7f});
    memory_.push_back(arena.base);
    arenas_.push_back(arena);
    (rows ? free_pages_ : free_slots_) = scrambled(units);
  }
  return ready(arenas_);
}

weft_status TestModel::ready(std::span<const weft_arena> arenas) {
  weft_err err = empty_err();
  const weft_status s =
      table_->ready(self(), arenas.data(), static_cast<uint32_t>(arenas.size()), &err);
  note(s, err);
  return s;
}

bool TestModel::bring_up(MemoryCheckpoint& checkpoint) {
  return declare(checkpoint.catalog()) == WEFT_OK && plan() == WEFT_OK &&
         load(checkpoint) == WEFT_OK && ready() == WEFT_OK;
}

int32_t TestModel::take(std::vector<int32_t>& pool) {
  REQUIRE_FALSE(pool.empty());
  const int32_t unit = pool.back();
  pool.pop_back();
  return unit;
}

void TestModel::release(Sequence& s) {
  free_pages_.insert(free_pages_.end(), s.pages.begin(), s.pages.end());
  if (s.slot >= 0) free_slots_.push_back(s.slot);
  s = Sequence();
}

std::vector<float> TestModel::feed(std::vector<Piece> pieces, std::span<const float> media,
                                   uint32_t flags) {
  const bool has_pages = group("mla") != UINT32_MAX, has_slots = group("kda") != UINT32_MAX;
  const uint64_t stride = (setup_.max_context + setup_.page_tokens - 1) / setup_.page_tokens;
  std::vector<int32_t> token, table(pieces.size() * stride, -7), read, write;
  std::vector<uint32_t> start = {0}, context, logit, media_row;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Piece& piece = pieces[p];
    Sequence& s = *piece.sequence;
    const uint32_t base = start.back(), n = static_cast<uint32_t>(piece.tokens.size());
    token.insert(token.end(), piece.tokens.begin(), piece.tokens.end());
    start.push_back(base + n);
    context.push_back(s.context);
    for (uint32_t r = piece.all_logits ? 0 : n - 1; r < n; ++r) logit.push_back(base + r);
    for (const uint32_t r : piece.media_at) media_row.push_back(base + r);
    while (has_pages && s.pages.size() * setup_.page_tokens < s.context + n)
      s.pages.push_back(take(free_pages_));
    std::copy(s.pages.begin(), s.pages.end(),
              table.begin() + static_cast<std::ptrdiff_t>(p * stride));
    read.push_back(s.slot);
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    const bool move =
        has_slots && (s.slot < 0 || (random_ >> 40) % 2 == 0);  // else update in place
    write.push_back(move ? take(free_slots_) : s.slot);
  }
  std::vector<weft_cache_map> maps;
  if (has_pages) maps.push_back({table.data(), stride, nullptr, nullptr});
  if (has_slots) maps.push_back({nullptr, 0, read.data(), write.data()});
  std::vector<float> logits(logit.size() * info().vocab);
  weft_batch b{};
  b.struct_size = sizeof(b);
  b.flags = flags;
  b.n_seqs = static_cast<uint32_t>(pieces.size());
  b.n_rows = start.back();
  b.n_logit_rows = static_cast<uint32_t>(logit.size());
  b.n_media_rows = static_cast<uint32_t>(media_row.size());
  b.token = token.data();
  b.seq_start = start.data();
  b.context = context.data();
  b.maps = maps.data();
  b.logit_row = logit.data();
  b.logits = logits.data();
  b.media_row = media_row.data();
  b.media = media.data();
  const weft_status status = step(b);
  CHECK_MESSAGE(status == WEFT_OK, error_);
  for (size_t p = 0; p < pieces.size(); ++p) {
    Sequence& s = *pieces[p].sequence;
    s.context += start[p + 1] - start[p];
    if (has_slots && read[p] >= 0 && read[p] != write[p])
      free_slots_.insert(free_slots_.begin(), read[p]);
    if (has_slots) s.slot = write[p];
  }
  if (status != WEFT_OK) logits.clear();
  return logits;
}

weft_status TestModel::step(const weft_batch& batch) {
  weft_err err = empty_err();
  const weft_status s = table_->step(self(), &batch, &err);
  note(s, err);
  return s;
}

weft_status TestModel::encode(const weft_media& media, float* rows) {
  weft_err err = empty_err();
  const weft_status s = table_->encode_media(self(), &media, rows, &err);
  note(s, err);
  return s;
}

weft_model_info TestModel::info() const {
  weft_model_info out{};
  out.struct_size = sizeof(out);
  CHECK(table_->info(self(), &out) == WEFT_OK);
  return out;
}

uint32_t TestModel::group(const char* name) const {
  for (uint32_t g = 0; g < plan_.n_groups; ++g) {
    if (std::string_view(plan_.groups[g].name) == name) return g;
  }
  return UINT32_MAX;
}

const std::byte* TestModel::unit(uint32_t group, int32_t unit) const {
  return static_cast<const std::byte*>(arenas_[group].base) +
         static_cast<uint64_t>(unit) * arenas_[group].stride;
}

Json read_json(const std::string& name) {
  std::ifstream in(std::string(WEFT_TEST_DATA "/model/") + name + ".json");
  REQUIRE_MESSAGE(in.good(), name);
  return Json::parse(in);
}

std::vector<int32_t> ints(const Json& list) { return list.get<std::vector<int32_t>>(); }

double distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return worst / largest;
}

}  // namespace weft_test
