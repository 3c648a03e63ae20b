// Where a token's cached row lies. Internal linkage: see numeric.h.
#pragma once

#include <cstdint>

#include "numeric.h"
#include "weft/kernels.h"

namespace weft::kernels_cpu {

static inline uint64_t page_row_bytes(const weft_mla_pages& pages) {
  return (uint64_t{pages.latent} + pages.tail) * dtype_bytes(pages.dtype);
}

// NULL for a page that the table does not have (negative entry); the caller then raises the
// bad-index bit.
static inline uint8_t* page_row(const weft_mla_pages& pages, uint32_t seq, uint64_t token) {
  const int32_t page = pages.table[seq * pages.table_stride + token / pages.page_tokens];
  if (page < 0) return nullptr;
  return static_cast<uint8_t*>(pages.base) + static_cast<uint64_t>(page) * pages.page_stride +
         token % pages.page_tokens * page_row_bytes(pages);
}

}  // namespace weft::kernels_cpu
