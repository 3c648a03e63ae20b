/* Table and id disagree about the revision. */
#define ZOO bad_revision
#define ZOO_REVISION 2
#include "zoo.h"
