// The smallest program that can check a plugin for another process (child_check.h).
#include <cstdio>

#include "plugin/child_check.h"

int main(int argc, char** argv) {
  const int status = weft::plugin::run_child_check_if_asked(argc, argv);
  if (status >= 0) return status;
  std::fputs("expected: --check-plugin root|user|unchecked PATH\n", stderr);
  return 2;
}
