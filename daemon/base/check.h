// WEFT_CHECK: preconditions and invariants of our own code. Never for user input, file contents,
// peers or plugins: those get a Status. A failed check prints its place and aborts; systemd
// restarts the process.
#pragma once

namespace weft {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}  // namespace weft

#define WEFT_CHECK(expr) \
  ((expr) ? static_cast<void>(0) : ::weft::check_failed(#expr, __FILE__, __LINE__))
