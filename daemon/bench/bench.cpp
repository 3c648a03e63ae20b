#include "bench/bench.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <new>
#include <optional>

#include "bench/cache_bench.h"
#include "bench/machine.h"
#include "bench/model_command.h"
#include "bench/model_shape.h"
#include "bench/op_args.h"
#include "bench/op_bench.h"
#include "bench/run_command.h"

namespace weft::bench {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 failure, 2 unknown option or command. docs/benchmarks.md says what each "
    "number means.";

struct MachineOptions {
  uint32_t threads = 0;
  bool json = false;
};

struct AllOptions {
  ModelCommandOptions model;
  MachineOptions machine;
  CacheBenchOptions cache;
  OpOptions op;
  RunOptions run;
};

Status run_machine(const MachineOptions& options, std::ostream& out) {
  WEFT_ASSIGN(const MachineReport report, measure_machine(options.threads));
  if (options.json) {
    out << to_json(report).dump() << "\n";
  } else {
    print(report, out);
  }
  return {};
}

void declare_machine(CLI::App& app, MachineOptions& o) {
  app.add_option("--threads", o.threads, "Threads; 0 = one per CPU");
  app.add_flag("--json", o.json, "JSON instead of a table");
}

void declare_model(CLI::App& app, ModelCommandOptions& o) {
  app.add_option("directory", o.directory, "New or empty directory")->required();
  app.add_option("--preset", o.preset, "Shape to begin with")
      ->check(CLI::IsMember(preset_names()))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Equal seeds give equal bytes")->capture_default_str();
  app.add_option("--dtype", o.dtype,
                 "released: as the family is released; f32: everything in F32, experts too")
      ->check(CLI::IsMember({"released", "f32"}))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "Threads; 0 = one per CPU");
  for (const std::string& key : shape_keys()) {
    app.add_option_function<uint32_t>(
           "--" + key, [&o, key](const uint32_t& value) { o.numbers[key] = value; },
           "Instead of the preset's")
        ->group("Shape");
  }
}

void declare_op(CLI::App& app, OpOptions& o) {
  app.add_option("--op", o.op, "Operation; without it a table of what a step consists of")
      ->check(CLI::IsMember(measurable_ops()));
  app.add_option("--shape", o.shape, "KEY=NUMBER,...; keys: " + std::string(kShapeKeys));
  app.add_option("--dtype", o.dtype, "Of weights or cached rows: bf16, mxfp4 or f32");
  app.add_option("--isa", o.isa, "Newest instruction set to use: ref, avx2, avx512, ...");
  app.add_option("--variant", o.variant, "Only this variant");
  app.add_flag("--all-variants", o.all_variants, "Every variant of this machine");
  app.add_option("--threads", o.threads, "Kernel threads; 0 = one per CPU");
  app.add_option("--seconds", o.seconds, "Time for each variant")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  app.add_flag("--no-machine", o.no_machine,
               "Leave out the machine's limits and the shares of them");
  app.add_flag("--warm", o.warm, "The same data again and again instead of data from memory");
  app.add_option("--seed", o.seed, "Of the contents")->capture_default_str();
  app.add_option("--plugin-dir", o.plugin_dir, "Default: beside the program");
  app.add_flag("--json", o.json, "JSON instead of a table");
}

void declare_run(CLI::App& app, RunOptions& o) {
  app.add_option("--model", o.model, "Directory of the model")->required();
  app.add_option("--prefill", o.prefill, "Prompt lengths, e.g. 128,2k; empty for none")
      ->capture_default_str();
  app.add_option("--decode", o.decode, "Batch sizes; empty for none")->capture_default_str();
  app.add_option("--context", o.context, "Tokens before the decoded ones, e.g. 1k,16k,128k")
      ->capture_default_str();
  app.add_option("--tokens", o.tokens, "Tokens that each sequence decodes")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--mixed", o.mixed, "Also steps of decoding rows and a prompt piece");
  app.add_flag("--fake-context", o.fake_context,
               "Fill the caches with random numbers instead of computing the context");
  app.add_option("--next", o.next, "How the next token is chosen: greedy or random")
      ->check(CLI::IsMember({"greedy", "random"}))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "Kernel threads; 0 = one per CPU");
  app.add_option("--isa", o.isa, "Newest instruction set to use: ref, avx2, avx512, ...");
  app.add_option("--repeat", o.repeat, "Repetitions of each measurement")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--set", o.settings, "KEY=VALUE of the model plugin, e.g. cache_dtype=bf16");
  app.add_flag("--deterministic", o.deterministic,
               "Decode forms for prompts too: no cut changes a bit");
  app.add_option("--max-batch-tokens", o.max_batch_tokens, "Rows of a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-sequences", o.max_sequences, "Sequences at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--max-context", o.max_context,
                 "Tokens of one sequence; default: what the measurements need");
  app.add_option("--seed", o.seed, "Of prompts and made-up contents")->capture_default_str();
  app.add_option("--plugin-dir", o.plugin_dir, "Default: beside the program");
  app.add_option("--once", o.once, "One measurement, one line of JSON: prefill=512, decode=8x64");
  app.add_flag("--stdin", o.from_stdin, "Commands from the standard input, JSON lines back");
  app.add_flag("--no-machine", o.no_machine,
               "Leave out the machine's limits and the shares of them");
  app.add_flag("--profile", o.profile, "Also the time of every operation");
  app.add_flag("--json", o.json, "JSON instead of tables");
}

void declare_cache(CLI::App& app, CacheBenchOptions& o) {
  app.add_option("--tokens", o.tokens, "Length of the prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--others", o.others, "Conversations of 4096 tokens that are kept too")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 16));
  app.add_option("--repeat", o.repeat, "Repetitions")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_flag("--json", o.json, "JSON instead of a table");
}

// Numbers on the command line decide how much is allocated.
Status finish(const std::function<Status()>& chosen) {
  try {
    return chosen();
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kUnavailable, "not enough memory for these sizes");
  }
}

}  // namespace

int run_weft_bench(const std::vector<std::string>& arguments, const Streams& streams) {
  AllOptions options;
  CLI::App app("weft-bench: what this machine can do, and what weft makes of it", "weft-bench");
  app.footer(kFooter);
  app.set_version_flag("--version", "weft-bench " WEFT_VERSION);
  app.require_subcommand(1);
  std::function<Status()> chosen;
  CLI::App* model = app.add_subcommand("model", "Write a model with random weights");
  declare_model(*model, options.model);
  model->callback([&] { chosen = [&] { return write_model(options.model, streams); }; });
  CLI::App* machine = app.add_subcommand("machine", "Measure memory and arithmetic");
  declare_machine(*machine, options.machine);
  machine->callback([&] { chosen = [&] { return run_machine(options.machine, streams.out); }; });
  CLI::App* cache = app.add_subcommand("cache", "Measure the prefix cache's own work");
  declare_cache(*cache, options.cache);
  cache->callback([&] { chosen = [&] { return run_cache_bench(options.cache, streams); }; });
  CLI::App* op = app.add_subcommand("op", "Measure single operations");
  declare_op(*op, options.op);
  op->callback([&] { chosen = [&] { return run_ops(options.op, streams); }; });
  CLI::App* run = app.add_subcommand("run", "Measure a whole model");
  declare_run(*run, options.run);
  run->callback([&] { chosen = [&] { return run_model(options.run, streams); }; });
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& e) {  // CLI11 speaks in exceptions; they end here
    return app.exit(e, streams.out, streams.err) == 0 ? kOk : kUsage;
  }
  const Status status = finish(chosen);
  if (!status.ok()) {
    streams.err << "weft-bench: " << status.error().message << "\n";
    return kFailure;
  }
  if (streams.out.flush()) return kOk;
  streams.err << "weft-bench: cannot write to the standard output\n";
  return kFailure;
}

}  // namespace weft::bench
