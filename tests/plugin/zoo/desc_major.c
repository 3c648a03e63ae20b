/* The note fits this host, the descriptor does not: a file put together by hand. */
#define ZOO desc_major
#define ZOO_MAJOR 2u
#include "zoo.h"
