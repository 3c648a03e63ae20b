// What the tests of loading share: a writer of safetensors bytes (good and bad), a storage instance
// in memory that completes reads in any order and fails on demand, and a model that records what
// the loader does to it. One test, one thread.
#pragma once

#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/load/storage_client.h"
#include "engine/load/weights_loader.h"
#include "weft/model.h"
#include "weft/storage.h"

namespace weft_test {

// A file with this header text and this many data bytes (a byte pattern that depends on position
// and `salt`).
std::string shard_bytes(std::string_view header_json, size_t data_bytes, int salt = 0);
char pattern_byte(size_t i, int salt);

struct U8Tensor {
  std::string name;
  size_t bytes;
};
// A well-formed shard of U8 vectors, in this order.
std::string u8_shard(const std::vector<U8Tensor>& tensors, int salt = 0);
std::string index_json(const std::vector<std::pair<std::string, std::string>>& weight_map);

class FakeStorage {
 public:
  FakeStorage();
  FakeStorage(const FakeStorage&) = delete;
  FakeStorage& operator=(const FakeStorage&) = delete;

  weft::engine::StorageRef ref();

  std::map<std::string, std::string> files;  // location -> bytes
  uint32_t queue = 7;                        // reads in flight at once
  uint32_t accept_per_submit = 1000;
  bool accepting = true;
  // The read that covers this file offset fails with these; offset -1 = none does.
  int64_t fail_offset = -1;
  std::string fail_in;  // in this location only; empty = in any
  weft_status fail_status = WEFT_E_IO;
  int32_t fail_sys = 5;
  uint64_t fail_bytes = 0;
  bool lie_about_id = false;  // complete an id that nobody submitted

  uint64_t reads = 0;
  uint64_t bytes_read = 0;
  uint64_t cancels = 0;
  uint32_t in_flight_peak = 0;
  uint64_t longest_read = 0;
  int open_objects = 0;
  size_t in_flight() const { return pending_.size(); }

 private:
  friend struct FakeStorageCalls;
  struct Pending {
    weft_io io;
    bool cancelled;
  };
  weft_done complete(const Pending& read);

  weft_storage_v1 table_{};
  std::vector<Pending> pending_;
  std::mt19937 random_{42};  // completions come in this shuffled order
};

// Wants the given tensors and gives each memory of its own.
class FakeModel {
 public:
  explicit FakeModel(std::vector<weft_want> wants);
  FakeModel(const FakeModel&) = delete;
  FakeModel& operator=(const FakeModel&) = delete;

  // Wants every tensor of the catalog but those in `skip`, in reverse name order.
  static std::vector<weft_want> all_of(const weft_catalog* catalog,
                                       const std::vector<std::string>& skip = {});

  weft::engine::ModelRef ref();

  std::vector<std::string> calls;  // "place a", "placed a", ...
  std::map<std::string, std::string> memory;
  std::string fail_place, fail_placed, null_place;  // tensor names
  int64_t want_status_at = -1;                      // want(i) fails here

 private:
  friend struct FakeModelCalls;
  std::vector<weft_want> wants_;
  weft_model_v1 table_{};
};

}  // namespace weft_test
