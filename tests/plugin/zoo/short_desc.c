/* A descriptor from before the first release. */
#define ZOO short_desc
#define ZOO_SIZE 16
#include "zoo.h"
