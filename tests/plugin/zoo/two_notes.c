/* Two plugins linked into one file. */
#define ZOO two_notes
#include "zoo.h"
static const weft_note_record second __attribute__((section(".note.weft"), used, aligned(4))) = {
    5u,
    sizeof(weft_note),
    WEFT_NOTE_TYPE,
    "weft",
    {WEFT_NOTE_VERSION, WEFT_ABI_MAJOR, WEFT_ABI_MINOR, 0u, "second", "1"}};
