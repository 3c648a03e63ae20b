#include "plugin/host_table.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "plugin/status.h"
#include "plugin/thread_labels.h"

using namespace weft;
using namespace weft::plugin;

namespace {

// A kernel set of four kernels; launches say which one ran through their status.
template <int Code>
weft_status launch(const void*, weft_err*) {
  return Code;
}
weft_status plan(const void*, weft_plan*, weft_err*) { return WEFT_OK; }

std::vector<weft_kernel> g_kernels;

std::vector<weft_kernel> sound_kernels() {
  return {
      {"gemm", "ref", WEFT_ISA_ANY, WEFT_BF16, WEFT_F32, 0, &plan, &launch<100>},
      {"gemm", "avx512", WEFT_ISA_X86_AVX512, WEFT_BF16, WEFT_F32, 30, &plan, &launch<103>},
      {"gemm", "avx2", WEFT_ISA_X86_AVX2, WEFT_BF16, WEFT_F32, 20, &plan, &launch<102>},
      {"gemm", "amx", WEFT_ISA_X86_AMX, WEFT_BF16, WEFT_F32, -1, &plan, &launch<104>},
      {"gemm", "ref", WEFT_ISA_ANY, WEFT_F32, WEFT_F32, 0, &plan, &launch<110>},
      {"norm", "ref", WEFT_ISA_ANY, 0, WEFT_F32, 0, &plan, &launch<120>},
  };
}

constexpr uint32_t kLastLimit = WEFT_ISA_X86_AMX;  // the last limit that the test sets

const weft_kernels_v1 kTable = {
    {sizeof(weft_kernels_v1), 1, 0},
    [](weft_plugin*) -> int32_t { return 1; },
    [](weft_plugin*, weft_kernels_info* out, weft_err*) -> weft_status {
      out->act_dtype = WEFT_F32;
      std::strcpy(out->isa, "test");
      return WEFT_OK;
    },
    [](weft_plugin*, uint32_t i, weft_kernel* out) -> weft_status {
      if (i >= g_kernels.size()) return WEFT_END;
      *out = g_kernels[i];
      return WEFT_OK;
    },
    [](weft_plugin*, uint32_t isa_max, const weft_weight* w, uint32_t* layout, uint64_t* bytes,
       uint64_t* scale_bytes) -> weft_status {
      CHECK(isa_max == kLastLimit);
      *layout = 7;
      *bytes = w->n * w->k;
      *scale_bytes = 0;
      return WEFT_OK;
    },
    [](weft_plugin*, const weft_weight*, const weft_weight*, weft_err* err) {
      return put_err(err, WEFT_E_CORRUPT, "packed");
    },
};

const weft_host_kernels_v1* kernels_of(const weft_host* host) {
  return static_cast<const weft_host_kernels_v1*>(host->extension(host, WEFT_HOST_KERNELS_ID));
}

weft_status which(const weft_host* host, const char* op, uint32_t dtype_w) {
  const weft_kernel* kernel = kernels_of(host)->find(host, op, dtype_w, WEFT_F32);
  return kernel == nullptr ? 0 : kernel->launch(nullptr, nullptr);
}

}  // namespace

TEST_CASE("every pointer in the host table is set") {
  auto host = HostTable::make({});
  const weft_host* t = host->table();
  CHECK(t->struct_size == sizeof(weft_host));
  for (size_t at = offsetof(weft_host, impl); at < sizeof(weft_host); at += sizeof(void*)) {
    void* pointer = nullptr;
    std::memcpy(&pointer, reinterpret_cast<const char*>(t) + at, sizeof pointer);
    CHECK(pointer != nullptr);
  }
  CHECK(host->table("a") == host->table("a"));
  CHECK(host->table("a") != host->table("b"));
  CHECK(t->extension(t, "weft.host.nothing/1") == nullptr);
  CHECK(t->extension(t, nullptr) == nullptr);
}

TEST_CASE("memory is zeroed, aligned, counted, and given back") {
  auto host = HostTable::make({});
  const weft_host* t = host->table();
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{100}, uint64_t{4096},
                               uint64_t{2} << 20, (uint64_t{5} << 20) + 13}) {
    for (const uint64_t align : {uint64_t{64}, uint64_t{4096}, uint64_t{4} << 20}) {
      CAPTURE(bytes);
      CAPTURE(align);
      void* block = nullptr;
      REQUIRE(t->alloc(t, WEFT_MEM_HOST, 0, bytes, align, &block) == WEFT_OK);
      CHECK(reinterpret_cast<uintptr_t>(block) % align == 0);
      auto* p = static_cast<unsigned char*>(block);
      uint64_t sum = 0;
      for (uint64_t i = 0; i < bytes; ++i) sum += p[i];
      CHECK(sum == 0);
      std::memset(p, 0xAB, bytes);
      CHECK(host->bytes_in_use() == bytes);
      t->release(t, WEFT_MEM_HOST, 0, block, bytes);
      CHECK(host->bytes_in_use() == 0);
    }
  }
  void* block = nullptr;
  CHECK(t->alloc(t, WEFT_MEM_HOST, 0, 64, 32, &block) == WEFT_E_ARG);
  CHECK(t->alloc(t, WEFT_MEM_HOST, 0, 64, 96, &block) == WEFT_E_ARG);
  CHECK(t->alloc(t, WEFT_MEM_DEVICE, 0, 64, 64, &block) == WEFT_E_UNSUPPORTED);
  CHECK(t->alloc(t, WEFT_MEM_HOST, 0, UINT64_MAX, 64, &block) == WEFT_E_NOMEM);
  CHECK(block == nullptr);
  t->release(t, WEFT_MEM_HOST, 0, nullptr, 64);
}

TEST_CASE("log lines carry the plugin's name and no control characters") {
  std::string line;
  HostOptions options;
  options.log = [&](int32_t level, std::string_view plugin, std::string_view message) {
    line = fmt::format("{} {} {}", level, plugin, message);
  };
  auto host = HostTable::make(std::move(options));
  const weft_host* t = host->table("tide");
  t->log(t, WEFT_LOG_WARNING, "two\nlines\x1b[0m");
  CHECK(line == "4 tide two lines [0m");
  t->log(t, WEFT_LOG_INFO, nullptr);
  CHECK(line == "6 tide ");
}

TEST_CASE("clock, wake and threads come from the options") {
  HostOptions options;
  uint64_t woken = 0;
  options.threads = 3;
  options.now_ns = [] { return uint64_t{42}; };
  options.wake = [&](uint64_t token) { woken = token; };
  auto host = HostTable::make(std::move(options));
  const weft_host* t = host->table();
  CHECK(t->now_ns(t) == 42);
  t->wake(t, 9);
  CHECK(woken == 9);
  CHECK(t->threads(t) == 3);
  uint32_t ran[3] = {0, 0, 0};
  t->run(
      t, [](void* ctx, uint32_t part, uint32_t) { static_cast<uint32_t*>(ctx)[part] = part + 1; },
      ran, 3);
  CHECK(ran[0] + ran[1] + ran[2] == 6);
  auto plain = HostTable::make({});
  CHECK(plain->table()->now_ns(plain->table()) > 0);
  plain->table()->wake(plain->table(), 1);  // nobody listens
}

TEST_CASE("secrets are lent until open returns") {
  HostOptions options;
  options.credential = [](std::string_view name) -> Result<std::string> {
    if (name == "s3_key") return std::string("hush");
    return make_error(ErrorCode::kNotFound, "no such credential");
  };
  auto host = HostTable::make(std::move(options));
  const weft_host* t = host->table("storage_s3");
  weft_bytes secret{};
  REQUIRE(t->credential(t, "s3_key", &secret) == WEFT_OK);
  CHECK(std::string(static_cast<char*>(secret.data), secret.len) == "hush");
  CHECK(t->credential(t, "other", &secret) == WEFT_E_CONFIG);
  host->drop_credentials("storage_s3");
  auto none = HostTable::make({});
  CHECK(none->table()->credential(none->table(), "s3_key", &secret) == WEFT_E_CONFIG);
}

TEST_CASE("metrics add up, and their number is bounded") {
  auto host = HostTable::make({});
  const weft_host* t = host->table("tide");
  const uint64_t reads = t->metric(t, "reads_total", 1, "Reads.");
  const uint64_t depth = t->metric(t, "queue_depth", 2, "Depth.");
  REQUIRE(reads != 0);
  REQUIRE(depth != 0);
  CHECK(t->metric(t, "reads_total", 1, "Reads.") == reads);
  CHECK(t->metric(t, "Bad-Name", 1, "") == 0);
  CHECK(t->metric(t, "x", 3, "") == 0);
  t->metric_put(t, reads, 2);
  t->metric_put(t, reads, 3);
  t->metric_put(t, depth, 2);
  t->metric_put(t, depth, 7);
  t->metric_put(t, 0, 1);
  t->metric_put(t, 99, 1);
  const auto values = host->metrics();
  REQUIRE(values.size() == 2);
  CHECK(values[0].name == "weft_plugin_reads_total");
  CHECK(values[0].value == 5);
  CHECK(values[1].value == 7);
  CHECK(values[1].plugin == "tide");
  uint64_t accepted = 2;
  for (int i = 0; i < 300; ++i)
    accepted += t->metric(t, ("m" + std::to_string(i)).c_str(), 1, "") != 0 ? 1 : 0;
  CHECK(accepted == HostTable::kMetricsMax);
}

TEST_CASE("the best kernel under the limit is found") {
  g_kernels = sound_kernels();
  auto host = HostTable::make({});
  const weft_host* t = host->table();
  CHECK(kernels_of(t) == nullptr);
  const struct {
    const char* isa_max;
    weft_status gemm;
  } cases[] = {{"", 103},
               {"ref", 100},
               {"avx2", 102},
               {"avx512", 103},
               {"amx", 103}};  // amx cannot run here: score -1
  for (const auto& c : cases) {
    CAPTURE(std::string(c.isa_max));
    REQUIRE(host->use_kernels(&kTable, nullptr, c.isa_max).ok());
    CHECK(which(t, "gemm", WEFT_BF16) == c.gemm);
    CHECK(which(t, "gemm", WEFT_F32) == 110);
    CHECK(which(t, "norm", 0) == 120);
    CHECK(which(t, "gemm", WEFT_MXFP4) == 0);
    CHECK(which(t, "conv", 0) == 0);
  }
  weft_kernels_info info{};
  info.struct_size = sizeof info;
  weft_err err = make_err();
  CHECK(kernels_of(t)->info(t, &info, &err) == WEFT_OK);
  CHECK(info.act_dtype == WEFT_F32);
  CHECK(std::string(info.isa) == "test");
  weft_weight w{WEFT_BF16, 0, 6, 7, nullptr, nullptr};
  uint32_t layout = 0;
  uint64_t bytes = 0, scale_bytes = 1;
  CHECK(kernels_of(t)->pack_plan(t, &w, &layout, &bytes, &scale_bytes) == WEFT_OK);
  CHECK(layout == 7);
  CHECK(bytes == 42);
  CHECK(kernels_of(t)->pack(t, &w, &w, &err) == WEFT_E_CORRUPT);
  CHECK(std::string(err.msg) == "packed");
}

TEST_CASE("kernel sets with holes are refused") {
  auto host = HostTable::make({});
  g_kernels = sound_kernels();
  CHECK(host->use_kernels(&kTable, nullptr, "avx9").error().message ==
        "isa_max: expected ref, avx2, avx512, avx512_bf16, amx or nothing, came \"avx9\"");
  g_kernels[0].score = 0;
  g_kernels.erase(g_kernels.begin());
  CHECK(
      host->use_kernels(&kTable, nullptr, "").error().message.find("expected a variant \"ref\"") !=
      std::string::npos);
  g_kernels = sound_kernels();
  g_kernels[2].launch = nullptr;
  CHECK(host->use_kernels(&kTable, nullptr, "").error().message ==
        "kernel 2: launch must be set, came NULL; the kernel plugin must be repaired");
  g_kernels.assign(HostKernels::kKernelsMax + 1, sound_kernels()[0]);
  CHECK(!host->use_kernels(&kTable, nullptr, "").ok());
}

TEST_CASE("thread labels answer plugins") {
  auto host = HostTable::make({});
  const weft_host* t = host->table();
  const auto* threads =
      static_cast<const weft_host_threads_v1*>(t->extension(t, WEFT_HOST_THREADS_ID));
  REQUIRE(threads != nullptr);
  CHECK(threads->labels(t) == 0);
  CHECK(threads->is_engine_thread(t) == 0);
  {
    const ThreadLabel engine(WEFT_THREAD_ENGINE);
    const ThreadLabel slow(WEFT_THREAD_SLOW);
    CHECK(threads->is_engine_thread(t) == 1);
    CHECK(threads->labels(t) == (WEFT_THREAD_ENGINE | WEFT_THREAD_SLOW));
  }
  CHECK(threads->labels(t) == 0);
}

TEST_CASE("error texts are cut between characters") {
  weft_err err = make_err();
  const std::string text =
      std::string(494, 'a') + "\xc3\xa4 and more";  // the two bytes of one letter straddle the end
  CHECK(put_err(&err, WEFT_E_IO, text) == WEFT_E_IO);
  CHECK(std::string(err.msg) == std::string(494, 'a'));
  CHECK(put_err(nullptr, WEFT_E_IO, "x") == WEFT_E_IO);
  CHECK(plugin_error(WEFT_E_CONFIG, make_err(), "plugin x: open").message ==
        "plugin x: open: WEFT_E_CONFIG (-7), and the plugin gave no message");
}
