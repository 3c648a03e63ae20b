/* Dies in the entry symbol. */
#define ZOO crash_query
#define ZOO_OWN_ENTRY
#include "zoo.h"
WEFT_NOTE("crash_query", "1.0.0");
WEFT_EXPORT const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor);
WEFT_EXPORT const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor) {
  (void)host_major, (void)host_minor;
  raise(SIGABRT);
  return &zoo_desc;
}
