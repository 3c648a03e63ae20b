// Memory that the host lends to plugins: zeroed, aligned, big blocks in huge pages. Free functions
// without state; any thread. allocate and release must be given the same size, because large blocks
// are mappings of their own.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace weft::plugin {

constexpr uint64_t kAlignMin = 64;
constexpr uint64_t kHugePage = 2u << 20;

Result<void*> allocate_host(uint64_t bytes, uint64_t align);
void release_host(void* ptr, uint64_t bytes);

}  // namespace weft::plugin
