/* An interface that this host does not know: fine, listed and never called. */
#define ZOO foreign_interface
#define ZOO_ID "com.example.tide/1"
#include "zoo.h"
