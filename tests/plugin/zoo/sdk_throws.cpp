// Throws too, but behind the fence of plugins/sdk/weft.hpp: the host sees a status and a message.
#define ZOO sdk_throws
#define ZOO_OWN_OPEN
#include <weft.hpp>

#include "zoo.h"
static weft_status zoo_open(const weft_host*, weft_plugin**, weft_err* err) {
  return weft::fence(
      err, [] { weft::fail(WEFT_E_CONFIG, "depth: expected 1 to %d, came %d; lower it", 64, 65); });
}
