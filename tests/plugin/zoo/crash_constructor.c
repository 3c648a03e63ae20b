/* Dies before main would have begun. raise() and not a wild pointer: sanitizers would turn that
 * into an exit. */
#define ZOO crash_constructor
#include "zoo.h"
__attribute__((constructor)) static void crash(void) { raise(SIGSEGV); }
