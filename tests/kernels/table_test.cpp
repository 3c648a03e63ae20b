// The table as a whole: every op has ref, every row is compared with it, bad arguments are refused
// with useful words.
#include <algorithm>
#include <map>
#include <set>

#include "kda_fixture.h"
#include "kit.h"

namespace kit {
namespace {

const char* const kOps[] = {
    "embed",       "norm",    "gemm",    "gemm_group", "glu",       "gate",       "add",
    "gather",      "scatter", "attnres", "kda_step",   "kda_chunk", "mla_store",  "mla_decode",
    "mla_prefill", "route",   "moe",     "gelu",       "vit_pos",   "vit_attend", "vit_merge"};

std::vector<OpCase> all_cases() {
  std::vector<OpCase> out;
  for (const auto& cases : {row_cases(), matmul_cases(), kda_cases(), mla_cases(), vision_cases()})
    out.insert(out.end(), cases.begin(), cases.end());
  return out;
}

// Sanitizers look for wrong accesses, which a few shapes show as well as many.
#ifdef WEFT_SANITIZED
constexpr uint64_t kSeeds = 3;
#else
constexpr uint64_t kSeeds = 8;
#endif

weft_err fresh_err() {
  weft_err err{};
  err.struct_size = sizeof err;
  return err;
}

}  // namespace

TEST_CASE("table: rows are complete and unique, every op has ref for each dtype") {
  std::set<std::string> seen, ops;
  std::set<std::pair<std::string, uint32_t>> with_ref, any;
  for (const weft_kernel& k : all_kernels()) {
    INFO(k.op << "/" << k.variant);
    CHECK((k.plan != nullptr));
    CHECK((k.launch != nullptr));
    CHECK(k.dtype_act == WEFT_F32);
    CHECK(
        seen.insert(std::string(k.op) + "/" + k.variant + "/" + std::to_string(k.dtype_w)).second);
    ops.insert(k.op);
    any.insert({k.op, k.dtype_w});
    if (std::string(k.variant) != "ref") {
      CHECK(k.score != 0);
      continue;
    }
    CHECK(k.score == 0);
    CHECK(k.isa == WEFT_ISA_ANY);
    with_ref.insert({k.op, k.dtype_w});
  }
  CHECK(any == with_ref);
  CHECK(ops == std::set<std::string>(std::begin(kOps), std::end(kOps)));
  weft_kernel past;
  CHECK(table().get(nullptr, 100000, &past) == WEFT_END);
}

TEST_CASE("table: every row that this machine can run agrees with ref on random shapes") {
  std::map<std::string, OpCase> by_op;
  for (const OpCase& c : all_cases()) by_op[c.op] = c;
  for (const char* op : kOps) CHECK(by_op.count(op) == 1);
  uint32_t compared = 0, able = 0;
  for (const weft_kernel& k : all_kernels()) {
    if (k.score < 0) continue;
    ++able;
    const auto found = by_op.find(k.op);
    if (found == by_op.end()) continue;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      INFO(k.op << "/" << k.variant << " dtype " << k.dtype_w << " seed " << seed);
      found->second.compare(k, seed);
    }
    ++compared;
  }
  CHECK(compared == able);
}

TEST_CASE("table: facts, packing and the descriptor") {
  CHECK(weft_plugin_query_v1(WEFT_ABI_MAJOR + 1, 0) == nullptr);
  weft_kernels_info info{};
  weft_err err = fresh_err();
  CHECK(table().info(nullptr, &info, &err) == WEFT_E_ARG);
  info.struct_size = sizeof info;
  REQUIRE(table().info(nullptr, &info, &err) == WEFT_OK);
  CHECK(info.act_dtype == WEFT_F32);
  CHECK(info.mem == WEFT_MEM_HOST);
  Rng rng(2);
  for (const uint32_t dtype : {uint32_t{WEFT_F32}, uint32_t{WEFT_BF16}, uint32_t{WEFT_MXFP4}}) {
    const Weight w = random_weight(rng, dtype, 5, 64);
    Weight copy = w;
    std::fill(copy.data.begin(), copy.data.end(), uint8_t{0});
    std::fill(copy.scale.begin(), copy.scale.end(), uint8_t{0});
    uint32_t layout = 9;
    uint64_t bytes = 0, scale_bytes = 1;
    const weft_weight from = w.view(), to = copy.view();
    REQUIRE(table().pack_plan(nullptr, WEFT_ISA_X86_AVX512, &from, &layout, &bytes, &scale_bytes) ==
            WEFT_OK);
    CHECK(layout == 0);
    CHECK(bytes == w.data.size());
    CHECK(scale_bytes == w.scale.size());
    REQUIRE(table().pack(nullptr, &from, &to, &err) == WEFT_OK);
    CHECK(copy.data == w.data);
    CHECK(copy.scale == w.scale);
    weft_weight other = to;
    other.n = 4;
    CHECK(table().pack(nullptr, &from, &other, &err) == WEFT_E_ARG);
  }
}

TEST_CASE(
    "validation: broken arguments are refused by every variant, with field, expectation and "
    "value") {
  for (const weft_kernel& k : runnable("gemm")) {
    Rng rng(3);
    Host host(2);
    const Weight w = random_weight(rng, k.dtype_w, 4, 64);
    const Grid x = Grid::random(rng, 2, 64);
    Grid y(2, 4);
    const auto good = [&] {
      auto op = make_op<weft_op_gemm>(host);
      op.n_rows = 2;
      op.x = x.data();
      op.x_stride = x.stride();
      op.w = w.view();
      op.y = y.data();
      op.y_stride = y.stride();
      op.y_dtype = WEFT_F32;
      return op;
    };
    must_launch(k, good());
    const auto refused = [&](const char* field, const std::function<void(weft_op_gemm&)>& breaks) {
      weft_op_gemm op = good();
      breaks(op);
      weft_err err = fresh_err();
      const weft_status status = launch(k, op, &err);
      INFO(k.variant << " " << field << ": " << err.msg);
      CHECK(status == WEFT_E_ARG);
      CHECK(err.code == WEFT_E_ARG);
      CHECK(std::string(err.msg).find(field) != std::string::npos);
      CHECK(std::string(err.msg).find("expected") != std::string::npos);
      CHECK(std::string(err.msg).find("got") != std::string::npos);
    };
    refused("struct_size", [](auto& op) { op.head.struct_size = 8; });
    refused("flags", [](auto& op) { op.head.flags = 6; });
    refused("mode", [](auto& op) { op.mode = 2; });
    refused("gemm.x", [](auto& op) { op.x = nullptr; });
    refused("gemm.x", [](auto& op) { op.x_stride = 63; });
    refused("gemm.y", [](auto& op) { op.y = nullptr; });
    refused("gemm.y", [](auto& op) { op.y_stride = 3; });
    refused("y_dtype", [](auto& op) { op.y_dtype = WEFT_BF16; });
    refused("w.data", [](auto& op) { op.w.data = nullptr; });
    refused("w.dtype", [](auto& op) { op.w.dtype = WEFT_F16; });
    refused("w.layout", [](auto& op) { op.w.layout = 2; });
    refused("w.n", [](auto& op) { op.w.n = 0; });
    refused("w.k", [](auto& op) { op.w.k = 0; });
    const std::string variant = k.variant;
    if (variant == "avx512_bf16" || variant == "amx" || variant == "amx_emulated")
      refused("w.dtype", [](auto& op) { op.w.dtype = WEFT_F32; });
    if (k.dtype_w == WEFT_MXFP4) {
      refused("w.k", [](auto& op) { op.w.k = 48; });
      refused("w.scale", [](auto& op) { op.w.scale = nullptr; });
    }
    weft_op_gemm none = good();
    none.n_rows = 0;
    none.x = none.y = nullptr;
    must_launch(k, none);  // nothing to do is fine
  }
}

TEST_CASE("validation: workspace, plan without pointers, err may be NULL") {
  for (const weft_kernel& k : runnable("kda_step")) {
    Host host(3);
    auto op = make_op<weft_op_kda>(host);
    const uint32_t start[2] = {0, 1}, context[1] = {0};
    op.rows = {1, 1, nullptr, nullptr};
    op.heads = 2, op.head_k = 8, op.head_v = 8, op.taps = 4;
    op.gate = WEFT_KDA_GATE_SOFTPLUS;
    op.state_stride = 2 * 64 * 4;
    op.conv_stride = 2 * 24 * 3 * 4;
    weft_plan plan{};
    plan.struct_size = sizeof plan;
    weft_err err = fresh_err();
    REQUIRE(k.plan(&op, &plan, &err) == WEFT_OK);
    CHECK(plan.workspace_bytes > 0);
    CHECK(k.launch(&op, &err) == WEFT_E_ARG);  // pointers are missing
    CHECK(k.launch(&op, nullptr) == WEFT_E_ARG);
    CHECK(k.launch(nullptr, &err) == WEFT_E_ARG);
    plan.struct_size = 4;
    CHECK(k.plan(&op, &plan, &err) == WEFT_E_ARG);
    op.rows = {1, 1, start, context};
    std::vector<float> data(4096);
    op.q = op.k = op.v = op.f = op.u = op.b = data.data();
    op.conv_q = op.conv_k = op.conv_v = op.a_log = op.dt_bias = op.o_norm = data.data();
    std::vector<float> state(4096), conv(4096), y(64);
    op.state = state.data(), op.conv_state = conv.data(), op.y = y.data();
    const int32_t slot[1] = {0};
    op.read_slot = op.write_slot = slot;
    CHECK(k.launch(&op, &err) == WEFT_E_ARG);
    CHECK(std::string(err.msg).find("workspace") != std::string::npos);
    must_launch(k, op);
  }
}

TEST_CASE("validation: sequences, slots, pages, routing") {
  Rng rng(7);
  Host host(1);
  const auto status_of = [&](const char* name, uint32_t dtype_w, const auto& op,
                             const char* field) {
    weft_err err = fresh_err();
    const weft_status status = launch(find(name, "ref", dtype_w), op, &err);
    INFO(name << ": " << err.msg);
    CHECK(std::string(err.msg).find(field) != std::string::npos);
    return status;
  };
  std::vector<float> data(4096, 0.5f), out(4096);
  {
    auto op = make_op<weft_op_mla_store>(host);
    uint32_t start[3] = {0, 2, 1}, context[2] = {0, 0};
    const int32_t pages[2] = {0, 1};
    op.rows = {2, 1, start, context};
    op.x = data.data(), op.x_stride = 8, op.w = data.data();
    op.pages = {out.data(), 256, 4, WEFT_F32, 6, 2, pages, 1};
    CHECK(status_of("mla_store", WEFT_F32, op, "seq_start") == WEFT_E_ARG);
    start[1] = 1, start[2] = 2;
    CHECK(status_of("mla_store", WEFT_F32, op, "seq_start[n_seqs]") == WEFT_E_ARG);
    op.rows.n_rows = 2;
    context[1] = 4;
    CHECK(status_of("mla_store", WEFT_F32, op, "table_stride") == WEFT_E_ARG);
    context[1] = UINT32_MAX;
    CHECK(status_of("mla_store", WEFT_F32, op, "context") == WEFT_E_ARG);
    context[1] = 0;
    op.pages.page_stride = 100;
    CHECK(status_of("mla_store", WEFT_F32, op, "page_stride") == WEFT_E_ARG);
    op.pages.page_stride = 256;
    must_launch(find("mla_store", "ref", WEFT_F32), op);
  }
  {
    auto op = make_op<weft_op_route>(host);
    uint16_t id[16];
    op.n_rows = 1, op.n_experts = 8, op.topk = 9, op.kind = WEFT_ROUTE_SIGMOID;
    op.logits = data.data(), op.id = id, op.w = out.data();
    CHECK(status_of("route", 0, op, "topk") == WEFT_E_ARG);
    op.topk = 4, op.kind = 3;
    CHECK(status_of("route", 0, op, "kind") == WEFT_E_ARG);
    op.kind = WEFT_ROUTE_SIGMOID, op.n_groups = 3;
    CHECK(status_of("route", 0, op, "n_groups") == WEFT_E_ARG);
    op.n_groups = 4, op.group_topk = 1;
    CHECK(status_of("route", 0, op, "topk (with groups)") == WEFT_E_ARG);
    op.group_topk = 2;
    must_launch(find("route", "ref", 0), op);
  }
  {
    KdaShape s;
    KdaInputs in = KdaInputs::random(rng, s, 2);
    auto op = make_op<weft_op_kda>(host);
    op.heads = 2, op.head_k = 16, op.head_v = 16, op.taps = 4, op.norm_eps = 1e-5f;
    op.gate = WEFT_KDA_GATE_BOUNDED, op.bound = 0.5f;
    CHECK(status_of("kda_chunk", 0, op, "bound") == WEFT_E_ARG);
    op.bound = -5, op.chunk = 129;
    CHECK(status_of("kda_chunk", 0, op, "chunk") == WEFT_E_ARG);
    op.chunk = 0, op.state_stride = 12;
    CHECK(status_of("kda_chunk", 0, op, "state_stride") == WEFT_E_ARG);
  }
  {
    auto op = make_op<weft_op_moe>(host);
    op.n_local = 1, op.topk = 1, op.act = WEFT_ACT_SILU;
    CHECK(status_of("moe", WEFT_F32, op, "w1") == WEFT_E_ARG);
    weft_weight a{WEFT_F32, 0, 4, 8, data.data(), nullptr},
        b{WEFT_F32, 0, 8, 5, data.data(), nullptr};
    op.w1 = op.w3 = &a, op.w2 = &b;
    CHECK(status_of("moe", WEFT_F32, op, "w2") == WEFT_E_ARG);
    b.k = 4;
    must_launch(find("moe", "ref", WEFT_F32), op);
    op.act = 7;
    CHECK(status_of("moe", WEFT_F32, op, "act") == WEFT_E_ARG);
  }
}

}  // namespace kit
