// Which rows of a "moe" call go to which expert. Shared by every vector variant. Internal linkage:
// see numeric.h.
#pragma once

#include <cstdint>

#include "team.h"
#include "weft/kernels.h"

namespace weft::kernels_cpu {
namespace {

constexpr uint32_t kNoEntry = UINT32_MAX;

// An entry is one (row, slot) pair whose expert is here; entries are numbered expert by expert.
struct ExpertGroups {
  uint32_t* start;   // [n_local + 1] where an expert's entries begin
  uint32_t* active;  // [n_local] experts with entries
  uint32_t* row;     // [entries] source row of an entry
  uint32_t* entry;   // [n_rows * topk] slot -> entry, or kNoEntry

  static uint64_t bytes(const weft_op_moe& op) {
    return slab<uint32_t>(op.n_local + uint64_t{1}) + slab<uint32_t>(op.n_local) +
           2 * slab<uint32_t>(uint64_t{op.n_rows} * op.topk);
  }
  static ExpertGroups take(const weft_op_moe& op, Bump& bump) {
    const uint64_t slots = uint64_t{op.n_rows} * op.topk;
    ExpertGroups g;
    g.start = bump.take<uint32_t>(op.n_local + uint64_t{1});
    g.active = bump.take<uint32_t>(op.n_local);
    g.row = bump.take<uint32_t>(slots);
    g.entry = bump.take<uint32_t>(slots);
    return g;
  }
};

// Counting sort of the slots by expert; inside an expert in row order. Returns the number of active
// experts.
inline uint32_t group_by_expert(const weft_op_moe& op, const ExpertGroups& w) {
  const uint64_t slots = uint64_t{op.n_rows} * op.topk;
  const auto local = [&](uint64_t slot) {  // n_local for an expert that is not here
    const uint32_t id = op.id[slot];
    return id < op.first || id - op.first >= op.n_local ? op.n_local : id - op.first;
  };
  for (uint32_t e = 0; e <= op.n_local; ++e) w.start[e] = 0;
  for (uint64_t s = 0; s < slots; ++s)
    if (local(s) < op.n_local) ++w.start[local(s) + 1];
  uint32_t n_active = 0;
  for (uint32_t e = 0; e < op.n_local; ++e) {
    if (w.start[e + 1] > 0) w.active[n_active++] = e;
    w.start[e + 1] += w.start[e];
  }
  for (uint64_t s = 0; s < slots; ++s) {
    const uint32_t e = local(s);
    w.entry[s] = e < op.n_local ? w.start[e]++ : kNoEntry;
    if (e < op.n_local) w.row[w.entry[s]] = static_cast<uint32_t>(s / op.topk);
  }
  for (uint32_t e = op.n_local; e > 0; --e) w.start[e] = w.start[e - 1];
  w.start[0] = 0;
  return n_active;
}

}  // namespace
}  // namespace weft::kernels_cpu
