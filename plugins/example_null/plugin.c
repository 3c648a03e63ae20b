/* example_null: the smallest plugin that does something, in plain C. Start here when you write your
 * own.
 *
 * It is a storage plugin: it serves objects that consist of zero bytes. "null:4096" is an object of
 * 4096 zeros. Useful to measure loading without a disk, and as a template.
 *
 * A plugin is one shared object:  cc -std=c11 -shared -fPIC -fvisibility=hidden plugin.c -I<weft
 * headers> -o example_null.so Drop it into the plugin directory; `weftctl plugins` then lists it,
 * or says why it was refused.
 *
 * Read it from the bottom up: WEFT_PLUGIN names the descriptor, the descriptor names the
 * interfaces, an interface has a life (create ... destroy) and a table of functions. In brackets:
 * which thread calls (weft/threads.h). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/host.h>
#include <weft/note.h>
#include <weft/storage.h>

#define NAME "example_null"
#define VERSION "1.0.0"
#define QUEUE \
  64u /* reads in flight; submit() accepts no more, and that is how the host learns to wait */

/* The ABI leaves these three types opaque: what is in them is our business. */
struct weft_plugin {
  const weft_host* host;
};
struct weft_object {
  uint64_t size;
};
struct weft_instance {
  int64_t size_max;
  pthread_mutex_t
      lock; /* submit and reap are [any]: several threads may call at once; guards the two below */
  weft_done done[QUEUE]; /* finished reads that nobody has collected yet */
  uint32_t n_done;
};

/* Every failure says what was expected, what came and what to do. */
static weft_status fail(weft_err* err, weft_status status, const char* text) {
  if (WEFT_HAS(err, weft_err, msg)) {
    err->code = status;
    err->sys = 0;
    snprintf(err->msg, sizeof err->msg, "%s", text);
  }
  return status;
}

/* ---- the life of an instance: one per [storage.*] section of the configuration ---- */

/* The settings that we understand. The host checks names and types, and fills in defaults, before
 * create() is called. */
static const weft_key kKeys[] = {
    {"size_max", WEFT_KEY_SIZE, 0, "1TiB", "Largest object that may be opened."},
    {NULL, 0, 0, NULL, NULL},
};

static weft_status null_create(weft_plugin* plugin, const weft_param* params, uint32_t n,
                               weft_instance** out, weft_err* err) { /* [init|slow] */
  uint32_t i;
  weft_instance* self = calloc(1, sizeof *self);
  (void)plugin;
  if (self == NULL) return fail(err, WEFT_E_NOMEM, "no memory for an instance");
  for (i = 0; i < n; ++i)
    if (strcmp(params[i].name, "size_max") == 0) self->size_max = params[i].i;
  pthread_mutex_init(&self->lock, NULL);
  *out = self; /* ownership passes to the host, who calls destroy() */
  return WEFT_OK;
}

static weft_status null_start(weft_instance* self,
                              weft_err* err) { /* [init|slow] open files, start threads here */
  (void)self, (void)err;
  return WEFT_OK;
}
static weft_status null_drain(
    weft_instance* self, uint64_t deadline_ns) { /* [slow] nothing in flight when all is reaped */
  uint32_t n;
  (void)deadline_ns;
  pthread_mutex_lock(&self->lock);
  n = self->n_done;
  pthread_mutex_unlock(&self->lock);
  return n == 0 ? WEFT_OK : WEFT_AGAIN;
}
static void null_stop(weft_instance* self) { (void)self; } /* [init|slow] join threads here */
static void null_destroy(weft_instance* self) {            /* [init|slow] */
  if (self == NULL) return;
  pthread_mutex_destroy(&self->lock);
  free(self);
}

static const weft_life kLife = {sizeof kLife, 0,         null_create, null_start,
                                null_drain,   null_stop, null_destroy};

/* ---- the storage interface ---- */

static int is_ours(weft_str uri) { return uri.len >= 5 && memcmp(uri.data, "null:", 5) == 0; }

static int32_t null_probe(weft_plugin* plugin, weft_str uri) { /* [any] */
  (void)plugin;
  return is_ours(uri) ? 100 : 0;
}

static weft_status null_open_object(weft_instance* self, weft_str uri, weft_object** out,
                                    weft_object_info* info, weft_err* err) { /* [slow] */
  uint64_t size = 0, i;
  weft_object* object;
  if (!is_ours(uri) || uri.len == 5)
    return fail(err, WEFT_E_CONFIG, "expected a URI such as null:4096");
  for (i = 5; i < uri.len; ++i) { /* strings are not NUL-terminated: strtoull would read too far */
    const char c = uri.data[i];
    if (c < '0' || c > '9' || size > (uint64_t)self->size_max) {
      return fail(err, WEFT_E_CONFIG,
                  "expected null:<bytes> with at most size_max bytes; change the URI or size_max");
    }
    size = size * 10 + (uint64_t)(c - '0');
  }
  if (size > (uint64_t)self->size_max)
    return fail(err, WEFT_E_CONFIG, "more bytes than size_max; raise size_max");
  object = malloc(sizeof *object);
  if (object == NULL) return fail(err, WEFT_E_NOMEM, "no memory for an object");
  object->size = size;
  info->flags = 0;
  info->size = size;
  info->align = 1;
  snprintf(info->etag, sizeof info->etag, "null-%llu", (unsigned long long)size);
  *out = object;
  return WEFT_OK;
}

static void null_close_object(weft_instance* self, weft_object* object) { /* [slow] */
  (void)self;
  free(object);
}

/* [any] A real plugin hands the reads to the kernel or to threads and returns; zeros are there at
 * once. */
static uint32_t null_submit(weft_instance* self, const weft_io* ios, uint32_t n) {
  uint32_t i;
  pthread_mutex_lock(&self->lock);
  for (i = 0; i < n && self->n_done < QUEUE; ++i) {
    const weft_io* io = &ios[i];
    weft_done* done = &self->done[self->n_done++];
    memset(done, 0, sizeof *done);
    done->id = io->id;
    if (io->mem != WEFT_MEM_HOST && io->mem != WEFT_MEM_PINNED) {
      done->status = WEFT_E_UNSUPPORTED;
    } else if (io->offset > io->object->size || io->len > io->object->size - io->offset) {
      done->status = WEFT_E_CORRUPT; /* the object is shorter than the reader believes */
    } else {
      memset(io->dst, 0, io->len);
      done->bytes = io->len;
      done->status = WEFT_OK;
    }
  }
  pthread_mutex_unlock(&self->lock);
  return i;
}

static uint32_t null_reap(weft_instance* self, weft_done* out, uint32_t max,
                          uint64_t wait_ns) { /* [any] */
  uint32_t n;
  (void)wait_ns; /* everything is finished already */
  pthread_mutex_lock(&self->lock);
  n = self->n_done < max ? self->n_done : max;
  memcpy(out, self->done, n * sizeof *out);
  memmove(self->done, self->done + n, (self->n_done - n) * sizeof *self->done);
  self->n_done -= n;
  pthread_mutex_unlock(&self->lock);
  return n;
}

/* No capabilities: cancel and list may stay NULL. */
static const weft_storage_v1 kStorage = {{sizeof kStorage, 1, 0},
                                         null_probe,
                                         null_open_object,
                                         null_close_object,
                                         null_submit,
                                         null_reap,
                                         NULL,
                                         NULL};

/* ---- the plugin ---- */

static const weft_interface kInterfaces[] = {
    {WEFT_STORAGE_ID, &kStorage.head, &kLife, kKeys},
    {NULL, NULL, NULL, NULL},
};

static weft_status null_open(const weft_host* host, weft_plugin** out, weft_err* err) { /* [init] */
  weft_plugin* plugin = calloc(1, sizeof *plugin);
  if (plugin == NULL) return fail(err, WEFT_E_NOMEM, "no memory for the plugin");
  plugin->host = host; /* stays valid until close */
  host->log(host, WEFT_LOG_DEBUG, NAME " " VERSION " is open");
  *out = plugin;
  return WEFT_OK;
}
static void null_close(weft_plugin* plugin) { free(plugin); } /* [init] */

static const weft_desc kDesc = {sizeof kDesc, WEFT_MAGIC, WEFT_ABI_MAJOR, WEFT_ABI_MINOR,
                                NAME,         VERSION,    "weft project", "Apache-2.0",
                                kInterfaces,  null_open,  null_close};

/* The note that the host reads before it runs anything, and the one exported function. */
WEFT_PLUGIN(example_null, VERSION, &kDesc);
