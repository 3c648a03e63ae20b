/* weft/base.h: words that every other header of the plugin ABI uses.
 *
 * Reading guide. Every function pointer carries a thread label in brackets (weft/threads.h defines them) and every
 * pointer an ownership word:
 *   borrow      valid until the call returns; copy to keep
 *   keep UNTIL  valid until the named later call
 *   fill        caller's memory; the callee writes at most the given size
 *   give        ownership passes to the receiver, who releases it with the function the comment names
 * Outputs are written only on success, weft_err only on failure. Nothing throws, exits, or frees the other side's memory.
 * Structs start with struct_size and grow at the end; structs marked "frozen" never change. Reserved fields are zero.
 * Strings are UTF-8. Sizes are bytes, times nanoseconds, unless the name says otherwise. */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_ABI_MAJOR 1u
#define WEFT_ABI_MINOR 0u
#define WEFT_MAGIC 0x54464557u /* "WEFT" in little-endian order */

/* True when the struct `p` of type `type` (as the other side built it) has `field`. */
#define WEFT_HAS(p, type, field) \
  ((p) != NULL && (size_t)(p)->struct_size >= offsetof(type, field) + sizeof((p)->field))

typedef int32_t weft_status; /* 0 done, > 0 not finished, < 0 failed */
enum {
  WEFT_OK = 0,
  WEFT_AGAIN = 1,         /* nothing happened; ask later */
  WEFT_PARTIAL = 2,       /* some of it happened; the outputs say how much */
  WEFT_END = 3,           /* an enumeration is over */
  WEFT_E_ARG = -1,        /* the caller broke the contract */
  WEFT_E_UNSUPPORTED = -2,/* never possible here */
  WEFT_E_NOMEM = -3,      /* not now */
  WEFT_E_IO = -4,         /* weft_err.sys holds errno */
  WEFT_E_TIMEOUT = -5,
  WEFT_E_CANCELLED = -6,
  WEFT_E_CONFIG = -7,     /* the operator must change something */
  WEFT_E_DEVICE = -8,
  WEFT_E_STATE = -9,      /* right call, wrong time */
  WEFT_E_CORRUPT = -10,   /* data contradicts itself */
  WEFT_E_PEER = -11,
  WEFT_E_INTERNAL = -12   /* the callee's bug */
};

typedef struct weft_str { /* frozen */
  const char *data;       /* borrow unless stated; not NUL-terminated */
  uint64_t len;
} weft_str;

typedef struct weft_bytes { /* frozen */
  void *data;               /* borrow unless stated */
  uint64_t len;
} weft_bytes;

typedef struct weft_err { /* fill; caller-owned */
  uint32_t struct_size;
  weft_status code;
  int64_t sys;   /* errno of the failed system call, or 0 */
  char msg[496]; /* NUL-terminated; names the field, what was expected, what came, what to do */
} weft_err;

#ifdef __cplusplus
}
#endif
#endif
