#include "bench/profile.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace weft::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSlots = 512;
constexpr size_t kShownLines = 24;

// What the functions without context reach: the kernels behind them, and who is listening.
std::vector<weft_kernel> g_kernels;
weft_kernels_v1 g_table;
const weft_kernels_v1* g_original = nullptr;
Profile* g_profile = nullptr;

template <size_t kSlot>
weft_status launch_slot(const void* args, weft_err* err) {
  if (g_profile == nullptr) return g_kernels[kSlot].launch(args, err);
  return g_profile->launch(kSlot, args, err);
}

using LaunchFn = weft_status (*)(const void*, weft_err*);
template <size_t... kSlot>
constexpr std::array<LaunchFn, sizeof...(kSlot)> make_slots(std::index_sequence<kSlot...>) {
  return {&launch_slot<kSlot>...};
}
constexpr auto kLaunchers = make_slots(std::make_index_sequence<kSlots>());

weft_status get_wrapped(weft_plugin* plugin, uint32_t i, weft_kernel* out) {
  const weft_status status = g_original->get(plugin, i, out);
  if (status != WEFT_OK) return status;
  if (i >= kSlots) return WEFT_E_UNSUPPORTED;
  if (i >= g_kernels.size()) g_kernels.resize(i + 1);
  g_kernels[i] = *out;
  out->launch = kLaunchers[i];
  return WEFT_OK;
}

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), op) != names.end();
}

}  // namespace

Profile::Profile() {
  WEFT_CHECK(g_profile == nullptr);
  g_profile = this;
}

Profile::~Profile() { g_profile = nullptr; }

engine::UseKernels Profile::hook() {
  return [](plugin::HostTable& host, const plugin::LoadedPlugin& plugin,
            const std::string& isa) -> Status {
    g_original = plugin.table<weft_kernels_v1>(WEFT_KERNELS_ID);
    if (g_original == nullptr || !plugin.is_open()) {
      return make_error(ErrorCode::kInvalid, "plugin {} offers no open {}", plugin.name(),
                        WEFT_KERNELS_ID);
    }
    g_table = *g_original;
    g_table.get = &get_wrapped;
    return host.use_kernels(&g_table, plugin.handle(), isa);
  };
}

void Profile::clear() {
  section_.clear();
  lines_.clear();
}

weft_status Profile::launch(size_t slot, const void* args, weft_err* err) {
  const weft_kernel& kernel = g_kernels[slot];
  if (!recording_) return kernel.launch(args, err);
  begins_section(kernel.op, args);
  Launch launch;
  launch.slot = slot;
  launch.cost = cost_of(kernel.op, args);
  const auto begin = Clock::now();
  const weft_status status = kernel.launch(args, err);
  launch.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  section_.push_back(std::move(launch));
  return status;
}

// The graph names no layers; but every sublayer begins with a norm over the full width, a step with
// the embedding, and the head with its rows being gathered.
void Profile::begins_section(std::string_view op, const void* args) {
  bool begins = op == "attnres";
  if (op == "embed") {
    const auto* a = static_cast<const weft_op_embed*>(args);
    hidden_ = a->table.k;
    vocab_ = a->table.n;
    begins = true;
  } else if (op == "norm") {
    begins = static_cast<const weft_op_norm*>(args)->n_cols == hidden_;
  } else if (op == "gather") {
    begins = section_.empty() || std::string_view(g_kernels[section_.back().slot].op) != "gather";
  }
  if (begins) end_section();
}

std::string_view Profile::section_kind() const {
  std::string_view kind = "other";
  for (const Launch& launch : section_) {
    const std::string_view op = g_kernels[launch.slot].op;
    if (is_one_of(op, {"kda_step", "kda_chunk"})) return "kda";
    if (is_one_of(op, {"mla_decode", "mla_prefill"})) return "mla";
    if (is_one_of(op, {"moe", "route"})) return "moe";
    if (op == "embed") return "embed";
    if (op == "gather") kind = "head";
    if (op == "glu" && kind == "other") kind = "dense";
    if (op == "gemm" && launch.cost.shape.rfind(std::to_string(vocab_) + "x", 0) == 0)
      kind = "head";
  }
  return kind;
}

void Profile::end_section() {
  const std::string kind(section_kind());
  for (const Launch& launch : section_) {
    const weft_kernel& kernel = g_kernels[launch.slot];
    ProfileLine& line = lines_[{kind, launch.slot, launch.cost.shape, launch.cost.rows}];
    line.layer = kind;
    line.op = kernel.op;
    line.variant = kernel.variant;
    line.shape = launch.cost.shape;
    line.rows = launch.cost.rows;
    ++line.launches;
    line.seconds += launch.seconds;
    line.bytes += launch.cost.weight_bytes;
    line.flop += launch.cost.flop;
    line.experts += launch.cost.experts;
  }
  section_.clear();
}

std::vector<ProfileLine> Profile::lines() {
  end_section();
  std::vector<ProfileLine> out;
  for (const auto& [key, line] : lines_) out.push_back(line);
  std::sort(out.begin(), out.end(),
            [](const ProfileLine& a, const ProfileLine& b) { return a.seconds > b.seconds; });
  return out;
}

nlohmann::ordered_json to_json(const std::vector<ProfileLine>& lines) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const ProfileLine& l : lines) {
    out.push_back({{"layer", l.layer},
                   {"op", l.op},
                   {"variant", l.variant},
                   {"shape", l.shape},
                   {"rows", l.rows},
                   {"launches", l.launches},
                   {"seconds", l.seconds},
                   {"bytes", l.bytes},
                   {"flop", l.flop},
                   {"experts", l.experts}});
  }
  return out;
}

void print(const std::vector<ProfileLine>& lines, double step_seconds, uint64_t steps,
           const Peaks& peaks, std::ostream& out) {
  const double n = static_cast<double>(std::max<uint64_t>(steps, 1));
  std::map<std::string, double> by_layer;
  double launched = 0;
  for (const ProfileLine& l : lines) {
    by_layer[l.layer] += l.seconds;
    launched += l.seconds;
  }
  by_layer["between launches"] = std::max(0.0, step_seconds - launched);
  fmt::print(out, "  {:.3f} ms per step:", step_seconds / n * 1e3);
  for (const auto& [layer, seconds] : by_layer) {
    fmt::print(out, " {} {:.1f}%", layer, 100 * seconds / step_seconds);
  }
  fmt::print(out, "\n  {:<7}{:<12}{:<12}{:<42}{:>6}{:>7}{:>10}{:>7}{:>8}{:>9}{:>7}\n", "layer",
             "op", "variant", "shape", "rows", "calls", "us/call", "share", "GB/s", "GFLOP/s",
             "%roof");
  size_t shown = 0;
  for (const ProfileLine& l : lines) {
    if (++shown > kShownLines) break;
    std::string shape = l.shape;
    if (l.experts != 0)
      shape += fmt::format(", {:.1f} hit", static_cast<double>(l.experts) / double(l.launches));
    const double roof =
        roofline_seconds(l.bytes, l.flop, peaks.read_bytes, peaks.matmul_flops()) / l.seconds;
    fmt::print(out,
               "  {:<7}{:<12}{:<12}{:<42}{:>6}{:>7.1f}{:>10.1f}{:>6.1f}%{:>8.1f}{:>9.1f}{:>7.0f}\n",
               l.layer, l.op, l.variant, shape, l.rows, static_cast<double>(l.launches) / n,
               l.seconds / static_cast<double>(l.launches) * 1e6, 100 * l.seconds / step_seconds,
               l.bytes / l.seconds / 1e9, l.flop / l.seconds / 1e9, 100 * roof);
  }
}

}  // namespace weft::bench
