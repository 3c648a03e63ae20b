#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace weft {

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "<2>weft: check failed: %s at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace weft
