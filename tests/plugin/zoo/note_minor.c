/* Built for a later minor of this major: welcome, tables only grow. */
#include <weft/base.h>
#undef WEFT_ABI_MINOR
#define WEFT_ABI_MINOR 7u
#define ZOO note_minor
#include "zoo.h"
