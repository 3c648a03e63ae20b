/* weft/speculator.h: "weft.speculator/1", guessing the next tokens so that one step can verify several.
 *
 * Words. The anchor is the last emitted token; the model has not run it yet. `committed` tokens are in the caches. A draft
 * of g tokens follows the anchor; a verify step runs 1 + g rows. Of the drafts, a are accepted, and c = a + 1 rows (anchor
 * and accepted drafts) are committed. Tokens, cache rows, recurrent states and the draft's own cache all follow from the
 * same c: the host reports it once, through commit().
 *
 * Acceptance is the host's alone, so output never depends on a speculator except through q: the host's rejection test is
 * exact only if q is the distribution that the token was drawn from. Therefore:
 *   - a sampled token comes with q over the whole vocabulary, given the drafts before it, temperature and truncation
 *     applied; the host checks that it is finite, not negative, sums to 1 within 1e-3 and gives the token more than 0;
 *   - a deterministic token is announced as WEFT_DRAFT_ONE_HOT and has no q;
 *   - randomness comes from `uniform` only: the host's draft stream, independent of its acceptance stream;
 *   - confidence j may depend on earlier drafts, never on draft j itself or later ones. The host shortens a draft by
 *     confidences and past statistics alone; a plugin that drops a sampled token because it looks unlikely biases the output.
 * A draft that breaks a rule is dropped, and the step goes on without it. */
#ifndef WEFT_SPECULATOR_H
#define WEFT_SPECULATOR_H

#include "kernels.h"
#include "plugin.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_SPECULATOR_ID "weft.speculator/1"
enum { /* weft_head.caps */
  WEFT_SPECULATOR_CAP_TAPS = 1u << 0,       /* observe() wants hidden rows of the target */
  WEFT_SPECULATOR_CAP_SAMPLED = 1u << 1,    /* may return WEFT_DRAFT_DENSE */
  WEFT_SPECULATOR_CAP_CONFIDENCE = 1u << 2, /* fills confidence */
  WEFT_SPECULATOR_CAP_TREE = 1u << 3,       /* fills parent with branches */
  WEFT_SPECULATOR_CAP_STATE = 1u << 4       /* save and load work */
};

#define WEFT_TAPS_MAX 16
enum {                       /* weft_tap.stream */
  WEFT_TAP_PREFIX = 1,       /* residual prefix after the layer, its feed-forward output included */
  WEFT_TAP_ATTNRES = 2,      /* the mixture that the next layer's attention reads, before its norm; last layer: the output's */
  WEFT_TAP_FINAL = 3         /* after the output mixture, before the final norm; layer is ignored */
};
typedef struct weft_tap { /* frozen */
  uint32_t layer;         /* counted from 0 */
  uint32_t stream;        /* WEFT_TAP_* */
} weft_tap;

/* What the host offers: the target's facts and the matrices that drafts share with it. */
typedef struct weft_spec_target {
  uint32_t struct_size;
  uint32_t vocab;
  uint32_t hidden;
  uint32_t layers;
  uint32_t max_seqs;
  uint32_t max_context;
  uint32_t drafts_max; /* the host never asks for more */
  uint32_t act_dtype;  /* of tap rows */
  int32_t mem;         /* memory kind of tap rows and of the matrices */
  int32_t device;
  const weft_weight *embed;   /* keep UNTIL destroy; NULL when the target does not share it */
  const weft_weight *lm_head; /* keep UNTIL destroy; NULL when the target does not share it */
} weft_spec_target;

/* What the speculator needs, known after bind. */
typedef struct weft_spec_info { /* fill */
  uint32_t struct_size;
  uint32_t drafts_max;          /* most tokens per proposal */
  uint32_t n_taps;
  uint32_t tail;                /* how many last tokens propose() wants to see; UINT32_MAX = all */
  uint64_t weight_bytes;
  uint64_t token_bytes;         /* own cache per token */
  uint64_t seq_bytes;           /* own cache per sequence */
  weft_tap taps[WEFT_TAPS_MAX]; /* ascending layer */
} weft_spec_info;

/* Target rows that have just run, for drafts with a context of their own: rows position .. position + n - 1 of one
 * sequence. Rows of drafts that are rejected later are reported too; commit() says how many stand. */
typedef struct weft_spec_rows { /* frozen */
  uint64_t seq;
  uint32_t position;            /* of the first row */
  uint32_t n;
  const int32_t *token;         /* [n]; borrow */
  const void *const *taps;      /* [n_taps] base of tap rows [n, hidden]; NULL without CAP_TAPS; borrow until the work on
                                   the stream has run */
  uint64_t tap_stride;          /* elements */
} weft_spec_rows;

/* One sequence that wants a draft. */
typedef struct weft_draft_req { /* frozen */
  uint64_t seq;
  uint32_t committed;           /* tokens in the caches */
  int32_t anchor;               /* the token at position `committed` */
  const int32_t *tail;          /* [n_tail] the last tokens, the anchor last; borrow */
  uint32_t n_tail;
  uint32_t max;                 /* most tokens wanted, at least 1 */
  float temperature;            /* 0 = greedy */
  float top_p;                  /* 1 = off; truncating q likewise is allowed */
  uint32_t top_k;               /* 0 = off */
  uint32_t reserved;
  const float *uniform;         /* [max] draws in (0, 1) for positions committed + 1 ..; borrow */
} weft_draft_req;

enum {                   /* weft_draft.kind */
  WEFT_DRAFT_ONE_HOT = 1, /* deterministic tokens: q is 1 at the token */
  WEFT_DRAFT_DENSE = 2    /* q holds the distributions */
};
typedef struct weft_draft { /* frozen */
  int32_t *token;           /* [cap] fill */
  float *q;                 /* [cap, vocab] fill; NULL when the host takes only WEFT_DRAFT_ONE_HOT */
  float *confidence;        /* [cap] chance that the token is accepted if all before it are; fill, or leave as 1 */
  int16_t *parent;          /* [cap] index of the token before, -1 = the anchor; a chain (j - 1) unless CAP_TREE; fill */
  uint32_t cap;             /* = weft_draft_req.max */
  uint32_t n;               /* fill; 0 = no proposal */
  uint32_t kind;            /* fill; WEFT_DRAFT_* */
  uint32_t reserved;
} weft_draft;

/* The result of one verify step. */
typedef struct weft_spec_commit { /* frozen */
  uint64_t seq;
  uint32_t committed; /* before the step */
  uint32_t c;         /* rows that stand: the new committed length is committed + c */
  uint32_t proposed;  /* tokens that propose() returned */
  uint32_t verified;  /* of these, tokens that were verified; c - 1 of them were accepted */
  int32_t next;       /* the new anchor */
  uint32_t reserved;
} weft_spec_commit;

enum {                   /* weft_spec_event.kind */
  WEFT_SPEC_BEGIN = 1,   /* new sequence; the first `committed` tokens came from the prefix cache: no rows are reported */
  WEFT_SPEC_PREEMPT = 2, /* the target's caches are gone; own ones may be dropped */
  WEFT_SPEC_RESUME = 3,  /* back, with `committed` tokens in the target's caches */
  WEFT_SPEC_FINISH = 4,  /* over: forget it */
  WEFT_SPEC_ABORT = 5    /* over without result: forget it */
};
typedef struct weft_spec_event { /* frozen */
  uint64_t seq;
  uint32_t kind;      /* WEFT_SPEC_* */
  uint32_t committed; /* tokens in the target's caches */
  const int32_t *token; /* [n_token] tokens from position 0; NULL unless BEGIN or RESUME; borrow */
  uint32_t n_token;
  uint32_t reserved;
} weft_spec_event;

typedef struct weft_speculator_v1 {
  weft_head head;
  /* [init|slow] once, after create and before start. target: keep UNTIL destroy. out, err: fill */
  weft_status (*bind)(weft_instance *self, const weft_spec_target *target, weft_spec_info *out, weft_err *err);
  /* [engine] Life of sequences, in order. Never waits. events: borrow */
  void (*event)(weft_instance *self, const weft_spec_event *events, uint32_t n);
  /* [engine] Rows of every target step, prefill pieces too; enqueues on stream and does not wait. rows: borrow. stream:
   * borrow, NULL on a CPU. err: fill */
  weft_status (*observe)(weft_instance *self, const weft_spec_rows *rows, uint32_t n, void *stream, weft_err *err);
  /* [engine] Draft i for request i; fewer tokens than asked for are fine. On a CPU the drafts are complete on return, on a
   * device when the stream has run. reqs: borrow. out: fill, n entries. stream: borrow. err: fill */
  weft_status (*propose)(weft_instance *self, const weft_draft_req *reqs, weft_draft *out, uint32_t n, void *stream,
                         weft_err *err);
  /* [engine] Rolls own caches back or forward to what stands, and learns. commits: borrow */
  void (*commit)(weft_instance *self, const weft_spec_commit *commits, uint32_t n);
  /* [engine] State of a sequence for another replica. WEFT_PARTIAL: out is too small, need holds the bytes. out: fill.
   * need: fill. Only with CAP_STATE */
  weft_status (*save)(weft_instance *self, uint64_t seq, weft_bytes out, uint64_t *need);
  /* [engine] Takes such a state over after BEGIN. in: borrow. err: fill. Only with CAP_STATE */
  weft_status (*load)(weft_instance *self, uint64_t seq, weft_bytes in, weft_err *err);
} weft_speculator_v1;

#ifdef __cplusplus
}
#endif
#endif
