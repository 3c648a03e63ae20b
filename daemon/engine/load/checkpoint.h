// Checkpoint: the safetensors files of a model directory, validated as a whole. Opening reads the
// index and every header and no weight; it fails with one error or yields a catalog in which every
// tensor has a checked dtype, shape and place.
//
// Ownership: a Checkpoint owns its opened objects and must die before the storage instance. The
// catalog it lends to a model plugin points into it. Threads: opened by one thread; afterwards
// immutable, any thread may read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/load/safetensors.h"
#include "engine/load/storage_client.h"
#include "weft/model.h"

namespace weft::engine {

struct Shard {
  std::string name;
  StorageObject object;
  uint64_t data_start = 0;
};

struct CatalogTensor {
  std::string name;
  weft_catalog_entry entry{};  // entry.name borrows from name
  uint32_t shard = 0;
  uint64_t offset = 0;  // in the shard's file
};

class Checkpoint {
 public:
  // `location`: absolute path or URI of the model directory.
  static Result<std::unique_ptr<Checkpoint>> open(StorageRef storage, std::string_view location);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // For weft_model_v1.declare. Valid as long as the checkpoint.
  const weft_catalog* catalog() const { return &catalog_; }

  StorageRef storage() const { return storage_; }
  const std::vector<Shard>& shards() const { return shards_; }
  const std::vector<CatalogTensor>& tensors() const { return tensors_; }  // in name order
  const CatalogTensor* find(std::string_view name) const;
  uint64_t data_bytes() const { return data_bytes_; }  // of all tensors
  // Tensors that lie in a shard but not in the index; they are not in the catalog.
  uint64_t unindexed() const { return unindexed_; }

 private:
  friend class CheckpointReader;
  explicit Checkpoint(StorageRef storage);

  StorageRef storage_;
  std::vector<Shard> shards_;
  std::vector<CatalogTensor> tensors_;
  uint64_t data_bytes_ = 0;
  uint64_t unindexed_ = 0;
  weft_catalog catalog_{};
};

}  // namespace weft::engine
