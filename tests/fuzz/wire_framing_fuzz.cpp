// Frame decoder against arbitrary bytes: whatever comes, the result must not depend on how the
// stream was cut, and every message that decodes must survive encoding again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "wire/framing.h"

namespace {

constexpr uint32_t kLimit = 4096;

std::vector<std::string> decode(std::string_view bytes, size_t piece, bool* failed) {
  weft::wire::FrameDecoder decoder(kLimit);
  std::vector<std::string> out;
  *failed = false;
  for (size_t at = 0; at < bytes.size() && !*failed; at += piece) {
    decoder.feed(bytes.substr(at, piece));
    weft::wire::Envelope envelope;
    for (;;) {
      const weft::Result<bool> more = decoder.next(&envelope);
      *failed = !more.ok();
      if (*failed || !*more) break;
      std::string again;
      if (!weft::wire::append_frame(envelope, &again, 2 * kLimit).ok()) std::abort();
      out.push_back(again);
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  bool failed_whole = false, failed_cut = false;
  const auto whole = decode(bytes, size, &failed_whole);
  const auto cut = decode(bytes, 1 + data[0] % 7, &failed_cut);
  if (whole != cut || failed_whole != failed_cut) std::abort();
  return 0;
}
