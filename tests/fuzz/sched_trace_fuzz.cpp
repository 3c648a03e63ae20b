// A scheduler trace from anywhere: as a file, and as the contents of a record whose checksum is
// right. What is decoded must be safe to plan with.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/plan/plan_check.h"
#include "engine/plan/trace.h"

namespace {

void look_at(const weft::engine::TraceRecord& record) {
  const weft_sched_view& view = record.view;
  WEFT_CHECK(view.n_groups <= WEFT_CACHE_GROUPS_MAX);
  WEFT_CHECK(record.wait.size() == view.n_wait && record.run.size() == view.n_run);
  const auto checked = weft::engine::PlanCheck().check(view, record.plan);
  WEFT_CHECK(checked.ok() || !checked.error().message.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  weft::engine::TraceRecord record;
  weft::engine::TraceDecoder decoder;
  // Twice: the second time the record's references find sequences.
  for (int i = 0; i < 2; ++i) {
    const auto decoded = decoder.decode(bytes, &record);
    if (!decoded.ok()) {
      WEFT_CHECK(!decoded.error().message.empty());
      break;
    }
    look_at(record);
  }
  auto reader = weft::engine::TraceReader::from_bytes(std::string(bytes));
  if (!reader.ok()) return 0;
  for (;;) {
    const auto more = (*reader)->next(&record);
    if (!more.ok() || !*more) return 0;
    look_at(record);
  }
}
