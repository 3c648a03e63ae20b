/* Ends the process politely: as bad for a daemon as a crash. */
#define ZOO exit_constructor
#include "zoo.h"
__attribute__((constructor)) static void leave(void) { _exit(3); }
