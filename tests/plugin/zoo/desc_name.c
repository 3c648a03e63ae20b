/* Another name in the descriptor than in the note. */
#define ZOO desc_name
#define ZOO_DESC_NAME "somebody_else"
#include "zoo.h"
