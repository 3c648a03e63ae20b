// K3 model output in both modes: no input crashes the parser, and no cut changes what comes out of
// it.
//
// The first byte holds options, the second the size of the cuts; the rest is the output. In token
// mode the bytes 0..3 stand for the four markers.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/utf8.h"
#include "text/output_parser.h"
#include "text/utf8_stream.h"

namespace {

using weft::api::Delta;
using namespace weft::text;

struct Seen {
  std::string reasoning, content, calls;
  weft::api::FinishReason finish = weft::api::FinishReason::kNone;
  bool operator==(const Seen&) const = default;

  void take(const std::vector<Delta>& deltas) {
    for (const Delta& d : deltas) {
      if (d.kind == Delta::Kind::kReasoning) reasoning += d.text;
      if (d.kind == Delta::Kind::kContent) content += d.text;
      if (d.kind == Delta::Kind::kToolOpen) calls += "\n" + d.text + ":";
      if (d.kind == Delta::Kind::kToolArguments) calls += d.text;
      if (!weft::is_valid_utf8(d.text)) std::abort();
    }
  }
};

Seen run_text(const K3ParserOptions& options, const StopOptions& stops, std::string_view bytes,
              size_t step, EndReason end) {
  K3TextParser parser(options, stops);
  Seen seen;
  for (size_t i = 0; i < bytes.size(); i += step) seen.take(parser.feed(bytes.substr(i, step)));
  seen.take(parser.finish(end, &seen.finish));
  return seen;
}

// Text between markers goes through the machine in pieces of `step` bytes (whole code points).
Seen run_events(const K3ParserOptions& options, std::string_view bytes, size_t step,
                EndReason end) {
  K3Machine machine(options);
  Utf8Stream utf8;
  Seen seen;
  const auto text = [&](std::string_view piece) {
    for (size_t i = 0; i < piece.size(); i += step) {
      std::string ready;
      utf8.feed(piece.substr(i, step), &ready);
      machine.text(ready);
      seen.take(machine.take());
    }
  };
  size_t from = 0;
  for (size_t i = 0; i <= bytes.size(); ++i) {
    if (i < bytes.size() && static_cast<uint8_t>(bytes[i]) > 3) continue;
    text(bytes.substr(from, i - from));
    std::string rest;
    utf8.flush(&rest);
    machine.text(rest);
    if (i < bytes.size()) machine.marker(static_cast<K3Machine::Marker>(bytes[i]));
    from = i + 1;
  }
  seen.finish = machine.finish(end);
  seen.take(machine.take());
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2,
                               std::min<size_t>(size - 2, 20'000));
  const uint8_t bits = data[0];
  const size_t step = 1 + data[1] % 16;
  K3ParserOptions options;
  options.start = static_cast<StartState>(bits % 3);
  options.suppress_tools = (bits & 4) != 0;
  options.max_calls = (bits & 8) != 0 ? 1 : kToolCallsMax;
  options.include_reasoning = (bits & 16) == 0;
  const EndReason end = static_cast<EndReason>((bits >> 5) % 4);
  StopOptions stops;
  if ((bits & 128) != 0) stops.strings = {"ab", "a\n"};
  if (!(run_text(options, stops, bytes, bytes.size() + 1, end) ==
        run_text(options, stops, bytes, step, end)))
    std::abort();
  if (!(run_events(options, bytes, bytes.size() + 1, end) == run_events(options, bytes, step, end)))
    std::abort();
  return 0;
}
