/* An interface id without a revision. */
#define ZOO bad_id
#define ZOO_ID "weft.storage"
#include "zoo.h"
