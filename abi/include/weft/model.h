/* weft/model.h: "weft.model/1", a model family: config.json -> wanted tensors, cache groups, forward step.
 *
 * Order of calls on one instance: create (params: "config" = text of config.json, plus operator settings) -> declare ->
 * plan -> want/place/placed for every tensor -> ready -> step ... -> stop -> destroy. The host owns the caches and hands
 * the model plain arenas; the model owns weights and workspace (allocated through the host). */
#ifndef WEFT_MODEL_H
#define WEFT_MODEL_H

#include "host.h"
#include "plugin.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_MODEL_ID "weft.model/1"
enum { /* weft_head.caps */
  WEFT_MODEL_CAP_MEDIA = 1u << 0 /* encode_media works for checkpoints with a vision tower */
};

/* The checkpoint's tensors, as the host has validated them. */
typedef struct weft_catalog_entry { /* frozen */
  weft_str name;                    /* keep UNTIL ready */
  uint32_t dtype;
  uint32_t rank;
  int64_t shape[WEFT_RANK_MAX];
  uint64_t bytes;
} weft_catalog_entry;
typedef struct weft_catalog {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t n;
  void *impl; /* the host's own */
  /* [slow] entry by name or NULL. Result: keep UNTIL ready. catalog, name: borrow */
  const weft_catalog_entry *(*find)(const struct weft_catalog *catalog, weft_str name);
  /* [slow] i-th entry in name order. Result: keep UNTIL ready. catalog: borrow */
  const weft_catalog_entry *(*at)(const struct weft_catalog *catalog, uint64_t i);
} weft_catalog;

typedef struct weft_model_info {
  uint32_t struct_size;
  uint32_t vocab;
  uint32_t hidden;
  uint32_t layers;
  uint32_t max_context; /* tokens */
  uint32_t accepts_media; /* 1: encode_media works with this checkpoint */
  uint32_t media_patch_values; /* floats per patch (3*patch*patch), 0 without media */
  uint32_t media_merge;        /* patches per row and side */
  int32_t media_token;         /* placeholder token id, -1 without media */
  int32_t eos[4];              /* stop ids named by the config, -1 = unused */
  uint32_t reserved;
  uint64_t parameters;         /* stored parameters, packed ones counted as numbers */
} weft_model_info;

typedef struct weft_limits {
  uint32_t struct_size;
  uint32_t max_rows;       /* rows of one step */
  uint32_t max_seqs;       /* sequences of one step */
  uint32_t max_context;    /* tokens of one sequence */
  uint32_t max_logit_rows; /* rows of one step whose logits are asked for */
  uint32_t page_tokens;    /* wished tokens per page of row groups; the model may round */
  uint32_t cache_dtype;    /* wished dtype of row groups, 0 = the model's choice */
  uint32_t reserved;
} weft_limits;

enum { WEFT_CACHE_ROWS = 1 /* paged, one row per token */, WEFT_CACHE_STATE = 2 /* one slot per sequence */ };
typedef struct weft_cache_group { /* frozen */
  const char *name;               /* "mla", "kda"; keep UNTIL destroy */
  uint32_t kind;                  /* WEFT_CACHE_* */
  uint32_t unit_tokens;           /* tokens per page; 0 for states */
  uint64_t unit_bytes;            /* one page or one slot, all layers */
} weft_cache_group;

#define WEFT_CACHE_GROUPS_MAX 8
typedef struct weft_mem_plan {
  uint32_t struct_size;
  uint32_t n_groups;
  uint64_t weight_bytes;
  uint64_t workspace_bytes;
  weft_cache_group groups[WEFT_CACHE_GROUPS_MAX];
} weft_mem_plan;

typedef struct weft_want {
  uint32_t struct_size;
  uint32_t reserved;
  weft_str name;  /* catalog name; keep UNTIL ready */
  uint64_t bytes; /* of the stored tensor */
} weft_want;

/* One arena per cache group, in the order of weft_mem_plan.groups: unit u at base + u * stride bytes. Zeroed at start. */
typedef struct weft_arena { /* frozen */
  void *base;               /* keep UNTIL stop */
  uint64_t stride;
  uint64_t n_units;
} weft_arena;

/* Where a sequence's cache units are. Row groups use table; state groups use read_slot and write_slot. */
typedef struct weft_cache_map { /* frozen */
  const int32_t *table;         /* [n_seqs, table_stride] page numbers; borrow */
  uint64_t table_stride;
  const int32_t *read_slot;     /* [n_seqs]; negative = fresh all-zero state; borrow */
  const int32_t *write_slot;    /* [n_seqs]; borrow */
} weft_cache_map;

enum { /* weft_batch.flags */
  WEFT_BATCH_RECURRENT = 1u << 0 /* decode forms of attention also for long runs of rows: any split gives the same bits */
};

/* One step. Sequence i contributes rows seq_start[i] .. seq_start[i+1]-1, any mix of prefill pieces and decodes. */
typedef struct weft_batch {
  uint32_t struct_size;
  uint32_t flags; /* WEFT_BATCH_* */
  uint32_t n_seqs;
  uint32_t n_rows;
  uint32_t n_logit_rows;
  uint32_t n_media_rows;
  const int32_t *token;      /* [n_rows]; borrow */
  const uint32_t *seq_start; /* [n_seqs + 1]; borrow */
  const uint32_t *context;   /* [n_seqs] tokens already in the caches; borrow */
  const weft_cache_map *maps;/* one per cache group; borrow */
  const uint32_t *logit_row; /* [n_logit_rows] ascending row numbers; borrow */
  float *logits;             /* [n_logit_rows, vocab] fill; host memory */
  const uint32_t *media_row; /* [n_media_rows] rows whose embedding is replaced; borrow */
  const float *media;        /* [n_media_rows, hidden] rows from encode_media; borrow; host memory */
  void *stream;              /* borrow; NULL on a CPU */
} weft_batch;

/* One image or clip for encode_media. */
typedef struct weft_media {
  uint32_t struct_size;
  uint32_t grid_t, grid_h, grid_w; /* in patches; h and w multiples of media_merge */
  const float *patches;            /* [t*h*w, media_patch_values], channel first, normalised; borrow; host memory */
} weft_media;

typedef struct weft_model_v1 {
  weft_head head;
  /* [slow] 0 = not my family, else score. config_json: borrow. err: fill (why not) */
  int32_t (*probe)(weft_plugin *plugin, weft_str config_json, weft_err *err);
  /* [slow] Checks every tensor it needs against the catalog: presence, dtype, shape. catalog: keep UNTIL ready. err: fill */
  weft_status (*declare)(weft_instance *self, const weft_catalog *catalog, weft_err *err);
  /* [slow] out: fill */
  weft_status (*info)(weft_instance *self, weft_model_info *out);
  /* [slow] after declare, before any large allocation. limits: borrow. out, err: fill */
  weft_status (*plan)(weft_instance *self, const weft_limits *limits, weft_mem_plan *out, weft_err *err);
  /* [slow] Wanted tensor i, or WEFT_END. Order = good reading order. out: fill */
  weft_status (*want)(weft_instance *self, uint64_t i, weft_want *out);
  /* [slow] Memory for the stored bytes of tensor i; the final place when no repacking is needed. Different i may be in
   * flight at once from different threads. dst: keep UNTIL placed. err: fill */
  weft_status (*place)(weft_instance *self, uint64_t i, void **dst, weft_err *err);
  /* [slow] The bytes are there: convert, pack, check contents. err: fill */
  weft_status (*placed)(weft_instance *self, uint64_t i, weft_err *err);
  /* [slow] All tensors are placed. arenas: borrow, one per group. err: fill */
  weft_status (*ready)(weft_instance *self, const weft_arena *arenas, uint32_t n, weft_err *err);
  /* [engine] Runs one step. batch: borrow. err: fill. After an error the caches of the step's sequences are undefined. */
  weft_status (*step)(weft_instance *self, const weft_batch *batch, weft_err *err);
  /* [engine] rows: fill, [h/merge * w/merge, hidden] f32 host memory. media: borrow. err: fill */
  weft_status (*encode_media)(weft_instance *self, const weft_media *media, float *rows, weft_err *err);
} weft_model_v1;

#ifdef __cplusplus
}
#endif
#endif
