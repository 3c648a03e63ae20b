/* No open function. */
#define ZOO null_open
#define ZOO_OPEN NULL
#include "zoo.h"
