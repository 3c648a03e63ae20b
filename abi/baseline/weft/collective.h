/* weft/collective.h: "weft.collective/1", moving numbers between the ranks of a replica, and blocks between replicas.
 *
 * Start: one rank calls token(), the host carries the bytes to all ranks out of band, every rank calls join() with its
 * rank. Collectives run in the order of the calls, which must be the same on all ranks; with a stream they only enqueue.
 * Point-to-point transfers are named by the caller's id and come back once through reap(), like storage reads. A broken
 * peer shows in health(); abort() unblocks everything at once and never waits, leave() then releases the memory. */
#ifndef WEFT_COLLECTIVE_H
#define WEFT_COLLECTIVE_H

#include "plugin.h"
#include "storage.h" /* weft_done */
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_COLLECTIVE_ID "weft.collective/1"
enum { /* weft_head.caps */
  WEFT_COLLECTIVE_CAP_DEVICE = 1u << 0,        /* takes device memory */
  WEFT_COLLECTIVE_CAP_IN_PLACE = 1u << 1,      /* src may equal dst */
  WEFT_COLLECTIVE_CAP_CAPTURE = 1u << 2,       /* run() may be captured into a device graph */
  WEFT_COLLECTIVE_CAP_DETERMINISTIC = 1u << 3, /* equal inputs and ranks give equal bits */
  WEFT_COLLECTIVE_CAP_P2P = 1u << 4            /* send and recv work */
};

typedef struct weft_comm weft_comm;     /* opaque, the plugin's: one rank's membership of a group */
typedef struct weft_region weft_region; /* opaque, the plugin's: registered memory */

#define WEFT_TOKEN_BYTES 128
typedef struct weft_comm_token { /* frozen */
  uint8_t bytes[WEFT_TOKEN_BYTES];
} weft_comm_token;

enum { /* weft_coll.op; n = ranks, count = elements per rank unless said otherwise */
  WEFT_COLL_ALL_REDUCE = 1,     /* dst[count] = reduction of src[count] over the ranks */
  WEFT_COLL_ALL_GATHER = 2,     /* dst[n * count] = src[count] of rank 0, 1, ... */
  WEFT_COLL_REDUCE_SCATTER = 3, /* dst[count] = this rank's part of the reduction of src[n * count] */
  WEFT_COLL_BROADCAST = 4,      /* dst[count] = src[count] of root */
  WEFT_COLL_ALL_TO_ALL_V = 5,   /* src: send_count[i] elements for rank i, dst: recv_count[i] from rank i, packed by rank */
  WEFT_COLL_BARRIER = 6         /* no data */
};
enum { WEFT_REDUCE_SUM = 1, WEFT_REDUCE_MAX = 2, WEFT_REDUCE_MIN = 3 };

typedef struct weft_coll {
  uint32_t struct_size;
  uint32_t op;     /* WEFT_COLL_* */
  uint32_t dtype;  /* WEFT_F32, WEFT_BF16, WEFT_I32, WEFT_U8, ... */
  uint32_t reduce; /* WEFT_REDUCE_*; 0 when op does not reduce. BF16 sums accumulate in fp32 */
  const void *src; /* borrow until the work on the stream has run */
  void *dst;       /* fill; may equal src with CAP_IN_PLACE */
  uint64_t count;
  const uint64_t *send_count; /* [n]; WEFT_COLL_ALL_TO_ALL_V, else NULL; borrow */
  const uint64_t *recv_count; /* [n]; WEFT_COLL_ALL_TO_ALL_V, else NULL; borrow */
  uint32_t root;
  uint32_t reserved;
} weft_coll;

typedef struct weft_comm_config {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t n_ranks;
  int32_t mem;    /* WEFT_MEM_* of the data */
  int32_t device; /* of this rank */
  uint32_t reserved;
  uint64_t join_timeout_ns;
  uint64_t op_timeout_ns; /* after which health() reports a silent peer */
} weft_comm_config;

typedef struct weft_xfer { /* frozen */
  uint64_t id;             /* the caller's; unique among the ones in flight of this comm */
  uint32_t peer;           /* rank */
  uint32_t reserved;
  uint64_t tag;            /* a send meets the receive of equal tag; equal tags in order */
  weft_region *region;     /* keep UNTIL reaped */
  uint64_t offset;         /* bytes into the region */
  uint64_t len;            /* bytes; equal on both sides */
} weft_xfer;

typedef struct weft_collective_v1 {
  weft_head head;
  /* [slow] Contact data for a new group. out, err: fill */
  weft_status (*token)(weft_instance *self, weft_comm_token *out, weft_err *err);
  /* [slow] Returns when all ranks are there or the time is over. token, config: borrow. out: give, leave(). err: fill */
  weft_status (*join)(weft_instance *self, const weft_comm_token *token, const weft_comm_config *config, weft_comm **out,
                      weft_err *err);
  /* [slow] Makes memory known for send and recv. comm: borrow. base: keep UNTIL unregister. out: give, unregister().
   * err: fill */
  weft_status (*register_region)(weft_comm *comm, void *base, uint64_t len, int32_t mem, int32_t device, weft_region **out,
                                 weft_err *err);
  /* [slow] Nothing in flight on it. comm: borrow. region: give back */
  void (*unregister)(weft_comm *comm, weft_region *region);
  /* [engine] The collectives in order, as one group. With a stream: enqueues and returns; without: done on return. WEFT_E_PEER
   * after an abort. comm, ops, stream: borrow. err: fill */
  weft_status (*run)(weft_comm *comm, const weft_coll *ops, uint32_t n, void *stream, weft_err *err);
  /* [any] never waits. Returns how many of the n were accepted, from the front; 0 = full. comm, xfers: borrow */
  uint32_t (*send)(weft_comm *comm, const weft_xfer *xfers, uint32_t n);
  /* [any] as send. comm, xfers: borrow */
  uint32_t (*recv)(weft_comm *comm, const weft_xfer *xfers, uint32_t n);
  /* [any] Every accepted id comes back exactly once, after an abort too. Waits up to wait_ns for the first. comm: borrow.
   * out: fill, max entries */
  uint32_t (*reap)(weft_comm *comm, weft_done *out, uint32_t max, uint64_t wait_ns);
  /* [any] WEFT_OK, or what is wrong with the group: WEFT_E_PEER, WEFT_E_TIMEOUT, WEFT_E_DEVICE. comm: borrow. err: fill */
  weft_status (*health)(weft_comm *comm, weft_err *err);
  /* [any] Unblocks every call on the comm, on this rank. Never waits; twice is fine. comm: borrow */
  void (*abort)(weft_comm *comm);
  /* [slow] After the last call on it; regions are unregistered. comm: give back, NULL ok */
  void (*leave)(weft_comm *comm);
} weft_collective_v1;

#ifdef __cplusplus
}
#endif
#endif
