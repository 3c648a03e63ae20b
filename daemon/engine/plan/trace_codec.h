// The bytes of one record of a scheduler trace: a view and the plan that was taken. Every number is
// a varint, and a sequence is written as its difference to the same sequence in the record before,
// so that a thousand unchanged waiting requests cost a few kilobytes. Records can therefore be read
// only in order. Encoder and decoder keep the sequences of the last record; one thread each. The
// decoder believes nothing: it reads bytes from outside.
#pragma once

#include <weft/scheduler.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace weft::engine {

// One decoded record. view and plan point into the vectors: do not copy.
struct TraceRecord {
  TraceRecord() = default;
  TraceRecord(const TraceRecord&) = delete;
  TraceRecord& operator=(const TraceRecord&) = delete;

  weft_sched_view view = {};
  weft_sched_plan plan = {};
  uint64_t plan_ns = 0;    // how long planning took
  bool by_plugin = false;  // false: the built-in policy's plan

  std::vector<weft_seq> wait, run;
  std::vector<weft_sched_group> groups;
  std::vector<weft_sched_cost> costs;
  std::vector<weft_sched_tenant> tenants;
  std::vector<weft_share> run_shares, admit_shares;
  std::vector<weft_preempt> preempts;
  std::vector<uint32_t> drops;
};

class TraceEncoder {
 public:
  // Appends the record's bytes.
  void encode(const weft_sched_view& view, const weft_sched_plan& plan, uint64_t plan_ns,
              bool by_plugin, std::string* out);

 private:
  void put_seq(const weft_seq& seq, uint32_t n_groups, std::string* out);
  size_t find(uint64_t id);

  std::vector<weft_seq> last_, now_;
  std::unordered_map<uint64_t, size_t> places_;  // id -> place in last_, filled when needed
  size_t guess_ = 0;
};

class TraceDecoder {
 public:
  static constexpr uint64_t kSeqsMax = 1u << 20;
  static constexpr uint64_t kCostsMax = 1u << 16;
  static constexpr uint64_t kTenantsMax = 1u << 20;

  // kCorrupt names the field; *out is then unspecified and decoding cannot go on.
  Status decode(std::string_view bytes, TraceRecord* out);

 private:
  std::vector<weft_seq> last_;
};

}  // namespace weft::engine
