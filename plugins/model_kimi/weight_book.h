// Every tensor the model wants: which shape and type it must have, where its bytes go, and what is
// done to them when they have arrived. Large matrices are read straight into their final memory
// (or, when the kernels want another layout, through one staging buffer per matrix); small vectors
// become f32. Memory comes in one block per layer. Declaring happens on one thread; place and
// placed of different tensors may run on different threads.
#pragma once

#include <weft/kernels.h>
#include <weft/model.h>

#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <vector>

#include "fault.h"
#include "kernel_set.h"

namespace weft_kimi {

enum class MatrixUse {
  kMultiply,  // the kernels may choose the layout
  kRowMajor,  // looked up by row or sliced by head
};

class WeightBook {
 public:
  explicit WeightBook(const KernelSet& kernels) : kernels_(kernels) {}
  ~WeightBook();
  WeightBook(const WeightBook&) = delete;
  WeightBook& operator=(const WeightBook&) = delete;

  // ---- declaring; problems are collected, declared() reports them together ----
  void open(const weft_catalog* catalog) { catalog_ = catalog; }
  void begin_block();  // memory of what follows is one allocation
  const weft_catalog_entry* find(const std::string& name) const;
  // A bf16 or f32 matrix [n, k]; `shape` when the stored shape is not [n, k]. *out must outlive the
  // book.
  void matrix(const std::string& name, uint64_t n, uint64_t k, MatrixUse use, weft_weight* out,
              std::initializer_list<int64_t> shape = {});
  // name + "_packed" and name + "_scale".
  void mxfp4(const std::string& name, uint64_t n, uint64_t k, weft_weight* out);
  // bf16 or f32 numbers of this shape, kept as f32.
  void vector(const std::string& name, std::initializer_list<int64_t> shape, const float** out);
  // A_log: n numbers, stored as [n], as [p > n] with an all-zero tail, or as [1, 1, n, 1]; always
  // f32.
  void decay_log(const std::string& name, uint64_t n, const float** out);
  // The elementwise product of two vectors of n numbers: `norm` of shape [n] and `proj` of shape
  // [1, n].
  void product(const std::string& norm, const std::string& proj, uint64_t n, const float** out);
  void problem(std::string what);
  Fault declared() const;

  // ---- loading ----
  uint64_t tensors() const { return slots_.size(); }
  uint64_t bytes() const;  // of all blocks
  uint64_t parameters() const { return parameters_; }
  weft_str name(uint64_t i) const { return slots_[i].entry->name; }
  uint64_t stored_bytes(uint64_t i) const { return slots_[i].entry->bytes; }
  Fault place(uint64_t i, void** dst);
  Fault placed(uint64_t i);
  Fault complete() const;  // WEFT_E_STATE naming a tensor that has not been placed

 private:
  enum class Kind : uint8_t { kData, kScale, kPackData, kPackScale, kVector, kDecayLog, kProduct };
  struct Slot {
    const weft_catalog_entry* entry = nullptr;
    Kind kind = Kind::kData;
    bool done = false;
    uint32_t block = 0;
    uint32_t link = 0;    // entry of packs_ or products_
    uint64_t offset = 0;  // in the block
    uint64_t count = 0;   // kept numbers of a vector, row length of a scale
    void* staging = nullptr;
  };
  struct Pack {
    weft_weight source{};  // data and scale point at staging memory
    weft_weight* target = nullptr;
    uint32_t missing = 0;
  };
  struct Pointer {  // a pointer to set once the blocks have addresses
    const float** vector = nullptr;
    const void** data = nullptr;
    uint32_t block = 0;
    uint64_t offset = 0;
  };
  struct Block {
    uint64_t bytes = 0;
    void* base = nullptr;
  };

  const weft_catalog_entry* check(const std::string& name, std::initializer_list<uint32_t> dtypes,
                                  std::initializer_list<int64_t> shape);
  uint64_t reserve(uint64_t bytes);
  Slot& add(const weft_catalog_entry* entry, Kind kind, uint64_t offset);
  void point(const void** where, uint64_t offset);
  void point(const float** where, uint64_t offset);
  void add_packed(const weft_catalog_entry* data, const weft_catalog_entry* scale, weft_weight* out,
                  uint64_t bytes, uint64_t scale_bytes);
  Fault allocate();
  void* address(const Slot& slot) const;
  Fault check_scales(const Slot& slot, const void* bytes) const;
  Fault to_floats(const Slot& slot, float* dst) const;
  Fault finish_pack(Slot& slot);
  Fault finish_vector(Slot& slot);

  const KernelSet& kernels_;
  const weft_catalog* catalog_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<Pack> packs_;
  std::vector<uint8_t> products_;  // 1 once the first factor is in place
  std::vector<Pointer> pointers_;
  std::vector<Block> blocks_;
  std::vector<std::string> problems_;  // the first few
  uint64_t problem_count_ = 0;
  uint64_t parameters_ = 0;
  std::mutex mutex_;  // allocation, packs_, products_
  bool allocated_ = false;
};

}  // namespace weft_kimi
