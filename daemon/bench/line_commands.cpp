#include "bench/line_commands.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"
#include "bench/args.h"

namespace weft::bench {
namespace {

constexpr std::string_view kExpected =
    "expected prefill N, decode B N [CONTEXT], mixed B N [CONTEXT], logits ID..., logits-file PATH "
    "ID..., steps-file PATH K ID..., info or quit";

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> out;
  for (const std::string_view word : split(line, ' ')) {
    if (!word.empty()) out.push_back(word);
  }
  return out;
}

Result<std::vector<uint32_t>> numbers_of(const std::vector<std::string_view>& words, size_t first) {
  std::vector<uint32_t> out;
  for (size_t i = first; i < words.size(); ++i) {
    WEFT_ASSIGN(const uint64_t value, parse_count(words[i]));
    out.push_back(static_cast<uint32_t>(value));
  }
  return out;
}

Result<LineCommand> parse_logits(const std::vector<std::string_view>& words) {
  const bool to_file = words[0] != "logits", in_steps = words[0] == "steps-file";
  LogitsCommand command;
  if (to_file) command.file = words.size() > 1 ? words[1] : "";
  WEFT_ASSIGN(auto ids, numbers_of(words, to_file ? 2 : 1));
  if (in_steps && !ids.empty()) {
    command.steps = ids.front();
    ids.erase(ids.begin());
  }
  if (ids.empty()) return make_error(ErrorCode::kInvalid, "no token ids; {}", kExpected);
  if (command.steps >= ids.size()) {
    return make_error(ErrorCode::kInvalid, "{} steps of {} tokens leave no prompt", command.steps,
                      ids.size());
  }
  command.tokens.assign(ids.begin(), ids.end());
  return LineCommand(std::move(command));
}

Status write_floats(const std::string& path, const std::vector<float>& values) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return make_error(ErrorCode::kIo, "cannot create {}: {}", path, std::strerror(errno));
  }
  const auto* bytes = reinterpret_cast<const char*>(values.data());
  size_t left = values.size() * sizeof(float);
  while (left > 0) {
    const ssize_t n = ::write(fd.get(), bytes, left);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return make_error(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
    bytes += n;
    left -= static_cast<size_t>(n);
  }
  return {};
}

Json report(const Result<Measurement>& result) {
  if (!result.ok()) return Json{{"error", result.error().message}};
  const Measurement& m = *result;
  const Summary s = summarize(m.step_seconds);
  return Json{{"what", m.what},
              {"batch", m.batch},
              {"context", m.context},
              {"tokens", m.tokens},
              {"seconds", m.seconds},
              {"tok_s", m.tokens_per_second()},
              {"step_ms", s.median * 1e3},
              {"step_ms_p10", s.p10 * 1e3},
              {"step_ms_p90", s.p90 * 1e3}};
}

Json run_logits(const LogitsCommand& command, ModelBench& bench) {
  const Result<std::vector<float>> rows = bench.logits(command.tokens, command.steps);
  if (!rows.ok()) return Json{{"error", rows.error().message}};
  Json out{{"what", "logits"},
           {"tokens", command.tokens.size()},
           {"vocab", rows->size() / (command.steps + 1)}};
  if (command.file.empty()) {
    out["logits"] = *rows;
    return out;
  }
  const Status written = write_floats(command.file, *rows);
  if (!written.ok()) return Json{{"error", written.error().message}};
  out["file"] = command.file;
  return out;
}

}  // namespace

Result<LineCommand> parse_line(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  const std::vector<std::string_view> words = words_of(line);
  if (words.empty()) return make_error(ErrorCode::kInvalid, "empty line; {}", kExpected);
  const std::string_view what = words[0];
  if (what == "quit" && words.size() == 1) return LineCommand(QuitCommand{});
  if (what == "info" && words.size() == 1) return LineCommand(InfoCommand{});
  if (what == "logits" || what == "logits-file" || what == "steps-file") {
    return parse_logits(words);
  }
  if (what == "prefill" && words.size() == 2) {
    WEFT_ASSIGN(const auto n, numbers_of(words, 1));
    return LineCommand(PrefillCommand{n[0]});
  }
  if ((what == "decode" || what == "mixed") && (words.size() == 3 || words.size() == 4)) {
    WEFT_ASSIGN(const auto n, numbers_of(words, 1));
    DecodeCommand command{what == "mixed", n[0], n[1]};
    if (n.size() == 3) command.context = n[2];
    return LineCommand(command);
  }
  return make_error(ErrorCode::kInvalid, "\"{}\": {}", line.substr(0, 80), kExpected);
}

Result<LineCommand> parse_once(std::string_view text) {
  std::string line(text);
  for (size_t i = std::min(line.find('='), line.size()); i < line.size(); ++i) {
    if (line[i] == '=' || line[i] == 'x' || line[i] == '@') line[i] = ' ';
  }
  Result<LineCommand> command = parse_line(line);
  const bool measures = command.ok() && (std::holds_alternative<PrefillCommand>(*command) ||
                                         std::holds_alternative<DecodeCommand>(*command));
  if (measures) return command;
  return make_error(ErrorCode::kInvalid,
                    "--once {}: expected prefill=N, decode=BxN, decode=BxN@CONTEXT or mixed=BxN",
                    text);
}

Json answer(const LineCommand& command, LoadedModel& model, uint64_t seed) {
  ModelBench bench(model, seed);
  if (const auto* prefill = std::get_if<PrefillCommand>(&command)) {
    return report(bench.prefill(prefill->tokens));
  }
  if (const auto* decode = std::get_if<DecodeCommand>(&command)) {
    ModelBench::DecodeOptions options;
    options.batch = decode->batch;
    options.tokens = decode->tokens;
    options.context = decode->context;
    options.next = NextToken::kRandom;
    return report(decode->mixed ? bench.mixed(options) : bench.decode(options));
  }
  if (const auto* logits = std::get_if<LogitsCommand>(&command)) return run_logits(*logits, bench);
  if (std::holds_alternative<QuitCommand>(command)) return Json{{"what", "quit"}};
  return Json{{"what", "info"},
              {"weft", WEFT_VERSION},
              {"kernels", model.kernels()},
              {"isa_max", model.options().isa_max},
              {"vocab", model.info().vocab},
              {"hidden", model.info().hidden},
              {"layers", model.info().layers},
              {"max_batch_tokens", model.options().max_batch_tokens},
              {"max_sequences", model.options().max_sequences},
              {"max_context", model.options().max_context},
              {"weight_bytes", model.plan().weight_bytes},
              {"workspace_bytes", model.plan().workspace_bytes},
              {"load_seconds", model.load_seconds()}};
}

void serve_lines(std::istream& in, std::ostream& out, LoadedModel& model, uint64_t seed) {
  std::string line;
  while (std::getline(in, line)) {
    if (line.find_first_not_of(" \r\t") == std::string::npos) continue;
    const Result<LineCommand> command = parse_line(line);
    const Json reply =
        command.ok() ? answer(*command, model, seed) : Json{{"error", command.error().message}};
    out << reply.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
    if (command.ok() && std::holds_alternative<QuitCommand>(*command)) return;
  }
}

}  // namespace weft::bench
