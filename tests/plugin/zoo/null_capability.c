/* Announces a capability and lacks its function. */
#define ZOO null_capability
#define ZOO_CAPS WEFT_STORAGE_CAP_LIST
#include "zoo.h"
