/* A sound little storage plugin in which every part can be replaced by a macro: the inhabitants of
 * the zoo are this file with one thing wrong. ZOO is the plugin's name; all other macros have sound
 * defaults. Compiles as C11 and C++20. */
#include <signal.h>
#include <stddef.h>
#include <unistd.h>
#include <weft/weft.h>

#define ZOO_TEXT_(x) #x
#define ZOO_TEXT(x) ZOO_TEXT_(x)
#ifndef ZOO_VERSION
#define ZOO_VERSION "1.0.0"
#endif
#ifndef ZOO_DESC_NAME
#define ZOO_DESC_NAME ZOO_TEXT(ZOO)
#endif
#ifndef ZOO_DESC_VERSION
#define ZOO_DESC_VERSION ZOO_VERSION
#endif
#ifndef ZOO_SIZE
#define ZOO_SIZE sizeof(weft_desc)
#endif
#ifndef ZOO_MAGIC
#define ZOO_MAGIC WEFT_MAGIC
#endif
#ifndef ZOO_MAJOR
#define ZOO_MAJOR WEFT_ABI_MAJOR
#endif
#ifndef ZOO_OPEN
#define ZOO_OPEN zoo_open
#endif
#ifndef ZOO_ID
#define ZOO_ID WEFT_STORAGE_ID
#endif
#ifndef ZOO_TABLE_SIZE
#define ZOO_TABLE_SIZE sizeof(weft_storage_v1)
#endif
#ifndef ZOO_REVISION
#define ZOO_REVISION 1
#endif
#ifndef ZOO_CAPS
#define ZOO_CAPS 0
#endif
#ifndef ZOO_SUBMIT
#define ZOO_SUBMIT zoo_submit
#endif
#ifndef ZOO_LIFE
#define ZOO_LIFE &zoo_life
#endif
#ifndef ZOO_DESTROY
#define ZOO_DESTROY zoo_destroy
#endif
#ifndef ZOO_DEFAULT
#define ZOO_DEFAULT "64MiB"
#endif
#ifndef ZOO_KEY_TYPE
#define ZOO_KEY_TYPE WEFT_KEY_SIZE
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ZOO_OWN_OPEN
static inline weft_status zoo_open(const weft_host* host, weft_plugin** out, weft_err* err) {
  (void)host, (void)err;
  *out = NULL; /* a plugin without state of its own */
  return WEFT_OK;
}
#else
static weft_status zoo_open(const weft_host* host, weft_plugin** out, weft_err* err);
#endif
static void zoo_close(weft_plugin* plugin) { (void)plugin; }

static weft_status zoo_create(weft_plugin* plugin, const weft_param* params, uint32_t n,
                              weft_instance** out, weft_err* err) {
  static int only;
  (void)plugin, (void)params, (void)n, (void)err;
  *out = (weft_instance*)&only;
  return WEFT_OK;
}
static weft_status zoo_start(weft_instance* self, weft_err* err) {
  (void)self, (void)err;
  return WEFT_OK;
}
static weft_status zoo_drain(weft_instance* self, uint64_t deadline_ns) {
  (void)self, (void)deadline_ns;
  return WEFT_OK;
}
static void zoo_stop(weft_instance* self) { (void)self; }
static inline void zoo_destroy(weft_instance* self) { (void)self; }
static const weft_life zoo_life = {sizeof(weft_life), 0,        zoo_create, zoo_start,
                                   zoo_drain,         zoo_stop, ZOO_DESTROY};

static int32_t zoo_probe(weft_plugin* plugin, weft_str uri) {
  (void)plugin, (void)uri, (void)zoo_life;
  return 0;
}
static weft_status zoo_open_object(weft_instance* self, weft_str uri, weft_object** out,
                                   weft_object_info* info, weft_err* err) {
  (void)self, (void)uri, (void)out, (void)info, (void)err;
  return WEFT_E_UNSUPPORTED;
}
static void zoo_close_object(weft_instance* self, weft_object* object) { (void)self, (void)object; }
static inline uint32_t zoo_submit(weft_instance* self, const weft_io* ios, uint32_t n) {
  (void)self, (void)ios, (void)n;
  return 0;
}
static uint32_t zoo_reap(weft_instance* self, weft_done* out, uint32_t max, uint64_t wait_ns) {
  (void)self, (void)out, (void)max, (void)wait_ns;
  return 0;
}
static const weft_storage_v1 zoo_table = {{(uint32_t)(ZOO_TABLE_SIZE), ZOO_REVISION, ZOO_CAPS},
                                          zoo_probe,
                                          zoo_open_object,
                                          zoo_close_object,
                                          ZOO_SUBMIT,
                                          zoo_reap,
                                          NULL,
                                          NULL};
static const weft_key zoo_keys[] = {{"cache", ZOO_KEY_TYPE, 0, ZOO_DEFAULT, "How much to cache."},
                                    {NULL, 0, 0, NULL, NULL}};
#ifndef ZOO_INTERFACES
#define ZOO_INTERFACES {ZOO_ID, &zoo_table.head, ZOO_LIFE, zoo_keys},
#endif
static const weft_interface zoo_interfaces[] = {ZOO_INTERFACES{NULL, NULL, NULL, NULL}};
static const weft_desc zoo_desc = {(uint32_t)(ZOO_SIZE), ZOO_MAGIC,        ZOO_MAJOR, 0,
                                   ZOO_DESC_NAME,        ZOO_DESC_VERSION, "zoo",     "MIT",
                                   zoo_interfaces,       ZOO_OPEN,         zoo_close};

#ifdef __cplusplus
}
#endif

#ifndef ZOO_OWN_ENTRY
#define ZOO_ENTRY(name) WEFT_PLUGIN(name, ZOO_VERSION, &zoo_desc)
ZOO_ENTRY(ZOO);
#endif
