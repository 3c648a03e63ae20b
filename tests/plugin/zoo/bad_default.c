/* A default that its own type does not accept. */
#define ZOO bad_default
#define ZOO_DEFAULT "64 fathoms"
#include "zoo.h"
