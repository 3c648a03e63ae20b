/* A key of a type that does not exist. */
#define ZOO bad_key_type
#define ZOO_KEY_TYPE 77
#include "zoo.h"
