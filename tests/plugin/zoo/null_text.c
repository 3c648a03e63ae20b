/* A descriptor without a version. */
#define ZOO null_text
#define ZOO_DESC_VERSION NULL
#include "zoo.h"
