/* An interface table that ends too early. */
#define ZOO short_table
#define ZOO_TABLE_SIZE 24
#include "zoo.h"
