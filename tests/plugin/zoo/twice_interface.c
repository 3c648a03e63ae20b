/* One interface offered twice. */
#define ZOO twice_interface
#define ZOO_INTERFACES \
  {ZOO_ID, &zoo_table.head, ZOO_LIFE, zoo_keys}, {ZOO_ID, &zoo_table.head, ZOO_LIFE, zoo_keys},
#include "zoo.h"
