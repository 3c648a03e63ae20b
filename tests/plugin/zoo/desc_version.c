/* Another version in the descriptor than in the note. */
#define ZOO desc_version
#define ZOO_DESC_VERSION "2.0.0"
#include "zoo.h"
