/* A plugin that offers nothing. */
#define ZOO no_interfaces
#define ZOO_INTERFACES
#include "zoo.h"
