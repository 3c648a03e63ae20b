/* weft/threads.h: the thread labels of the ABI, and a host table to ask which one holds.
 *
 * A label is a promise about concurrency, not the name of an operating-system thread:
 *   [init]    the thread that starts and stops the process; nothing else runs in this plugin meanwhile; may block
 *   [loop]    the event loop; must return within 50 microseconds; no I/O, no lock that another thread holds for long
 *   [engine]  the step thread of this instance; never concurrent with itself; does not allocate after warm-up
 *   [fast]    a worker lane for computing; must return within 10 milliseconds; several may run at once
 *   [slow]    a worker lane that may block on disks and networks; several may run at once, never two on one object
 *             unless the function says so
 *   [any]     callable from every thread, concurrently
 * "[init|slow]" means that either may call. A plugin that starts threads of its own blocks all signals in them, names
 * them, and joins them in stop(). A plugin never forks, exits, or changes signal handlers, locale, working directory or
 * environment.
 *
 * Ownership words (borrow, keep UNTIL, fill, give) are defined in weft/base.h. `self`, `plugin` and `host` arguments are
 * always borrow and not repeated in the comments. */
#ifndef WEFT_THREADS_H
#define WEFT_THREADS_H

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* bits of weft_host_threads_v1.labels */
  WEFT_THREAD_INIT = 1u << 0,
  WEFT_THREAD_LOOP = 1u << 1,
  WEFT_THREAD_ENGINE = 1u << 2,
  WEFT_THREAD_FAST = 1u << 3,
  WEFT_THREAD_SLOW = 1u << 4,
  WEFT_THREAD_KERNEL = 1u << 5 /* a thread of the kernel pool, inside host->run */
};

/* Host table (weft_host.extension), for assertions in plugins. */
#define WEFT_HOST_THREADS_ID "weft.host.threads/1"
typedef struct weft_host_threads_v1 {
  uint32_t struct_size;
  uint32_t reserved;
  /* [any] WEFT_THREAD_* bits that hold for the calling thread; 0 = a thread that the host did not make */
  uint32_t (*labels)(const weft_host *host);
  /* [any] 1 when the calling thread is the engine thread, else 0 */
  int32_t (*is_engine_thread)(const weft_host *host);
} weft_host_threads_v1;

#ifdef __cplusplus
}
#endif
#endif
