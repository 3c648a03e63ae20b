// Throws over the C line.
#include <stdexcept>
#define ZOO throws_open
#define ZOO_OWN_OPEN
#include "zoo.h"
static weft_status zoo_open(const weft_host*, weft_plugin**, weft_err*) {
  throw std::runtime_error("no tide today");
}
