/* A note segment larger than any sane one. */
#define ZOO huge_note
#include "zoo.h"
static const struct {
  uint32_t owner_size, payload_size, type;
  char owner[8];
  char payload[100000];
} huge __attribute__((section(".note.weft"), used, aligned(4))) = {5u, 100000u, 1u, "zoo", "?"};
