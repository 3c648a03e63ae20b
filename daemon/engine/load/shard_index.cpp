#include "engine/load/shard_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/load/quote.h"
#include "engine/load/safetensors.h"

namespace weft::engine {
namespace {

constexpr std::string_view kShardSuffix = ".safetensors";

// Receives the JSON events of an index. Everything but "weight_map" is skipped; that must map
// strings to strings, each tensor once (a DOM would keep one of two equal keys and hide the other).
class IndexReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool start_object(size_t) override {
    if (depth_ > 0) {
      if (in_map_) return wrong_value("an object");
      if (std::exchange(map_comes_, false)) in_map_ = true;
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    in_map_ = false;  // nothing nests inside the map
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (!skip("an array")) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(std::string& text) override {
    if (in_map_) return begin_tensor(text);
    if (depth_ != 1 || text != "weight_map") return true;
    if (std::exchange(map_seen_, true)) return fail("has weight_map twice");
    return map_comes_ = true;
  }
  bool string(std::string& text) override { return in_map_ ? add_tensor(text) : skip("a string"); }
  bool number_integer(int64_t) override { return skip("a number"); }
  bool number_unsigned(uint64_t) override { return skip("a number"); }
  bool number_float(double, const std::string&) override { return skip("a number"); }
  bool null() override { return skip("null"); }
  bool boolean(bool) override { return skip("a boolean"); }
  bool binary(nlohmann::json::binary_t&) override { return skip("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& e) override {
    // The library's text starts with "[json.exception...] parse error at ...: "; the reason comes
    // last.
    const std::string_view what = e.what();
    const size_t colon = what.find(": ");
    return fail("is not valid JSON at byte {}: {}", position,
                colon == std::string_view::npos ? what : what.substr(colon + 2));
  }

  bool map_seen() const { return map_seen_; }
  Error take_error() { return std::move(error_); }
  ShardIndex take_index() { return std::move(index_); }

 private:
  template <class... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    error_ = make_error(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
    return false;
  }
  bool wrong_value(std::string_view got) {
    if (map_comes_) return fail("weight_map: expected an object, got {}", got);
    return fail("weight_map: tensor {}: expected the name of a shard, got {}", quote_name(tensor_),
                got);
  }
  bool skip(std::string_view got) {
    if (depth_ == 0) return fail("expected a JSON object, got {}", got);
    return in_map_ || map_comes_ ? wrong_value(got) : true;
  }

  bool begin_tensor(const std::string& name) {
    if (name.empty()) return fail("weight_map names a tensor with the empty string");
    if (name.size() > kTensorNameBytesMax)
      return fail("tensor name {} has {} bytes, the limit is {}", quote_name(name), name.size(),
                  kTensorNameBytesMax);
    if (index_.tensors.size() == kIndexTensorsMax)
      return fail("weight_map has more than {} tensors", kIndexTensorsMax);
    if (!names_.insert(name).second)
      return fail("weight_map names tensor {} twice", quote_name(name));
    tensor_ = name;
    return true;
  }
  bool add_tensor(const std::string& shard) {
    const auto [place, fresh] = shards_.emplace(shard, static_cast<uint32_t>(index_.shards.size()));
    if (fresh) {
      if (Status status = check_shard_name(shard); !status.ok()) {
        error_ = std::move(status).error().within(
            fmt::format("weight_map: tensor {}", quote_name(tensor_)));
        return false;
      }
      if (index_.shards.size() == kShardsMax)
        return fail("weight_map names more than {} shards", kShardsMax);
      index_.shards.push_back(shard);
    }
    index_.tensors.push_back({std::move(tensor_), place->second});
    return true;
  }

  size_t depth_ = 0;
  bool map_seen_ = false;
  bool map_comes_ = false;  // the next value is the one of weight_map
  bool in_map_ = false;
  std::string tensor_;
  std::unordered_set<std::string> names_;
  std::unordered_map<std::string, uint32_t> shards_;
  ShardIndex index_;
  Error error_;
};

// Puts shards and tensors into name order: the order of the JSON is the writer's accident.
void sort_index(ShardIndex* index) {
  std::vector<uint32_t> order(index->shards.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return index->shards[a] < index->shards[b]; });
  std::vector<uint32_t> place(order.size());
  std::vector<std::string> shards(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    shards[i] = std::move(index->shards[order[i]]);
  }
  index->shards = std::move(shards);
  for (IndexEntry& entry : index->tensors) entry.shard = place[entry.shard];
  std::sort(index->tensors.begin(), index->tensors.end(),
            [](const IndexEntry& a, const IndexEntry& b) { return a.tensor < b.tensor; });
}

}  // namespace

Status check_shard_name(std::string_view name) {
  const auto bad = [&](std::string_view why) {
    return make_error(
        ErrorCode::kCorrupt,
        "shard name {} {}; expected the name of a .safetensors file in the model directory",
        quote_name(name), why);
  };
  if (name.empty()) return bad("is empty");
  if (name.size() > kShardNameBytesMax)
    return bad(fmt::format("has more than {} bytes", kShardNameBytesMax));
  if (name[0] == '/') return bad("is an absolute path");
  if (name == ".." || name.substr(0, 3) == "../" || name.find("/../") != std::string_view::npos)
    return bad("leads out of the model directory");
  if (name.find('/') != std::string_view::npos || name.find('\\') != std::string_view::npos)
    return bad("has a path separator");
  if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return bad("has a control character");
  if (name.size() <= kShardSuffix.size() ||
      name.substr(name.size() - kShardSuffix.size()) != kShardSuffix)
    return bad("does not end in .safetensors");
  return {};
}

Result<ShardIndex> parse_shard_index(std::string_view json) {
  if (json.size() > kIndexBytesMax)
    return make_error(ErrorCode::kCorrupt, "has {} bytes, the limit is {}", json.size(),
                      kIndexBytesMax);
  IndexReader reader;
  if (!nlohmann::json::sax_parse(json, &reader)) return reader.take_error();
  if (!reader.map_seen()) return make_error(ErrorCode::kCorrupt, "has no weight_map");
  ShardIndex index = reader.take_index();
  if (index.tensors.empty()) return make_error(ErrorCode::kCorrupt, "weight_map is empty");
  sort_index(&index);
  return index;
}

}  // namespace weft::engine
