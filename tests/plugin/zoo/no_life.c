/* An interface with instances but no way to make one. */
#define ZOO no_life
#define ZOO_LIFE NULL
#include "zoo.h"
