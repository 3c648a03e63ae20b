// A model under test: the real plugins loaded by the real loader, a checkpoint in memory, caches
// filled with poison, and sequences whose pages and state slots are handed out in a scrambled
// order. Single-threaded.
#pragma once

#include <weft/model.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hash_weights.h"
#include "plugin/host_table.h"
#include "plugin/instance.h"
#include "plugin/loader.h"

namespace weft_test {

// Host table with kernels_cpu limited to `isa` ("ref", "avx2", "avx512", "") and model_kimi opened.
class Bench {
 public:
  explicit Bench(const std::string& isa, uint32_t threads = 1);
  ~Bench();

  weft::plugin::HostTable& host() { return *host_; }
  weft::plugin::LoadedPlugin& model_plugin() { return *model_; }
  weft::plugin::LoadedPlugin& storage_plugin();

 private:
  std::unique_ptr<weft::plugin::HostTable> host_;
  std::unique_ptr<weft::plugin::LoadedPlugin> kernels_, model_, storage_;
};

struct Sequence {
  std::vector<int32_t> pages;
  int32_t slot = -1;
  uint32_t context = 0;
};

struct Piece {
  Sequence* sequence;
  std::vector<int32_t> tokens;
  bool all_logits = true;          // else the last row only
  std::vector<uint32_t> media_at;  // rows of this piece that get the next media rows
};

struct ModelSetup {
  std::string config;
  weft::plugin::ParamList settings;
  uint32_t max_rows = 256, max_seqs = 24, max_context = 512;
  uint32_t page_tokens = 16, pages = 160, slots = 40;
  uint32_t cache_dtype = 0;
};

class TestModel {
 public:
  TestModel(Bench& bench, const ModelSetup& setup);
  ~TestModel();
  TestModel(const TestModel&) = delete;
  TestModel& operator=(const TestModel&) = delete;

  // The calls of the interface, with the error text in last_error().
  weft_status declare(const weft_catalog* catalog);
  weft_status plan();
  weft_status load(MemoryCheckpoint& checkpoint);  // want, place, placed of every tensor
  weft_status ready();
  weft_status ready(std::span<const weft_arena> arenas);  // memory of someone else; no feed() then
  // All of it; false with last_error() when something fails.
  bool bring_up(MemoryCheckpoint& checkpoint);

  // Runs one step; logits of every asked row, in order. Empty after a failure.
  std::vector<float> feed(std::vector<Piece> pieces, std::span<const float> media = {},
                          uint32_t flags = 0);
  weft_status step(const weft_batch& batch);
  weft_status encode(const weft_media& media, float* rows);
  void release(Sequence& sequence);

  const std::string& last_error() const { return error_; }
  const weft_mem_plan& memory() const { return plan_; }
  weft_model_info info() const;
  const weft_model_v1* table() const { return table_; }
  weft_instance* self() const { return instance_.get(); }
  uint32_t group(const char* name) const;  // index, or UINT32_MAX
  const std::byte* unit(uint32_t group, int32_t unit) const;

 private:
  int32_t take(std::vector<int32_t>& pool);
  void note(weft_status status, const weft_err& err);

  ModelSetup setup_;
  weft::plugin::Instance instance_;
  const weft_model_v1* table_ = nullptr;
  weft_mem_plan plan_{};
  std::vector<weft_arena> arenas_;
  std::vector<void*> memory_;
  std::vector<int32_t> free_pages_, free_slots_;
  uint64_t random_ = 1;
  std::string error_;
};

Json read_json(const std::string& name);  // from tests/data/model
std::vector<int32_t> ints(const Json& list);

// Largest |a - b| as a share of the largest |b|.
double distance(std::span<const float> a, std::span<const float> b);

}  // namespace weft_test
