/* One of two plugins called twin. */
#define ZOO twin
#define ZOO_VERSION "1.9.3"
#include "zoo.h"
