/* weft/plugin.h: what a plugin is. A shared object that exports exactly one function, weft_plugin_query_v1, and carries an
 * ELF note (weft/note.h) that the host reads before dlopen. The function returns a static descriptor; it must not
 * allocate, start threads or touch devices. */
#ifndef WEFT_PLUGIN_H
#define WEFT_PLUGIN_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_host weft_host;         /* weft/host.h */
typedef struct weft_plugin weft_plugin;     /* opaque, the plugin's */
typedef struct weft_instance weft_instance; /* opaque, the plugin's */

enum { WEFT_KEY_STR = 1, WEFT_KEY_INT, WEFT_KEY_BOOL, WEFT_KEY_REAL, WEFT_KEY_SIZE, WEFT_KEY_DURATION };
enum { WEFT_KEY_REQUIRED = 1u };

/* A setting that an interface understands. The host checks the operator's TOML against this table. Texts: keep, static. */
typedef struct weft_key { /* frozen */
  const char *name;       /* NULL ends the table */
  uint32_t type;          /* WEFT_KEY_* */
  uint32_t flags;
  const char *dflt;       /* text form, or NULL */
  const char *doc;        /* one sentence */
} weft_key;

typedef struct weft_param { /* frozen */
  const char *name;         /* borrow */
  uint32_t type;            /* WEFT_KEY_* */
  uint32_t reserved;
  weft_str text;            /* borrow; WEFT_KEY_STR, and the spelling of the others */
  int64_t i;                /* INT, BOOL (0/1), SIZE (bytes), DURATION (ns) */
  double r;                 /* REAL */
} weft_param;

/* First member of every interface table. caps are WEFT_<KIND>_CAP_* bits of the interface. */
typedef struct weft_head { /* frozen */
  uint32_t struct_size;    /* of the whole table */
  uint32_t revision;       /* equals the number after '/' in the interface id */
  uint64_t caps;
} weft_head;

/* Life of one configured instance of an interface. create -> start -> (work) -> drain -> stop -> destroy. */
typedef struct weft_life {
  uint32_t struct_size;
  uint32_t reserved;
  /* [init|slow] params: borrow, n entries, already checked against the key table. out: give, destroy(). err: fill */
  weft_status (*create)(weft_plugin *plugin, const weft_param *params, uint32_t n, weft_instance **out, weft_err *err);
  /* [init|slow] err: fill */
  weft_status (*start)(weft_instance *self, weft_err *err);
  /* [slow] WEFT_AGAIN while work is left before the deadline (host monotonic ns) */
  weft_status (*drain)(weft_instance *self, uint64_t deadline_ns);
  /* [init|slow] joins every thread that the instance started */
  void (*stop)(weft_instance *self);
  /* [init|slow] self may be NULL */
  void (*destroy)(weft_instance *self);
} weft_life;

typedef struct weft_interface { /* frozen */
  const char *id;               /* keep: static. "weft.storage/1"; NULL ends the array */
  const weft_head *table;       /* keep: static */
  const weft_life *life;        /* keep: static; NULL when the interface has no instances */
  const weft_key *keys;         /* keep: static; NULL when there are no settings */
} weft_interface;

/* Everything that a descriptor points to: keep, static; texts are 1 to 1024 bytes, NUL-terminated. */
typedef struct weft_desc {
  uint32_t struct_size;
  uint32_t magic;     /* WEFT_MAGIC */
  uint32_t abi_major; /* WEFT_ABI_MAJOR the plugin was built with */
  uint32_t abi_minor;
  const char *name; /* [a-z][a-z0-9_]*, equals the note and the file name without .so */
  const char *version;
  const char *vendor;
  const char *license;                 /* SPDX */
  const weft_interface *interfaces;    /* ends with id == NULL */
  /* [init] host: keep UNTIL close. out: give, close(). err: fill */
  weft_status (*open)(const weft_host *host, weft_plugin **out, weft_err *err);
  /* [init] */
  void (*close)(weft_plugin *plugin);
} weft_desc;

/* [init] The one exported symbol. Returns NULL to refuse this host. */
typedef const weft_desc *(*weft_plugin_query_fn)(uint32_t host_major, uint32_t host_minor);
#define WEFT_PLUGIN_SYMBOL "weft_plugin_query_v1"

#if defined(__GNUC__)
#define WEFT_EXPORT __attribute__((visibility("default")))
#else
#define WEFT_EXPORT
#endif

#ifdef __cplusplus
}
#endif
#endif
