/* weft/scheduler.h: "weft.scheduler/1", the policy that composes steps: who runs, how many rows each, who waits, who gives
 * its cache back.
 *
 * A plan is a pure decision over plain arrays: the same view gives the same plan, so that a log can be replayed and a
 * policy fuzzed. Correctness never depends on it. The host checks every plan:
 *   - every index is in range and named at most once over run and preempt, and over admit and drop;
 *   - a share has 1 row or more, at most seq.rows_max, plus its drafts; a sequence in state LOADING has none, and the
 *     admission of one with restore_ns > 0 has 0 rows;
 *   - drafts follow the last known token: context + rows - drafts = known; at most seq.drafts and drafts_max of them;
 *   - the rows of all shares fit token_budget, the number of those that have rows fits seq_budget;
 *   - a plan that admits leaves at most run_budget running (run, less preempted, plus admitted);
 *   - only a sequence whose deadline has passed (deadline_ns < now_ns) or that is sheddable is dropped, and no PINNED one is
 *     preempted;
 *   - the cache arithmetic below fits what is free after the preemptions.
 * On a violation the host logs it, plans the step itself (first come, first served), and disables the plugin after three.
 *
 * Cache arithmetic, for every group g of the view and every share that ends at context c (tokens in the caches after the
 * step, drafts included):
 *   rows  (WEFT_CACHE_ROWS):  needs ceil(c / unit_tokens) units, of which seq.held[g] are there
 *   state (WEFT_CACHE_STATE): needs 1 unit, plus `spare` more when drafts > 0 (snapshots for roll-back)
 * An admission without rows ends at its context. A preempted sequence gives back seq.held[g] minus seq.shared[g] units at
 * once and is waiting in the next view; since those may be the very units that a waiting one counts on, held[g] of
 * admissions counts as 0 in a plan that preempts.
 * A waiting sequence that the prefix cache can serve has in held[g] only those units that running sequences hold already;
 * the other units of its prefix are counted in free and are taken from there, like new ones.
 *
 * Useful boundaries: the state of a sequence can be kept for later requests only between steps. seq.boundary names the next
 * length at which the host would keep it; a piece that runs past it gives that up, a piece that ends there does not. */
#ifndef WEFT_SCHEDULER_H
#define WEFT_SCHEDULER_H

#include "model.h"
#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_SCHEDULER_ID "weft.scheduler/1"
enum { /* weft_head.caps */
  WEFT_SCHEDULER_CAP_DRAFTS = 1u << 0,    /* plans drafts; without it the host verifies none */
  WEFT_SCHEDULER_CAP_DEADLINES = 1u << 1, /* looks at deadline_ns */
  WEFT_SCHEDULER_CAP_TENANTS = 1u << 2    /* fair between tenants */
};

enum { /* weft_seq.flags */
  WEFT_SEQ_PINNED = 1u << 0,    /* must not be preempted */
  WEFT_SEQ_PREEMPTED = 1u << 1, /* waiting because of a preemption: its output has begun */
  WEFT_SEQ_SHEDDABLE = 1u << 2, /* may be rejected first under load */
  WEFT_SEQ_SWAPPED = 1u << 3,   /* waiting; its state and rows lie in host memory: nothing has to be computed again */
  WEFT_SEQ_LOADING = 1u << 4    /* running, but its prefix is still being copied in: no share in this step */
};

enum { /* weft_preempt.mode */
  WEFT_PREEMPT_RECOMPUTE = 0, /* the caches are given up, the known tokens run again later */
  WEFT_PREEMPT_SWAP = 1       /* state and rows are copied to host memory; needs swap_bytes there, else recompute */
};

/* One sequence as the policy sees it. */
typedef struct weft_seq { /* frozen */
  uint64_t id;
  uint64_t arrive_ns;   /* host clock */
  uint64_t deadline_ns; /* wished time of the first token; 0 = none */
  uint64_t swap_bytes;  /* host memory that its state and rows would take, 0 = cannot be swapped */
  uint64_t restore_ns;  /* waiting: measured estimate of copying its prefix in, 0 = the prefix is at hand */
  uint32_t tenant;
  uint32_t weight;      /* of the tenant: its share under load, at least 1 */
  int32_t priority;     /* higher first */
  uint32_t prompt;      /* tokens of the prompt */
  uint32_t known;       /* tokens whose ids are known: prompt and output so far */
  uint32_t context;     /* tokens in the caches; for a waiting sequence what the prefix cache can give */
  uint32_t output;      /* tokens generated */
  uint32_t output_max;  /* upper bound of the whole output */
  uint32_t rows_max;    /* rows it can run in this step, drafts not counted; a running one that waits for a copy has 0 */
  uint32_t boundary;    /* next useful length, above context; 0 = none */
  uint32_t promised;    /* waiting: tokens of its prefix that a running sequence is about to leave in the cache, 0 = none */
  uint32_t fresh;       /* tokens generated since it was last admitted */
  uint32_t drafts;      /* proposed tokens that could be verified in this step */
  uint32_t flags;       /* WEFT_SEQ_* */
  uint32_t preemptions; /* so far */
  uint32_t reserved;
  uint64_t queued_ns;   /* when it entered the present queue */
  uint32_t held[WEFT_CACHE_GROUPS_MAX];   /* cache units in use, by group */
  uint32_t shared[WEFT_CACHE_GROUPS_MAX]; /* of these, units that others use too */
} weft_seq;

/* One cache group. */
typedef struct weft_sched_group { /* frozen */
  uint32_t kind;                  /* WEFT_CACHE_* */
  uint32_t unit_tokens;           /* tokens per unit; 0 for states */
  uint32_t free;                  /* units at hand; cached prefixes that can be dropped are counted as free */
  uint32_t total;
  uint32_t spare;                 /* extra units of a sequence that verifies drafts */
  uint32_t watermark;             /* units that admissions should leave free, so that running sequences can grow */
} weft_sched_group;

/* One point of the measured step time: a step of `rows` rows took `ns`. */
typedef struct weft_sched_cost { /* frozen */
  uint32_t rows;
  uint32_t samples;              /* measurements behind it */
  uint64_t ns;
} weft_sched_cost;

/* What a tenant has received so far. Two tenants are served fairly when served / weight of both grows alike: the policy
 * turns to the smallest first. The host lists who has sequences in the view or had some lately, and lifts a newcomer to a
 * little below the smallest served / weight of those who are active: a tenant that asks rarely is served at once, but nobody
 * saves up a claim while idle. */
typedef struct weft_sched_tenant { /* frozen */
  uint32_t id;
  uint32_t weight;               /* at least 1 */
  uint64_t served;               /* tokens: prompt rows computed (not those from a cache) and output, each once */
} weft_sched_tenant;

/* Everything a plan may depend on. */
typedef struct weft_sched_view {
  uint32_t struct_size;
  uint32_t n_wait;
  uint32_t n_run;
  uint32_t n_groups;
  uint32_t n_costs;
  uint32_t token_budget; /* rows of the step */
  uint32_t seq_budget;   /* sequences of the step */
  uint32_t drafts_max;   /* of one sequence */
  uint32_t chunk_grain;  /* prefill pieces that end at multiples of it leave reusable state; at least 1 */
  uint32_t n_tenants;
  uint32_t run_budget;   /* sequences that may run at once */
  uint32_t reserved2;
  uint64_t seed;         /* for policies that draw lots: part of the view, so that a replay draws the same */
  uint64_t swap_free;    /* bytes of host memory for swapped sequences */
  uint64_t step;         /* number of this step */
  uint64_t now_ns;
  uint64_t step_target_ns; /* wished upper bound of the step's time, 0 = none */
  const weft_seq *wait;    /* [n_wait] preempted ones first, then in order of arrival; borrow */
  const weft_seq *run;     /* [n_run] in order of admission; borrow */
  const weft_sched_group *groups; /* [n_groups] as in weft_mem_plan; borrow */
  const weft_sched_cost *costs;   /* [n_costs] by rising rows; borrow */
  const weft_sched_tenant *tenants; /* [n_tenants] by rising id; may be empty; borrow */
} weft_sched_view;

/* The part of one sequence in the step. */
typedef struct weft_share { /* frozen */
  uint32_t index;           /* into view.run or view.wait */
  uint32_t rows;            /* all rows, drafts included */
  uint32_t drafts;          /* of these, drafts to verify; 0 or at most seq.drafts */
  uint32_t propose;         /* how many tokens the speculator is asked for afterwards; at most view.drafts_max */
} weft_share;

typedef struct weft_preempt { /* frozen */
  uint32_t index;             /* into view.run */
  uint32_t mode;              /* WEFT_PREEMPT_* */
} weft_preempt;

/* The host sets struct_size, cap and the arrays; the policy fills entries and counts. */
typedef struct weft_sched_plan { /* fill */
  uint32_t struct_size;
  uint32_t cap;      /* entries of each array */
  uint32_t n_run;
  uint32_t n_admit;
  uint32_t n_preempt;
  uint32_t n_drop;
  weft_share *run;       /* fill; of view.run */
  weft_share *admit;     /* fill; of view.wait, in the order in which they become running; one that must be restored
                            (restore_ns > 0) starts its copy with this step and gets its rows in later ones */
  weft_preempt *preempt; /* fill; none of them in run */
  uint32_t *drop;        /* fill; indices into view.wait that are refused, none of them in admit */
} weft_sched_plan;

typedef struct weft_scheduler_v1 {
  weft_head head;
  /* [engine] A new sequence wants to queue. WEFT_OK = queue it, WEFT_AGAIN = overloaded, retry_after_ns says when to ask
   * again, negative = never. view, seq: borrow. retry_after_ns, err: fill */
  weft_status (*admit)(weft_instance *self, const weft_sched_view *view, const weft_seq *seq, uint64_t *retry_after_ns,
                       weft_err *err);
  /* [engine] Within 200 microseconds. An empty plan is valid: the step is skipped. view: borrow. out: fill */
  weft_status (*plan)(weft_instance *self, const weft_sched_view *view, weft_sched_plan *out);
  /* [engine] The sequence left the view for good: WEFT_OK, WEFT_E_CANCELLED, or what failed. */
  void (*finished)(weft_instance *self, uint64_t id, weft_status why, uint64_t step);
} weft_scheduler_v1;

#ifdef __cplusplus
}
#endif
#endif
