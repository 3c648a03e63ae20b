#include "bench/run_command.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <variant>

#include "bench/args.h"
#include "bench/line_commands.h"
#include "bench/loaded_model.h"
#include "bench/machine.h"
#include "bench/model_bench.h"
#include "bench/profile.h"
#include "bench/report.h"

namespace weft::bench {
namespace {

constexpr uint32_t kDefaultServedContext = 32768;
constexpr uint32_t kMixedSteps = 4;  // each holds a whole prompt piece

struct Work {
  std::vector<uint32_t> prefill, decode, context;
  std::vector<LineCommand> once;
};

Result<Work> work_of(const RunOptions& o) {
  Work w;
  for (const std::string& text : o.once) {
    WEFT_ASSIGN(auto command, parse_once(text));
    w.once.push_back(std::move(command));
  }
  if (o.from_stdin || !o.once.empty()) return w;
  WEFT_ASSIGN(w.prefill, parse_counts(o.prefill));
  WEFT_ASSIGN(w.decode, parse_counts(o.decode));
  WEFT_ASSIGN(w.context, parse_counts(o.context));
  return w;
}

uint32_t longest(const Work& w, const RunOptions& o) {
  if (o.max_context != 0) return o.max_context;
  if (o.from_stdin || !o.once.empty()) return kDefaultServedContext;
  uint32_t most = 2;
  for (const uint32_t n : w.prefill) most = std::max(most, n);
  for (const uint32_t n : w.context) most = std::max(most, n + o.tokens + 2);
  return most;
}

Result<ModelOptions> model_options(const RunOptions& o, const Work& w) {
  ModelOptions m;
  m.model_dir = o.model;
  m.plugin_dir = o.plugin_dir;
  m.isa_max = o.isa;
  m.threads = o.threads;
  m.max_batch_tokens = o.max_batch_tokens;
  m.deterministic = o.deterministic;
  m.max_sequences = o.max_sequences;
  for (const uint32_t b : w.decode) m.max_sequences = std::max(m.max_sequences, b + 1);
  m.max_context = longest(w, o);
  for (const std::string& text : o.settings) {
    WEFT_ASSIGN(auto setting, parse_setting(text));
    m.settings.push_back(std::move(setting));
  }
  return m;
}

Status warm_up(LoadedModel& model) {
  const ModelOptions& o = model.options();
  const auto done = ModelBench(model, 0).prefill(std::min(o.max_batch_tokens, o.max_context));
  return done.ok() ? Status() : Status(done.error());
}

Result<ModelShape> read_shape(const std::string& directory) {
  const std::string path = directory + "/config.json";
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in) return make_error(ErrorCode::kIo, "cannot read {}", path);
  return shape_from_config(text);
}

class Measuring {
 public:
  Measuring(const RunOptions& options, const Work& work, LoadedModel& model,
            const ModelShape& shape, Profile* profile, const Streams& streams)
      : o_(options),
        work_(work),
        model_(model),
        shape_(shape),
        profile_(profile),
        streams_(streams) {}

  Status run() {
    for (const uint32_t n : work_.prefill) {
      WEFT_TRY(repeat([&](ModelBench& bench) { return bench.prefill(n); }));
    }
    for (const uint32_t context : work_.context) {
      for (const uint32_t batch : work_.decode) {
        ModelBench::DecodeOptions d;
        d.batch = batch;
        d.tokens = o_.tokens;
        d.context = context;
        d.fake_context = o_.fake_context;
        d.next = o_.next == "greedy" ? NextToken::kGreedy : NextToken::kRandom;
        WEFT_TRY(repeat([&](ModelBench& bench) { return bench.decode(d); }));
        if (!o_.mixed) continue;
        d.tokens = std::min(o_.tokens, kMixedSteps);
        WEFT_TRY(repeat([&](ModelBench& bench) { return bench.mixed(d); }));
      }
    }
    return {};
  }
  const std::vector<ReportRow>& rows() const { return rows_; }
  // Beside rows(), when there is a profile.
  struct Profiled {
    std::vector<ProfileLine> lines;
    double seconds = 0;
    uint64_t steps = 0;
  };
  const std::vector<Profiled>& profiles() const { return profiles_; }

 private:
  template <class Measure>
  Status repeat(Measure measure) {
    std::vector<Measurement> repeats;
    Profiled profiled;
    if (profile_ != nullptr) profile_->clear();
    for (uint32_t i = 0; i < o_.repeat; ++i) {
      ModelBench bench(model_, o_.seed + i, [this](bool measuring) {
        if (profile_ != nullptr) profile_->record(measuring);
      });
      WEFT_ASSIGN(Measurement m, measure(bench));
      profiled.seconds += m.seconds;
      profiled.steps += m.step_seconds.size();
      repeats.push_back(std::move(m));
    }
    rows_.push_back(make_row(repeats, shape_, cache_bytes_of(model_.plan()),
                             model_.options().max_batch_tokens));
    if (profile_ != nullptr) {
      profiled.lines = profile_->lines();
      profiles_.push_back(std::move(profiled));
    }
    if (!o_.json) streams_.err << "." << std::flush;
    return {};
  }

  const RunOptions& o_;
  const Work& work_;
  LoadedModel& model_;
  const ModelShape& shape_;
  Profile* const profile_;
  const Streams& streams_;
  std::vector<ReportRow> rows_;
  std::vector<Profiled> profiles_;
};

void print_tables(const Measuring& measuring, const Peaks& peaks, std::ostream& out) {
  print_rows(measuring.rows(), peaks, out);
  for (size_t i = 0; i < measuring.profiles().size(); ++i) {
    const ReportRow& row = measuring.rows()[i];
    const Measuring::Profiled& p = measuring.profiles()[i];
    out << fmt::format(
        "\n{}, batch {}, context {}:\n", row.what, row.batch,
        row.what == "prefill" ? row.tokens_per_unit : static_cast<double>(row.context));
    print(p.lines, p.seconds, p.steps, peaks, out);
  }
}

Json tables_json(const Measuring& measuring, const Peaks& peaks) {
  Json rows = Json::array();
  for (size_t i = 0; i < measuring.rows().size(); ++i) {
    rows.push_back(to_json(measuring.rows()[i], peaks));
    if (i >= measuring.profiles().size()) continue;
    const Measuring::Profiled& p = measuring.profiles()[i];
    rows.back()["profile"] = {
        {"seconds", p.seconds}, {"steps", p.steps}, {"operations", to_json(p.lines)}};
  }
  return rows;
}

Status run_tables(const RunOptions& o, const Work& work, LoadedModel& model, Profile* profile,
                  const Streams& streams) {
  WEFT_ASSIGN(const ModelShape shape, read_shape(o.model));
  MachineReport machine;
  if (!o.no_machine) {
    WEFT_ASSIGN(machine, measure_machine(o.threads, /*quick=*/true));
  }
  if (!o.json) {
    if (!o.no_machine) print(machine, streams.out);
    print_memory(model, streams.out);
    streams.out << std::flush;
  }
  Measuring measuring(o, work, model, shape, profile, streams);
  WEFT_TRY(measuring.run());
  if (!o.json) {
    streams.err << "\n";
    print_tables(measuring, machine.peaks(), streams.out);
    return {};
  }
  const Json report = {{"machine", to_json(machine)},
                       {"memory", memory_json(model)},
                       {"measurements", tables_json(measuring, machine.peaks())}};
  streams.out << report.dump() << "\n";
  return {};
}

}  // namespace

Status run_model(const RunOptions& o, const Streams& streams) {
  WEFT_ASSIGN(const Work work, work_of(o));
  WEFT_ASSIGN(ModelOptions options, model_options(o, work));
  std::optional<Profile> profile;
  if (o.profile) options.use_kernels = profile.emplace().hook();
  WEFT_ASSIGN(const auto model, LoadedModel::open(options));
  // One step of the largest size, so that no measurement pays for first touches.
  WEFT_TRY(warm_up(*model));
  if (o.from_stdin) {
    serve_lines(streams.in, streams.out, *model, o.seed);
    return {};
  }
  if (o.once.empty()) return run_tables(o, work, *model, profile ? &*profile : nullptr, streams);
  for (const LineCommand& command : work.once) {
    const Json reply = answer(command, *model, o.seed);
    streams.out << reply.dump() << std::endl;
    if (reply.contains("error")) {
      return make_error(ErrorCode::kInvalid, "{}", reply["error"].get<std::string>());
    }
  }
  return {};
}

}  // namespace weft::bench
