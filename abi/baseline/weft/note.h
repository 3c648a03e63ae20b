/* weft/note.h: the ELF note that lets the host judge a plugin file before any of its code runs, and the one-line macro
 * that defines note and entry symbol together.
 *
 *   static const weft_desc kDesc = {sizeof(weft_desc), WEFT_MAGIC, WEFT_ABI_MAJOR, WEFT_ABI_MINOR, "my_plugin", "1.0.0", ...};
 *   WEFT_PLUGIN(my_plugin, "1.0.0", &kDesc);
 *
 * Name and version must equal the descriptor's, and the file must be called my_plugin.so. The note lies in a loaded
 * segment, so strip keeps it and `readelf -n` shows it. */
#ifndef WEFT_NOTE_H
#define WEFT_NOTE_H

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_NOTE_OWNER "weft"
#define WEFT_NOTE_TYPE 0x57454654u /* "WEFT" read as a number */
#define WEFT_NOTE_VERSION 1u
#define WEFT_NAME_MAX 48    /* bytes of a plugin name with its NUL */
#define WEFT_VERSION_MAX 32 /* bytes of a plugin version with its NUL */

/* The payload of the note. */
typedef struct weft_note { /* frozen */
  uint32_t note_version;   /* WEFT_NOTE_VERSION */
  uint32_t abi_major;
  uint32_t abi_minor;
  uint32_t reserved;
  char name[WEFT_NAME_MAX];       /* NUL-terminated, [a-z][a-z0-9_]* */
  char version[WEFT_VERSION_MAX]; /* NUL-terminated, starts with dotted numbers: "1.4.2" */
} weft_note;

/* The whole note as it lies in the file. */
typedef struct weft_note_record { /* frozen */
  uint32_t owner_size;            /* 5: "weft" and its NUL */
  uint32_t payload_size;          /* sizeof(weft_note) */
  uint32_t type;                  /* WEFT_NOTE_TYPE */
  char owner[8];
  weft_note payload;
} weft_note_record;

#ifdef __cplusplus
}
#define WEFT_EXTERN_C extern "C"
#else
#define WEFT_EXTERN_C extern
#endif

/* Only the note. plugin_name and plugin_version are string literals. */
#define WEFT_NOTE(plugin_name, plugin_version)                                                                     \
  static const weft_note_record weft_note_record_                                                                  \
      __attribute__((section(".note.weft"), used, aligned(4))) = {                                                 \
          5u, (uint32_t)sizeof(weft_note), WEFT_NOTE_TYPE, WEFT_NOTE_OWNER,                                        \
          {WEFT_NOTE_VERSION, WEFT_ABI_MAJOR, WEFT_ABI_MINOR, 0u, plugin_name, plugin_version}}

/* Note and entry symbol. name: identifier; version: string literal; desc: address of a static weft_desc. */
#define WEFT_PLUGIN(name, version, desc)                                                                           \
  WEFT_NOTE(#name, version);                                                                                       \
  WEFT_EXTERN_C WEFT_EXPORT const weft_desc *weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor);       \
  WEFT_EXTERN_C WEFT_EXPORT const weft_desc *weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor) {      \
    (void)host_minor;                                                                                              \
    return host_major == WEFT_ABI_MAJOR ? (desc) : NULL;                                                           \
  }                                                                                                                \
  typedef char weft_plugin_defined_[sizeof(version) <= WEFT_VERSION_MAX ? 1 : -1]

#endif
