/* Exports more than the entry symbol. The host accepts that: RTLD_LOCAL keeps the names from
 * everyone else. */
#define ZOO extra_export
#include "zoo.h"
WEFT_EXPORT int zoo_extra(void);
WEFT_EXPORT int zoo_extra(void) { return 1; }
