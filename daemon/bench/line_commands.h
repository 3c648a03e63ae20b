// The line protocol of "weft-bench run --stdin": a script keeps one model loaded and asks for one
// measurement at a time, so that two programs can be measured in turn on the same machine.
//
//   prefill N                 a prompt of N tokens
//   decode B N [CONTEXT]      N tokens at batch B, after prompts of CONTEXT tokens (32); the next
//                             tokens are random, since greedy ones of random weights fall into
//                             loops
//   mixed B N [CONTEXT]       N steps of B decoding rows and a prompt piece
//   logits ID...              logits after these tokens, as a list
//   logits-file PATH ID...    the same as little-endian f32 in a new file
//   steps-file PATH K ID...   the last K tokens decoded one by one: 1 + K rows of logits
//   info                      what is loaded
//   quit
//
// Each line is answered with one line of JSON; a line that fails with {"error": "..."}.
#pragma once

#include <cstdint>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "bench/model_bench.h"

namespace weft::bench {

using Json = nlohmann::ordered_json;

struct PrefillCommand {
  uint32_t tokens = 0;
};
struct DecodeCommand {
  bool mixed = false;
  uint32_t batch = 0, tokens = 0, context = 32;
};
struct LogitsCommand {
  std::string file;    // empty: into the answer
  uint32_t steps = 0;  // of the tokens, decoded one by one
  std::vector<int32_t> tokens;
};
struct InfoCommand {};
struct QuitCommand {};
using LineCommand =
    std::variant<PrefillCommand, DecodeCommand, LogitsCommand, InfoCommand, QuitCommand>;

Result<LineCommand> parse_line(std::string_view line);
// "prefill=512", "decode=8x64", "decode=8x64@16k", "mixed=8x16": the --once form.
Result<LineCommand> parse_once(std::string_view text);

// One answer. The commands' sequences start from the same random state each time.
Json answer(const LineCommand& command, LoadedModel& model, uint64_t seed);
// Until "quit" or the end of the input. Empty lines are skipped.
void serve_lines(std::istream& in, std::ostream& out, LoadedModel& model, uint64_t seed);

}  // namespace weft::bench
