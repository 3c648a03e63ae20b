/* The query function wants another host. */
#define ZOO refuses_host
#define ZOO_OWN_ENTRY
#include "zoo.h"
WEFT_NOTE("refuses_host", "1.0.0");
WEFT_EXPORT const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor);
WEFT_EXPORT const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor) {
  return host_major == 1 && host_minor == UINT32_MAX ? &zoo_desc : NULL;
}
