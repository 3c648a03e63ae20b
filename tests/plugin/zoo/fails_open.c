/* Says no with a message that has no end and a terminal escape in it. */
#define ZOO fails_open
#define ZOO_OWN_OPEN
#include <string.h>

#include "zoo.h"
static weft_status zoo_open(const weft_host* host, weft_plugin** out, weft_err* err) {
  (void)host, (void)out;
  memset(err->msg, 'x', sizeof err->msg);
  memcpy(err->msg, "\033[2Jno", 6);
  return WEFT_E_DEVICE;
}
