/* weft/storage.h: "weft.storage/1", reading (and writing) objects by URI. Submit/reap: the caller names each read with an
 * id, gives the memory, and collects completions; submit that accepts fewer than offered is the backpressure. */
#ifndef WEFT_STORAGE_H
#define WEFT_STORAGE_H

#include "plugin.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_STORAGE_ID "weft.storage/1"
enum { /* weft_head.caps */
  WEFT_STORAGE_CAP_LIST = 1u << 0,
  WEFT_STORAGE_CAP_CANCEL = 1u << 1,
  WEFT_STORAGE_CAP_WRITE = 1u << 2,
  WEFT_STORAGE_CAP_TO_DEVICE = 1u << 3
};

typedef struct weft_object weft_object; /* opaque, the plugin's: one opened object */

typedef struct weft_io { /* frozen */
  uint64_t id;           /* the caller's; unique among the ones in flight */
  weft_object *object;   /* keep UNTIL reaped */
  uint64_t offset;       /* bytes */
  uint64_t len;          /* bytes; the object must reach to offset + len, else WEFT_E_CORRUPT */
  void *dst;             /* fill; keep UNTIL reaped */
  int32_t mem;           /* WEFT_MEM_* of dst */
  int32_t device;
} weft_io;

typedef struct weft_done { /* frozen */
  uint64_t id;
  uint64_t bytes; /* delivered; equals len when status is WEFT_OK */
  weft_status status;
  int32_t sys; /* errno when status is WEFT_E_IO */
} weft_done;

typedef struct weft_object_info {
  uint32_t struct_size;
  uint32_t flags;
  uint64_t size;  /* bytes */
  uint64_t align; /* preferred alignment of offset and len, at least 1 */
  char etag[72];  /* NUL-terminated; changes when the content changes */
} weft_object_info;

typedef struct weft_storage_v1 {
  weft_head head;
  /* [any] 0 = not mine, else score: higher wins. uri: borrow */
  int32_t (*probe)(weft_plugin *plugin, weft_str uri);
  /* [slow] out: give, close_object(). info, err: fill. uri: borrow */
  weft_status (*open_object)(weft_instance *self, weft_str uri, weft_object **out, weft_object_info *info, weft_err *err);
  /* [slow] nothing in flight on it. object: give back */
  void (*close_object)(weft_instance *self, weft_object *object);
  /* [any] never waits. Returns how many of the n were accepted, from the front; 0 = full. ios: borrow */
  uint32_t (*submit)(weft_instance *self, const weft_io *ios, uint32_t n);
  /* [any] Every accepted id comes back exactly once. Waits up to wait_ns for the first. out: fill, max entries */
  uint32_t (*reap)(weft_instance *self, weft_done *out, uint32_t max, uint64_t wait_ns);
  /* [any] best effort; the completion still comes, with WEFT_E_CANCELLED if it won */
  weft_status (*cancel)(weft_instance *self, uint64_t id);
  /* [slow] Calls each(ctx, name, info) for every object directly under prefix, in name order; stops when it returns
   * non-zero and returns that. prefix, ctx: borrow. name, info: borrow in the callback. err: fill */
  weft_status (*list)(weft_instance *self, weft_str prefix,
                      weft_status (*each)(void *ctx, weft_str name, const weft_object_info *info), void *ctx,
                      weft_err *err);
} weft_storage_v1;

#ifdef __cplusplus
}
#endif
#endif
