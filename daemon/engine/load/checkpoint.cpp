#include "engine/load/checkpoint.h"

#include <algorithm>
#include <unordered_map>

#include "engine/load/location.h"
#include "engine/load/quote.h"
#include "engine/load/shard_index.h"

namespace weft::engine {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
// One read gets most headers whole; a longer one costs a second read.
constexpr uint64_t kHeaderReadBytes = 64u << 10;
constexpr size_t kNamesInMessage = 3;

bool contains(const std::vector<std::string>& sorted, std::string_view name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

// "'a', 'b', 'c' and 4 more"
std::string name_some(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kNamesInMessage); ++i)
    out += (i > 0 ? ", " : "") + quote_name(names[i]);
  if (names.size() > kNamesInMessage)
    out += fmt::format(" and {} more", names.size() - kNamesInMessage);
  return out;
}

}  // namespace

// Builds a Checkpoint step by step; lives for one call of Checkpoint::open.
class CheckpointReader {
 public:
  CheckpointReader(StorageRef storage, std::string_view location)
      : storage_(storage), location_(location) {}

  Result<std::unique_ptr<Checkpoint>> run() {
    WEFT_ASSIGN(files_, list_objects(storage_, location_));
    if (contains(files_, kIndexName)) {
      WEFT_TRY(read_index());
    } else if (contains(files_, kSingleName)) {
      index_.shards = {std::string(kSingleName)};
    } else {
      return no_weights();
    }
    for (uint32_t i = 0; i < index_.shards.size(); ++i) WEFT_TRY(read_shard(i));
    WEFT_TRY(check_all_found());
    return finish();
  }

 private:
  Error no_weights() const {
    std::vector<std::string> found;
    constexpr std::string_view kSuffix = ".safetensors";
    for (const std::string& name : files_)
      if (name.size() > kSuffix.size() && name.substr(name.size() - kSuffix.size()) == kSuffix)
        found.push_back(name);
    if (found.empty())
      return make_error(ErrorCode::kNotFound,
                        "no weights in {}: expected {} with its shards, or {}; weft reads the "
                        "safetensors format only",
                        quote_name(location_), kIndexName, kSingleName);
    return make_error(
        ErrorCode::kNotFound,
        "{} has {} but neither {} nor {}, so weft cannot tell whether the weights are complete",
        quote_name(location_), name_some(found), kIndexName, kSingleName);
  }

  Status read_index() {
    Result<std::string> text =
        read_object(storage_, join_location(location_, kIndexName), kIndexBytesMax);
    if (!text.ok()) return std::move(text).error().within(kIndexName);
    Result<ShardIndex> index = parse_shard_index(*text);
    if (!index.ok()) return std::move(index).error().within(kIndexName);
    index_ = std::move(index).value();
    indexed_ = true;
    std::vector<std::string> missing;
    for (const std::string& shard : index_.shards)
      if (!contains(files_, shard)) missing.push_back(shard);
    if (!missing.empty())
      return make_error(ErrorCode::kNotFound,
                        "{} of {} shards are missing from {}: {}; download the checkpoint again",
                        missing.size(), index_.shards.size(), quote_name(location_),
                        name_some(missing));
    tensors_.reserve(index_.tensors.size());
    for (IndexEntry& entry : index_.tensors) {
      CatalogTensor tensor;
      tensor.name = std::move(entry.tensor);
      tensor.shard = entry.shard;
      tensors_.push_back(std::move(tensor));
    }
    found_.assign(tensors_.size(), false);
    return {};
  }

  Status read_shard(uint32_t number) {
    const std::string& name = index_.shards[number];
    WEFT_TRY(check_inside(location_, name));
    Result<StorageObject> object = open_object(storage_, join_location(location_, name));
    if (!object.ok()) return std::move(object).error().within(name);
    Result<ShardHeader> header = read_header(*object);
    if (!header.ok()) return std::move(header).error().within(name);
    shards_.push_back({name, std::move(object).value(), header->data_start});
    for (TensorEntry& entry : header->tensors)
      WEFT_TRY(add_tensor(number, header->data_start, std::move(entry)));
    return {};
  }

  Result<ShardHeader> read_header(const StorageObject& object) {
    const uint64_t first_bytes = std::min(object.size(), kHeaderReadBytes);
    WEFT_ASSIGN(std::string head, read_range(storage_, object, 0, first_bytes));
    WEFT_ASSIGN(const uint64_t json_bytes, safetensors_json_bytes(head, object.size()));
    const uint64_t head_bytes = kHeaderLengthBytes + json_bytes;
    if (head_bytes > head.size()) {
      WEFT_ASSIGN(const std::string rest,
                  read_range(storage_, object, head.size(), head_bytes - head.size()));
      head += rest;
    }
    return parse_safetensors(head, object.size());
  }

  Status add_tensor(uint32_t shard, uint64_t data_start, TensorEntry&& found) {
    CatalogTensor tensor;
    tensor.name = std::move(found.name);
    tensor.shard = shard;
    tensor.offset = data_start + found.begin;
    tensor.entry.dtype = found.dtype;
    tensor.entry.rank = found.rank;
    std::copy(found.shape.begin(), found.shape.end(), tensor.entry.shape);
    tensor.entry.bytes = found.end - found.begin;
    if (!indexed_) {
      tensors_.push_back(std::move(tensor));
      return {};
    }
    const auto place = std::lower_bound(
        tensors_.begin(), tensors_.end(), tensor.name,
        [](const CatalogTensor& t, const std::string& name) { return t.name < name; });
    if (place == tensors_.end() || place->name != tensor.name)
      return add_unindexed(tensor.name, shard);
    if (place->shard != shard)
      return make_error(ErrorCode::kCorrupt, "tensor {} is in {}, but {} puts it into {}",
                        quote_name(tensor.name), quote_name(index_.shards[shard]), kIndexName,
                        quote_name(index_.shards[place->shard]));
    *place = std::move(tensor);
    found_[static_cast<size_t>(place - tensors_.begin())] = true;
    return {};
  }

  // The index decides what belongs to the model. Extra tensors do no harm unless two shards
  // disagree about one.
  Status add_unindexed(const std::string& name, uint32_t shard) {
    const auto [place, fresh] = unindexed_.emplace(name, shard);
    if (fresh) return {};
    return make_error(ErrorCode::kCorrupt, "tensor {} is in two shards, {} and {}",
                      quote_name(name), quote_name(index_.shards[place->second]),
                      quote_name(index_.shards[shard]));
  }

  Status check_all_found() const {
    for (size_t i = 0; i < found_.size(); ++i)
      if (!found_[i])
        return make_error(ErrorCode::kCorrupt, "tensor {} is not in {}, where {} puts it",
                          quote_name(tensors_[i].name),
                          quote_name(index_.shards[tensors_[i].shard]), kIndexName);
    return {};
  }

  Result<std::unique_ptr<Checkpoint>> finish() {
    if (!indexed_)
      std::sort(tensors_.begin(), tensors_.end(),
                [](const CatalogTensor& a, const CatalogTensor& b) { return a.name < b.name; });
    if (tensors_.empty()) return make_error(ErrorCode::kCorrupt, "{} holds no tensor", kSingleName);
    std::unique_ptr<Checkpoint> out(new Checkpoint(storage_));
    for (CatalogTensor& tensor : tensors_) {
      tensor.entry.name = {tensor.name.data(), tensor.name.size()};
      out->data_bytes_ += tensor.entry.bytes;
    }
    // Moving the vector keeps its elements, and so the names that the entries point to, where they
    // are.
    out->tensors_ = std::move(tensors_);
    out->shards_ = std::move(shards_);
    out->unindexed_ = unindexed_.size();
    out->catalog_.n = out->tensors_.size();
    return out;
  }

  StorageRef storage_;
  std::string location_;
  std::vector<std::string> files_;  // sorted
  bool indexed_ = false;
  ShardIndex index_;
  std::vector<Shard> shards_;
  std::vector<CatalogTensor>
      tensors_;  // with an index: one for each of its tensors, in name order, filled as found
  std::vector<bool> found_;
  std::unordered_map<std::string, uint32_t> unindexed_;
};

namespace {

const weft_catalog_entry* catalog_find(const weft_catalog* catalog, weft_str name) {
  const CatalogTensor* tensor =
      static_cast<const Checkpoint*>(catalog->impl)->find({name.data, name.len});
  return tensor == nullptr ? nullptr : &tensor->entry;
}

const weft_catalog_entry* catalog_at(const weft_catalog* catalog, uint64_t i) {
  const auto& tensors = static_cast<const Checkpoint*>(catalog->impl)->tensors();
  return i < tensors.size() ? &tensors[i].entry : nullptr;
}

}  // namespace

Checkpoint::Checkpoint(StorageRef storage) : storage_(storage) {
  catalog_.struct_size = sizeof catalog_;
  catalog_.impl = this;
  catalog_.find = catalog_find;
  catalog_.at = catalog_at;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(StorageRef storage,
                                                     std::string_view location) {
  return CheckpointReader(storage, location).run();
}

const CatalogTensor* Checkpoint::find(std::string_view name) const {
  const auto place =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const CatalogTensor& t, std::string_view n) { return t.name < n; });
  return place == tensors_.end() || place->name != name ? nullptr : &*place;
}

}  // namespace weft::engine
