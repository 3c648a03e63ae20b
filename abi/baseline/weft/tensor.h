/* weft/tensor.h: how memory with numbers in it is described. */
#ifndef WEFT_TENSOR_H
#define WEFT_TENSOR_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* weft_dtype; 32-bit fields hold these */
  WEFT_DTYPE_NONE = 0,
  WEFT_F32 = 1,
  WEFT_BF16 = 2,
  WEFT_F16 = 3,
  WEFT_U8 = 4,
  WEFT_I32 = 5,
  WEFT_I64 = 6,
  WEFT_F64 = 7,
  WEFT_F8E4M3 = 8,
  WEFT_U16 = 9,
  WEFT_U32 = 10,
  WEFT_I8 = 11,
  WEFT_MXFP4 = 64 /* E2M1 nibbles (low nibble = even column), one E8M0 scale byte per 32 input columns */
};

enum { /* where memory lives */
  WEFT_MEM_HOST = 0,
  WEFT_MEM_PINNED = 1,
  WEFT_MEM_DEVICE = 2
};

#define WEFT_RANK_MAX 6

typedef struct weft_tensor {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t rank; /* used entries of shape and stride */
  int32_t mem;
  int32_t device;
  uint32_t reserved;
  int64_t shape[WEFT_RANK_MAX];
  int64_t stride[WEFT_RANK_MAX]; /* elements, not bytes */
  void *data;                    /* borrow unless stated */
} weft_tensor;

#ifdef __cplusplus
}
#endif
#endif
