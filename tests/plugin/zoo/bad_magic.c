/* The descriptor does not begin like one. */
#define ZOO bad_magic
#define ZOO_MAGIC 0x12345678u
#include "zoo.h"
