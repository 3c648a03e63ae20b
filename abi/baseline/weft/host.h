/* weft/host.h: what the host offers a plugin. Every pointer in the table is non-NULL up to struct_size. */
#ifndef WEFT_HOST_H
#define WEFT_HOST_H

#include "plugin.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_LOG_ERROR = 3, WEFT_LOG_WARNING = 4, WEFT_LOG_INFO = 6, WEFT_LOG_DEBUG = 7 };

struct weft_host {
  uint32_t struct_size;
  uint32_t abi_minor;
  void *impl; /* the host's own; plugins pass the table back, never this */
  /* [any] A further host table by id ("weft.host.kernels/1"), or NULL. Result: keep UNTIL close. id: borrow */
  const void *(*extension)(const weft_host *host, const char *id);
  /* [any] never blocks. msg: borrow, NUL-terminated, one line */
  void (*log)(const weft_host *host, int32_t level, const char *msg);
  /* [any] monotonic nanoseconds (a fake clock in tests) */
  uint64_t (*now_ns)(const weft_host *host);
  /* [init|slow] Zeroed memory, aligned to `align` (power of two >= 64). out: give, release() with the same mem/device/bytes.
   * Host memory comes in huge pages where the system grants them. */
  weft_status (*alloc)(const weft_host *host, int32_t mem, int32_t device, uint64_t bytes, uint64_t align, void **out);
  /* [init|slow] ptr: give back, NULL ok */
  void (*release)(const weft_host *host, int32_t mem, int32_t device, void *ptr, uint64_t bytes);
  /* [any] The host will poll the instance that owns `token` soon. */
  void (*wake)(const weft_host *host, uint64_t token);
  /* [engine] Runs fn(ctx, part, parts) on `parts` threads of the kernel pool, part 0 on the caller, and returns when all are
   * done. parts <= threads(host). ctx: borrow. fn must not block or call run(). */
  void (*run)(const weft_host *host, void (*fn)(void *ctx, uint32_t part, uint32_t parts), void *ctx, uint32_t parts);
  /* [any] Number of threads in the kernel pool, at least 1; constant after open. */
  uint32_t (*threads)(const weft_host *host);
  /* [init] Secret by name, from the host's credential store. out: borrow until open returns. name: borrow */
  weft_status (*credential)(const weft_host *host, const char *name, weft_bytes *out);
  /* [init] Registers a metric "weft_plugin_<name>" and returns its id (0 = refused). kind 1 counter, 2 gauge. name, help: borrow */
  uint64_t (*metric)(const weft_host *host, const char *name, int32_t kind, const char *help);
  /* [any] adds to a counter, sets a gauge */
  void (*metric_put)(const weft_host *host, uint64_t id, double value);
};

#ifdef __cplusplus
}
#endif
#endif
