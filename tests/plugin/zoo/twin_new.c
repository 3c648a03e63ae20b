/* The newer twin: 1.10 is more than 1.9. */
#define ZOO twin
#define ZOO_VERSION "1.10.0"
#include "zoo.h"
