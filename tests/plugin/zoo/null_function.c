/* A mandatory function of the interface is missing. */
#define ZOO null_function
#define ZOO_SUBMIT NULL
#include "zoo.h"
