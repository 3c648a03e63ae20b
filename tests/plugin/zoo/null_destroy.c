/* Instances that cannot be destroyed. */
#define ZOO null_destroy
#define ZOO_DESTROY NULL
#include "zoo.h"
