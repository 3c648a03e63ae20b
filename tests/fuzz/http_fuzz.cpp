// Arbitrary bytes in arbitrary cuts must give what the same bytes give in one piece, within the
// limits. The first byte seeds the cuts; the rest is the input of a connection.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "http/request_parser.h"
#include "http/sse.h"

namespace {

using weft::http::BodyBudget;
using weft::http::Limits;
using weft::http::Request;
using weft::http::RequestParser;

Limits small_limits() {
  Limits limits;
  limits.request_line_max = 256;
  limits.header_bytes_max = 512;
  limits.header_count_max = 8;
  limits.body_max = 1024;
  limits.body_total_max = 1024;
  return limits;
}

void require(bool ok) {
  if (!ok) std::abort();
}

// `seed` 0 = one piece.
std::string run(std::string_view bytes, uint32_t seed) {
  const Limits limits = small_limits();
  auto budget = std::make_shared<BodyBudget>(limits.body_total_max);
  RequestParser parser(limits, budget);
  std::string out;
  while (!bytes.empty()) {
    seed = seed * 1664525u + 1013904223u * (seed != 0);
    std::string_view piece = bytes.substr(0, seed == 0 ? bytes.size() : 1 + (seed >> 24) % 40);
    bytes.remove_prefix(piece.size());
    while (!piece.empty()) {
      const size_t n = parser.feed(piece);
      require(n <= piece.size());
      piece.remove_prefix(n);
      (void)parser.wants_continue();
      if (parser.state() == RequestParser::State::kComplete) {
        const Request r = parser.take();
        require(r.body.size() <= limits.body_max);
        require(r.target.size() <= limits.request_line_max);
        require(r.headers.fields().size() <= limits.header_count_max);
        out += r.method + " " + r.path + "?" + r.query + "\n" + r.body + "\n";
        for (const auto& [name, value] : r.headers.fields()) {
          require(name.find_first_of("\r\n:") == std::string::npos && !name.empty());
          require(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
          out += name + ":" + value + "\n";
        }
      } else if (parser.state() == RequestParser::State::kError) {
        require(parser.error().status >= 400 && parser.error().status < 600);
        require(budget->used() == 0);
        require(parser.feed("GET") == 0);
        // Which of several faults is met first inside the body may depend on the cut; that there is
        // one may not.
        return out + "error\n";
      } else {
        require(piece.empty());
      }
    }
  }
  return out;
}

std::string run_sse(std::string_view bytes, size_t step) {
  std::string out;
  weft::http::SseParser parser(
      [&](const weft::http::SseEvent& e) { out += e.name + "|" + e.data + "\n"; }, 256);
  for (size_t i = 0; i < bytes.size(); i += step) {
    if (!parser.feed(bytes.substr(i, step))) return out + "too large";
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = run(bytes, 0);
  require(run(bytes, 1u + data[0] * 2654435u) == whole);
  require(run_sse(bytes, 1) == run_sse(bytes, size));
  return 0;
}
