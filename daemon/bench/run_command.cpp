#include "bench/run_command.h"

#include <algorithm>
#include <variant>

#include "bench/args.h"
#include "bench/line_commands.h"
#include "bench/loaded_model.h"
#include "bench/model_bench.h"

namespace weft::bench {
namespace {

constexpr uint32_t kDefaultServedContext = 32768;

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

}  // namespace

Status run_model(const RunOptions& o, const Streams& streams) {
  WEFT_ASSIGN(const Work work, work_of(o));
  WEFT_ASSIGN(const ModelOptions options, model_options(o, work));
  WEFT_ASSIGN(const auto model, LoadedModel::open(options));
  // One step of the largest size, so that no measurement pays for first touches.
  WEFT_TRY(warm_up(*model));
  if (o.from_stdin) {
    serve_lines(streams.in, streams.out, *model, o.seed);
    return {};
  }
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
