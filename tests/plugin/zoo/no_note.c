/* A good entry symbol, but no note: built without WEFT_PLUGIN. Its constructor would end the
 * process, so a host that survives looking at it has not run it. */
#define ZOO no_note
#define ZOO_OWN_ENTRY
#include "zoo.h"
__attribute__((constructor)) static void never(void) { _exit(99); }
WEFT_EXPORT const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor);
WEFT_EXPORT const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor) {
  (void)host_major, (void)host_minor;
  return &zoo_desc;
}
