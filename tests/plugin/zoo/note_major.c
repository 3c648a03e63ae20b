/* Built for the next ABI major: must be refused before its constructor runs. */
#include <weft/base.h>
#undef WEFT_ABI_MAJOR
#define WEFT_ABI_MAJOR 2u
#define ZOO note_major
#include "zoo.h"
__attribute__((constructor)) static void never(void) { _exit(99); }
