/* A note, but no entry symbol. */
#define ZOO no_symbol
#define ZOO_OWN_ENTRY
#include "zoo.h"
WEFT_NOTE("no_symbol", "1.0.0");
const weft_desc* weft_another_symbol(void);
const weft_desc* weft_another_symbol(void) { return &zoo_desc; }
