/* Nothing is wrong: the zoo's control group. */
#define ZOO sound
#include "zoo.h"
