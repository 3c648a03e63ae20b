/* weft/kernels.h: "weft.kernels/1", the device operations that model graphs are made of.
 *
 * An operation is a pair of functions and one argument struct; nothing else crosses. `plan` looks only at shapes, dtypes
 * and flags (data pointers may be NULL) and says how much workspace the launch needs; `launch` validates, enqueues and
 * returns without waiting (on a CPU it returns when done). Launch never allocates. The same struct serves every variant, so
 * a fast variant and the naive "ref" variant can be compared on the same arguments; every op has a "ref".
 *
 * Activations are rows: base pointer + row stride in elements. `act` below stands for the activation dtype of the kernel
 * set (weft_kernels_info.act_dtype: f32 for CPUs, bf16 for GPUs); arithmetic and accumulation are fp32 or better.
 * Data pointers point into the memory kind of the kernel set and stay borrowed until the work on the stream has run.
 * Source of the formulas: Kimi K3 / Kimi Linear model definition; docs/model.md in the weft repository restates them. */
#ifndef WEFT_KERNELS_H
#define WEFT_KERNELS_H

#include "host.h"
#include "plugin.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_KERNELS_ID "weft.kernels/1"

/* ---- common pieces ------------------------------------------------------------------------------------------- */

enum { /* weft_op_head.flags */
  WEFT_OP_CHECK_FINITE = 1u << 0 /* set a bit in *err when an output is NaN or infinite */
};

typedef struct weft_op_head {
  uint32_t struct_size;   /* of the whole argument struct */
  uint32_t flags;         /* WEFT_OP_* */
  const weft_host *host;  /* borrow; thread pool of CPU kernels */
  void *stream;           /* borrow; device stream, NULL on a CPU */
  void *workspace;        /* borrow; scratch, contents undefined before and after */
  uint64_t workspace_bytes;
  uint32_t *err;          /* borrow or NULL; kernels only OR bits into it: 1 = not finite, 2 = bad index */
} weft_op_head;

/* A weight matrix [n, k] applied as y = x W^T. layout 0 is row-major as stored in a checkpoint; other layouts come from
 * weft_kernels_v1.pack_plan. MXFP4: data holds n*k/2 bytes, scale n*k/32 bytes (E8M0). Other dtypes: scale NULL. */
typedef struct weft_weight { /* frozen */
  uint32_t dtype;            /* WEFT_F32, WEFT_BF16, WEFT_MXFP4 */
  uint32_t layout;
  uint64_t n; /* outputs */
  uint64_t k; /* inputs; a multiple of 32 for MXFP4 */
  const void *data;
  const void *scale;
} weft_weight;

/* How the rows of a call fall into sequences: rows seq_start[i] .. seq_start[i+1]-1 belong to sequence i, in order. */
typedef struct weft_rows { /* frozen */
  uint32_t n_seqs;
  uint32_t n_rows;
  const uint32_t *seq_start; /* [n_seqs + 1] */
  const uint32_t *context;   /* [n_seqs] tokens of the sequence that earlier calls have processed */
} weft_rows;

enum { WEFT_ACT_SILU = 1, WEFT_ACT_SITU = 2 };

typedef struct weft_plan {
  uint32_t struct_size;
  uint32_t bits_class; /* variants with equal classes give equal bits */
  uint64_t workspace_bytes;
} weft_plan;

/* ---- row operations ------------------------------------------------------------------------------------------ */

/* "embed": y[r] = table[id[r]]. An id outside 0..table.n-1 sets err bit 2 and gives a zero row. */
typedef struct weft_op_embed {
  weft_op_head head;
  uint32_t n_rows, reserved;
  const int32_t *id; /* [n_rows] */
  weft_weight table; /* n = vocabulary, k = width */
  void *y;           /* act */
  uint64_t y_stride;
} weft_op_embed;

/* "norm": y = w * x / sqrt(mean(x^2) + eps), per row. y may be x. w is f32 [cols]. */
typedef struct weft_op_norm {
  weft_op_head head;
  uint32_t n_rows, n_cols;
  const void *x; /* act */
  uint64_t x_stride;
  const float *w;
  float eps;
  uint32_t reserved;
  void *y; /* act */
  uint64_t y_stride;
} weft_op_norm;

enum { WEFT_GEMM_ADD = 1u << 0 /* y += instead of y = */ };
/* "gemm": y[r, :] = x[r, :] W^T. */
typedef struct weft_op_gemm {
  weft_op_head head;
  uint32_t n_rows, mode; /* WEFT_GEMM_* */
  const void *x;         /* act [n_rows, w.k] */
  uint64_t x_stride;
  weft_weight w;
  void *y; /* y_dtype [n_rows, w.n] */
  uint64_t y_stride;
  uint32_t y_dtype; /* act, or WEFT_F32 (router and lm_head logits) */
  uint32_t reserved;
} weft_op_gemm;

/* "gemm_group": y_i[r, :] = x[r, :] W_i^T for several matrices that share their input, in one launch. All W_i have one
 * dtype and the k of x. Each y_i as in "gemm"; no two of them overlap. */
typedef struct weft_gemm_out { /* frozen */
  weft_weight w;
  void *y; /* y_dtype [n_rows, w.n] */
  uint64_t y_stride;
  uint32_t mode; /* WEFT_GEMM_* */
  uint32_t reserved;
} weft_gemm_out;
typedef struct weft_op_gemm_group {
  weft_op_head head;
  uint32_t n_rows, n_out; /* n_out 1..16 */
  const void *x;          /* act [n_rows, w.k] */
  uint64_t x_stride;
  const weft_gemm_out *out; /* host memory, borrow */
  uint32_t y_dtype;
  uint32_t reserved;
} weft_op_gemm_group;

/* "glu": y = act(gate, up). silu: silu(gate)*up. situ: beta*tanh(gate/beta) * sigmoid(gate) * u, where
 * u = up_beta*tanh(up/up_beta), or up when up_beta is 0. y may be gate or up. */
typedef struct weft_op_glu {
  weft_op_head head;
  uint32_t n_rows, n_cols;
  uint32_t act; /* WEFT_ACT_* */
  float beta, up_beta;
  uint32_t reserved;
  const void *gate, *up; /* act */
  uint64_t gate_stride, up_stride;
  void *y; /* act */
  uint64_t y_stride;
} weft_op_glu;

/* "gate": y = x * sigmoid(u). y may be x. */
typedef struct weft_op_gate {
  weft_op_head head;
  uint32_t n_rows, n_cols;
  const void *x, *u; /* act */
  uint64_t x_stride, u_stride;
  void *y; /* act */
  uint64_t y_stride;
} weft_op_gate;

/* "add": y = a + b. y may be a or b. */
typedef struct weft_op_add {
  weft_op_head head;
  uint32_t n_rows, n_cols;
  const void *a, *b; /* act */
  uint64_t a_stride, b_stride;
  void *y; /* act */
  uint64_t y_stride;
} weft_op_add;

/* "gather": y[i] = x[row[i]]. "scatter": y[row[i]] = x[i]. No row twice in a scatter. */
typedef struct weft_op_gather {
  weft_op_head head;
  uint32_t n_rows, n_cols; /* n_rows = entries of row */
  const uint32_t *row;
  const void *x; /* act */
  uint64_t x_stride;
  void *y; /* act */
  uint64_t y_stride;
} weft_op_gather;

/* "attnres": mixes the snapshots B_0..B_{n-1} and the prefix P by depth attention.
 *   s_j = sum_c q_c V_j,c / sqrt(mean(V_j^2) + eps), p = softmax_j(s), h = sum_j p_j V_j
 * and, when norm_w is set, y = rms(h; norm_w, norm_eps) instead of h. n_blocks may be 0 (h = P). */
typedef struct weft_op_attnres {
  weft_op_head head;
  uint32_t n_rows, n_cols, n_blocks, reserved;
  const void *blocks; /* act; block b of row r at blocks + b*block_stride + r*row_stride */
  uint64_t block_stride, row_stride;
  const void *prefix; /* act */
  uint64_t prefix_stride;
  const float *q; /* f32 [n_cols]: res_norm.weight * res_proj.weight */
  float eps, norm_eps;
  const float *norm_w; /* f32 [n_cols] or NULL */
  void *y;             /* act; not an input */
  uint64_t y_stride;
} weft_op_attnres;

/* ---- Kimi Delta Attention ------------------------------------------------------------------------------------ */

enum { WEFT_KDA_GATE_BOUNDED = 1 /* g = bound*sigmoid(exp(A)*z) */, WEFT_KDA_GATE_SOFTPLUS = 2 /* -exp(A)*softplus(z) */ };

/* "kda_step" (token by token) and "kda_chunk" (chunked matmul form): the whole recurrent attention between the input
 * projections and o_proj: short convolution + SiLU, L2 norm, decay, state update, output, gated per-head norm.
 * z = f + dt_bias; q is scaled by head_k^-0.5 after its L2 norm (eps 1e-6 inside the root). States: f32 [heads, head_k, head_v]
 * and conv history [3 (q,k,v), heads*dim, taps-1] in act dtype, oldest first, raw projections. */
typedef struct weft_op_kda {
  weft_op_head head;
  weft_rows rows;
  uint32_t heads, head_k, head_v, taps;
  uint32_t gate; /* WEFT_KDA_GATE_* */
  float bound;   /* negative; WEFT_KDA_GATE_BOUNDED */
  uint32_t chunk; /* tokens per chunk of kda_chunk, 1..128; 0 = the variant's choice */
  float norm_eps;
  const void *q, *k, *v, *f, *u; /* act [rows, heads*dim]: raw projections, decay input, output gate */
  const void *b;                 /* act [rows, heads] */
  uint64_t q_stride, k_stride, v_stride, f_stride, u_stride, b_stride;
  const float *conv_q, *conv_k, *conv_v; /* f32 [heads*dim, taps] */
  const float *a_log;                    /* f32 [heads] */
  const float *dt_bias;                  /* f32 [heads*head_k] */
  const float *o_norm;                   /* f32 [head_v] */
  void *state;      /* base of this layer's S; slot s at state + s*state_stride bytes */
  void *conv_state; /* base of this layer's history; slot s at conv_state + s*conv_stride bytes */
  uint64_t state_stride, conv_stride;
  const int32_t *read_slot;  /* [n_seqs]; negative = all-zero state */
  const int32_t *write_slot; /* [n_seqs]; negative = do not store */
  const uint32_t *snap_at;   /* [n_seqs] or NULL: after this many rows of the call also store into snap_slot; 0 = never */
  const int32_t *snap_slot;  /* [n_seqs] or NULL */
  void *y;                   /* act [rows, heads*head_v] */
  uint64_t y_stride;
} weft_op_kda;

/* ---- Multi-head latent attention ----------------------------------------------------------------------------- */

/* Paged rows [latent | tail]: token t of a sequence lies in page table[seq*table_stride + t/page_tokens], row
 * t % page_tokens. Row bytes = (latent + tail) * size of dtype. */
typedef struct weft_mla_pages { /* frozen */
  void *base;                   /* of this layer */
  uint64_t page_stride;         /* bytes */
  uint32_t page_tokens;
  uint32_t dtype; /* WEFT_F32, WEFT_BF16, WEFT_F8E4M3 */
  uint32_t latent, tail;
  const int32_t *table;
  uint64_t table_stride; /* entries per sequence */
} weft_mla_pages;

/* "mla_store": normalises the latent part of x (w f32 [latent], eps) and stores [latent | tail] at positions
 * context + 0, 1, ... of each sequence. */
typedef struct weft_op_mla_store {
  weft_op_head head;
  weft_rows rows;
  const void *x; /* act [rows, latent + tail] */
  uint64_t x_stride;
  const float *w;
  float eps;
  uint32_t reserved;
  weft_mla_pages pages;
} weft_op_mla_store;

/* "mla_decode" (absorbed: scores against the latent) and "mla_prefill" (expanded keys and values). Both read the rows that
 * mla_store has written, including the call's own, and are causal. kv_b [heads*(nope+v), latent]: per head the nope key
 * rows, then the v value rows. scale multiplies the scores. When u is set, y = o * sigmoid(u). */
typedef struct weft_op_mla {
  weft_op_head head;
  weft_rows rows;
  uint32_t heads, nope, v_dim, reserved;
  float scale;
  uint32_t reserved2;
  const void *q; /* act [rows, heads*(nope+tail)]: per head nope, then tail */
  uint64_t q_stride;
  weft_weight kv_b;
  weft_mla_pages pages;
  const void *u; /* act [rows, heads*v_dim] or NULL */
  uint64_t u_stride;
  void *y; /* act [rows, heads*v_dim] */
  uint64_t y_stride;
} weft_op_mla;

/* ---- mixture of experts -------------------------------------------------------------------------------------- */

enum { WEFT_ROUTE_SIGMOID = 1, WEFT_ROUTE_SOFTMAX = 2 };
/* "route": s = sigmoid|softmax(logits); z = s + bias selects (groups: strength = sum of the two largest z of a group, keep
 * group_topk groups); the topk largest z win, ties to the lower index; w = s[id], divided by (sum + 1e-20) when renorm,
 * times scale. ids ascend in slot order of decreasing z. */
typedef struct weft_op_route {
  weft_op_head head;
  uint32_t n_rows, n_experts, topk, kind; /* kind: WEFT_ROUTE_* */
  uint32_t n_groups, group_topk, renorm;
  float scale;
  const float *logits; /* f32 [n_rows, n_experts] */
  uint64_t logits_stride;
  const float *bias; /* f32 [n_experts] or NULL */
  uint16_t *id;      /* [n_rows, topk] */
  float *w;          /* [n_rows, topk] */
} weft_op_route;

enum {
  /* The kernel may round what the products take in (x and the activated vectors) to 8-bit integers, one scale per row and
   * 32 columns. Kernels without such a path ignore it. */
  WEFT_MOE_INT8 = 1u << 0
};
/* "moe": y[r] = sum_j w[r,j] * W2_e( act( W1_e x[r], W3_e x[r] ) ), e = id[r,j]; slots summed in slot order in fp32.
 * Experts outside [first, first + n_local) contribute nothing. Grouped by expert over the rows of the call. */
typedef struct weft_op_moe {
  weft_op_head head;
  uint32_t n_rows, topk;
  uint32_t first, n_local; /* w1/w2/w3 hold n_local entries, expert e at e - first */
  uint32_t act;            /* WEFT_ACT_* */
  float beta, up_beta;
  uint32_t mode; /* WEFT_MOE_* */
  const void *x; /* act [n_rows, w1.k] */
  uint64_t x_stride;
  const uint16_t *id; /* [n_rows, topk] */
  const float *w;     /* [n_rows, topk] */
  const weft_weight *w1, *w2, *w3; /* host memory, keep UNTIL the plan is gone: gate, down, up; all of one dtype and shape */
  void *y;                         /* act [n_rows, w2.n] */
  uint64_t y_stride;
} weft_op_moe;

/* ---- vision tower -------------------------------------------------------------------------------------------- */

/* "gelu": y = gelu(x), tanh form when `tanh_form`, else the erf form. y may be x. */
typedef struct weft_op_gelu {
  weft_op_head head;
  uint32_t n_rows, n_cols, tanh_form, reserved;
  const void *x; /* act */
  uint64_t x_stride;
  void *y; /* act */
  uint64_t y_stride;
} weft_op_gelu;

/* "vit_pos": x[t,r,c] += bilinear(table [table_h, table_w, n_cols] -> grid_h x grid_w)[r,c] (align_corners false, no
 * antialias), plus for grid_t > 1 the sinusoid of frame t. */
typedef struct weft_op_vit_pos {
  weft_op_head head;
  uint32_t grid_t, grid_h, grid_w, n_cols;
  uint32_t table_h, table_w;
  const float *table;
  void *x; /* act [grid_t*grid_h*grid_w, n_cols] */
  uint64_t x_stride;
} weft_op_vit_pos;

/* "vit_attend": full attention inside one clip with interleaved 2-D rotary: pair 2i turns by the column, pair 2i+1 by the
 * row, angle * 10000^(-4i/head_dim). qkv row = [q heads | k heads | v heads]. scale = head_dim^-0.5. */
typedef struct weft_op_vit_attend {
  weft_op_head head;
  uint32_t grid_t, grid_h, grid_w, heads, head_dim, reserved;
  const void *qkv; /* act [grid_t*grid_h*grid_w, 3*heads*head_dim] */
  uint64_t qkv_stride;
  void *y; /* act [.., heads*head_dim] */
  uint64_t y_stride;
} weft_op_vit_attend;

/* "vit_merge": averages over frames and flattens merge x merge neighbours in the order (0,0) (0,1) (1,0) (1,1). */
typedef struct weft_op_vit_merge {
  weft_op_head head;
  uint32_t grid_t, grid_h, grid_w, n_cols, merge, reserved;
  const void *x; /* act */
  uint64_t x_stride;
  void *y; /* act [grid_h/merge * grid_w/merge, merge*merge*n_cols] */
  uint64_t y_stride;
} weft_op_vit_merge;

/* ---- the interface ------------------------------------------------------------------------------------------- */

enum { /* weft_kernel.isa: what the variant needs */
  WEFT_ISA_ANY = 0,
  WEFT_ISA_X86_AVX2 = 100, /* AVX2, FMA, F16C */
  WEFT_ISA_X86_AVX512 = 200, /* F, BW, DQ, VL */
  WEFT_ISA_X86_AVX512_BF16 = 210,
  WEFT_ISA_X86_AMX = 220,
  WEFT_ISA_SM90A = 1090,
  WEFT_ISA_SM100A = 1100
};

typedef struct weft_kernel { /* frozen */
  const char *op;            /* "gemm", "kda_step", ... */
  const char *variant;       /* "ref", "avx2", ... unique per (op, dtype_w) */
  uint32_t isa;              /* WEFT_ISA_* */
  uint32_t dtype_w;          /* dtype of the weight or page argument it takes, 0 when the op has none */
  uint32_t dtype_act;
  int32_t score;             /* higher wins; ref is 0; negative = cannot run on this machine */
  /* [init|slow] args: borrow, the op's struct. out, err: fill */
  weft_status (*plan)(const void *args, weft_plan *out, weft_err *err);
  /* [engine] args: borrow; err: fill */
  weft_status (*launch)(const void *args, weft_err *err);
} weft_kernel;

typedef struct weft_kernels_info {
  uint32_t struct_size;
  uint32_t act_dtype;   /* dtype of activations */
  int32_t mem;          /* memory kind of every data pointer */
  int32_t n_devices;
  char isa[32];         /* best ISA found on this machine, for people */
} weft_kernels_info;

typedef struct weft_kernels_v1 {
  weft_head head;
  /* [init] 0 = cannot run on this machine, else score: higher wins */
  int32_t (*probe)(weft_plugin *plugin);
  /* [init] out, err: fill */
  weft_status (*info)(weft_plugin *plugin, weft_kernels_info *out, weft_err *err);
  /* [init] Kernel i, or WEFT_END. out: fill */
  weft_status (*get)(weft_plugin *plugin, uint32_t i, weft_kernel *out);
  /* [init|slow] Layout and size in which the best kernels up to isa_max (WEFT_ISA_*) want a matrix that multiplies. w:
   * borrow, data may be NULL. layout, bytes, scale_bytes: fill. Layout 0 = row-major: the loader may read the file straight
   * into place. */
  weft_status (*pack_plan)(weft_plugin *plugin, uint32_t isa_max, const weft_weight *w, uint32_t *layout,
                           uint64_t *bytes, uint64_t *scale_bytes);
  /* [slow] src: borrow, row-major. dst: fill, its data and scale sized as planned */
  weft_status (*pack)(weft_plugin *plugin, const weft_weight *src, const weft_weight *dst, weft_err *err);
} weft_kernels_v1;

/* Host table "weft.host.kernels/1" (weft_host.extension), for model plugins. */
#define WEFT_HOST_KERNELS_ID "weft.host.kernels/1"
typedef struct weft_host_kernels_v1 {
  uint32_t struct_size;
  uint32_t reserved;
  /* [init|slow] The chosen kernel set's facts. out, err: fill */
  weft_status (*info)(const weft_host *host, weft_kernels_info *out, weft_err *err);
  /* [init|slow] Best allowed variant of op for these dtypes, or NULL when the kernel set lacks the op. op: borrow.
   * Result: keep UNTIL close */
  const weft_kernel *(*find)(const weft_host *host, const char *op, uint32_t dtype_w, uint32_t dtype_act);
  /* [init|slow] as in weft_kernels_v1 */
  weft_status (*pack_plan)(const weft_host *host, const weft_weight *w, uint32_t *layout, uint64_t *bytes,
                           uint64_t *scale_bytes);
  /* [slow] as in weft_kernels_v1 */
  weft_status (*pack)(const weft_host *host, const weft_weight *src, const weft_weight *dst, weft_err *err);
} weft_host_kernels_v1;

#ifdef __cplusplus
}
#endif
#endif
