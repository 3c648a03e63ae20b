/* Never returns from open. */
#define ZOO hang_open
#define ZOO_OWN_OPEN
#include "zoo.h"
static weft_status zoo_open(const weft_host* host, weft_plugin** out, weft_err* err) {
  (void)host, (void)out, (void)err;
  for (;;) pause();
  return WEFT_OK;
}
