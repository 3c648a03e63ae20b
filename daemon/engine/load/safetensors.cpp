#include "engine/load/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "engine/load/quote.h"

namespace weft::engine {
namespace {

struct DtypeRow {
  std::string_view name;
  uint32_t dtype;
  uint32_t bits;  // per element; the format has sub-byte types
};
constexpr DtypeRow kDtypes[] = {
    {"F32", WEFT_F32, 32},
    {"BF16", WEFT_BF16, 16},
    {"F16", WEFT_F16, 16},
    {"U8", WEFT_U8, 8},
    {"I32", WEFT_I32, 32},
    {"I64", WEFT_I64, 64},
    {"F64", WEFT_F64, 64},
    {"F8_E4M3", WEFT_F8E4M3, 8},
    {"U16", WEFT_U16, 16},
    {"U32", WEFT_U32, 32},
    {"I8", WEFT_I8, 8},
    {"BOOL", WEFT_DTYPE_NONE, 8},
    {"I16", WEFT_DTYPE_NONE, 16},
    {"U64", WEFT_DTYPE_NONE, 64},
    {"F8_E5M2", WEFT_DTYPE_NONE, 8},
    {"F8_E8M0", WEFT_DTYPE_NONE, 8},
    {"F6_E2M3", WEFT_DTYPE_NONE, 6},
    {"F6_E3M2", WEFT_DTYPE_NONE, 6},
    {"F4", WEFT_DTYPE_NONE, 4},
    {"C64", WEFT_DTYPE_NONE, 64},
};

const DtypeRow* find_dtype(std::string_view name) {
  const auto* row = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                 [&](const DtypeRow& r) { return r.name == name; });
  return row == std::end(kDtypes) ? nullptr : row;
}

// Bytes of the tensor by its shape; nullopt when the product leaves 64 bits or is no whole number
// of bytes.
std::optional<uint64_t> bytes_of(const TensorEntry& t, uint32_t bits) {
  // A dimension of zero makes the product zero whatever the others are, so it is looked for first.
  for (uint32_t i = 0; i < t.rank; ++i)
    if (t.shape[i] == 0) return 0;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < t.rank; ++i)
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(t.shape[i]), &elements))
      return std::nullopt;
  uint64_t total_bits = 0;
  if (__builtin_mul_overflow(elements, uint64_t{bits}, &total_bits) || total_bits % 8 != 0)
    return std::nullopt;
  return total_bits / 8;
}

// Receives the JSON events of a header. nlohmann's DOM and weft's own keep one of two equal keys; a
// header with two tensors of one name must be refused instead, so the events are read directly.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool start_object(size_t) override {
    switch (at_) {
      case At::kStart:
        at_ = At::kNames;
        return true;
      case At::kTensor:
        at_ = At::kFields;
        return true;
      case At::kMetadata:
        at_ = At::kMetadataNames;
        return true;
      default:
        return wrong("an object");
    }
  }
  bool end_object() override {
    if (at_ == At::kMetadataNames) return at_ = At::kNames, true;
    if (at_ == At::kNames) return at_ = At::kEnd, true;
    return finish_tensor();
  }
  bool start_array(size_t) override {
    if (at_ == At::kShapeValue) return at_ = At::kShape, true;
    if (at_ == At::kOffsetsValue) return at_ = At::kOffsets, true;
    return wrong("an array");
  }
  bool end_array() override {
    if (at_ == At::kOffsets && offsets_seen_ != 2)
      return fail("{}: data_offsets: expected [begin, end], got {} numbers", where(),
                  offsets_seen_);
    at_ = At::kFields;
    return true;
  }
  bool key(std::string& text) override {
    if (at_ == At::kNames) return begin_tensor(text);
    if (at_ == At::kFields) return begin_field(text);
    at_ = At::kMetadataValue;
    return true;
  }
  bool string(std::string& text) override {
    if (at_ == At::kMetadataValue) return at_ = At::kMetadataNames, true;
    if (at_ != At::kDtypeValue) return wrong("a string");
    const DtypeRow* row = find_dtype(text);
    if (row == nullptr)
      return fail("{}: dtype {} is none that the format knows", where(), quote_name(text));
    tensor_.dtype = row->dtype;
    tensor_.dtype_name = row->name;
    bits_ = row->bits;
    at_ = At::kFields;
    return true;
  }
  bool number_integer(int64_t value) override {  // called for numbers with a minus sign only
    if (value == 0) return number_unsigned(0);
    if (at_ == At::kShape)
      return fail("{}: shape[{}] is {}, expected 0 or more", where(), tensor_.rank, value);
    if (at_ == At::kOffsets)
      return fail("{}: data_offsets has {}, expected 0 or more", where(), value);
    return wrong("a number");
  }
  bool number_unsigned(uint64_t value) override {
    if (at_ == At::kShape) return add_dimension(value);
    if (at_ == At::kOffsets) {
      if (offsets_seen_ == 0) tensor_.begin = value;
      if (offsets_seen_ == 1) tensor_.end = value;
      ++offsets_seen_;
      return true;
    }
    return wrong("a number");
  }
  bool number_float(double, const std::string& spelling) override {
    if (at_ == At::kShape || at_ == At::kOffsets)
      return fail("{}: {} has {}, expected whole numbers below 2^63", where(),
                  at_ == At::kShape ? "shape" : "data_offsets", quote_name(spelling));
    return wrong("a number");
  }
  bool null() override { return wrong("null"); }
  bool boolean(bool) override { return wrong("a boolean"); }
  bool binary(nlohmann::json::binary_t&) override { return wrong("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& e) override {
    // The library's text starts with "[json.exception.parse_error.101] parse error at ...: "; the
    // reason comes last.
    const std::string_view what = e.what();
    const size_t colon = what.find(": ");
    return fail("header is not valid JSON at byte {}: {}", position,
                colon == std::string_view::npos ? what : what.substr(colon + 2));
  }

  Error take_error() { return std::move(error_); }
  std::vector<TensorEntry> take_tensors() { return std::move(tensors_); }

 private:
  enum class At {
    kStart,
    kNames,
    kTensor,
    kFields,
    kDtypeValue,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kMetadata,
    kMetadataNames,
    kMetadataValue,
    kEnd
  };

  template <class... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    error_ = make_error(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
    return false;
  }
  std::string where() const { return "tensor " + quote_name(tensor_.name); }

  bool wrong(std::string_view got) {
    switch (at_) {
      case At::kStart:
        return fail("header: expected a JSON object, got {}", got);
      case At::kMetadata:
        return fail("__metadata__: expected an object of strings, got {}", got);
      case At::kMetadataValue:
        return fail("__metadata__: expected string values, got {}", got);
      case At::kTensor:
        return fail("{}: expected an object with dtype, shape and data_offsets, got {}", where(),
                    got);
      case At::kDtypeValue:
        return fail("{}: dtype: expected a string, got {}", where(), got);
      case At::kShapeValue:
        return fail("{}: shape: expected an array, got {}", where(), got);
      case At::kOffsetsValue:
        return fail("{}: data_offsets: expected an array, got {}", where(), got);
      default:
        return fail("{}: {}: expected whole numbers, got {}", where(),
                    at_ == At::kShape ? "shape" : "data_offsets", got);
    }
  }

  bool begin_tensor(const std::string& name) {
    if (name == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) return fail("header has __metadata__ twice");
      at_ = At::kMetadata;
      return true;
    }
    if (name.empty()) return fail("header names a tensor with the empty string");
    if (name.size() > kTensorNameBytesMax)
      return fail("tensor name {} has {} bytes, the limit is {}", quote_name(name), name.size(),
                  kTensorNameBytesMax);
    if (tensors_.size() == kShardTensorsMax)
      return fail("header names more than {} tensors", kShardTensorsMax);
    if (!names_.insert(name).second) return fail("header names tensor {} twice", quote_name(name));
    tensor_ = {};
    tensor_.name = name;
    bits_ = offsets_seen_ = 0;
    dtype_given_ = shape_given_ = offsets_given_ = false;
    at_ = At::kTensor;
    return true;
  }
  bool begin_field(const std::string& name) {
    bool* given = nullptr;
    if (name == "dtype") given = &dtype_given_, at_ = At::kDtypeValue;
    if (name == "shape") given = &shape_given_, at_ = At::kShapeValue;
    if (name == "data_offsets") given = &offsets_given_, at_ = At::kOffsetsValue;
    if (given == nullptr)
      return fail("{}: unknown field {}, expected dtype, shape and data_offsets", where(),
                  quote_name(name));
    if (std::exchange(*given, true)) return fail("{}: has {} twice", where(), name);
    return true;
  }
  bool add_dimension(uint64_t value) {
    if (tensor_.rank == WEFT_RANK_MAX)
      return fail("{}: has more than {} dimensions", where(), WEFT_RANK_MAX);
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return fail("{}: shape[{}] is {}, expected below 2^63", where(), tensor_.rank, value);
    tensor_.shape[tensor_.rank++] = static_cast<int64_t>(value);
    return true;
  }
  bool finish_tensor() {
    if (!dtype_given_) return fail("{}: has no dtype", where());
    if (!shape_given_) return fail("{}: has no shape", where());
    if (!offsets_given_) return fail("{}: has no data_offsets", where());
    if (tensor_.begin > tensor_.end)
      return fail("{}: data_offsets [{}, {}] end before they begin", where(), tensor_.begin,
                  tensor_.end);
    const std::optional<uint64_t> expected = bytes_of(tensor_, bits_);
    if (!expected)
      return fail("{}: shape and dtype {} give no countable number of bytes", where(),
                  tensor_.dtype_name);
    if (*expected != tensor_.end - tensor_.begin)
      return fail("{}: shape and dtype {} need {} bytes, data_offsets [{}, {}] span {}", where(),
                  tensor_.dtype_name, *expected, tensor_.begin, tensor_.end,
                  tensor_.end - tensor_.begin);
    tensors_.push_back(std::move(tensor_));
    at_ = At::kNames;
    return true;
  }

  At at_ = At::kStart;
  TensorEntry tensor_;
  uint32_t bits_ = 0;
  uint32_t offsets_seen_ = 0;
  bool dtype_given_ = false, shape_given_ = false, offsets_given_ = false, metadata_seen_ = false;
  std::unordered_set<std::string> names_;
  std::vector<TensorEntry> tensors_;
  Error error_;
};

// The tensors must follow one another from 0 to data_bytes.
Status check_tiling(const ShardHeader& header) {
  uint64_t at = 0;
  const TensorEntry* previous = nullptr;
  for (const TensorEntry& t : header.tensors) {
    if (t.end > header.data_bytes)
      return make_error(ErrorCode::kCorrupt,
                        "tensor {}: data_offsets [{}, {}] reach past the {} data bytes of the "
                        "file; the file is truncated "
                        "or its header is wrong",
                        quote_name(t.name), t.begin, t.end, header.data_bytes);
    if (t.begin < at)
      return make_error(ErrorCode::kCorrupt, "tensor {} [{}, {}] overlaps tensor {} [{}, {}]",
                        quote_name(t.name), t.begin, t.end, quote_name(previous->name),
                        previous->begin, previous->end);
    if (t.begin > at)
      return make_error(ErrorCode::kCorrupt,
                        "{} bytes before tensor {} (data bytes {} to {}) belong to no tensor",
                        t.begin - at, quote_name(t.name), at, t.begin);
    at = t.end;
    previous = &t;
  }
  if (at != header.data_bytes)
    return make_error(ErrorCode::kCorrupt,
                      "{} bytes after the last tensor (data bytes {} to {}) belong to no tensor",
                      header.data_bytes - at, at, header.data_bytes);
  return {};
}

}  // namespace

Result<uint64_t> safetensors_json_bytes(std::string_view first, uint64_t file_bytes) {
  if (file_bytes < kHeaderLengthBytes || first.size() < kHeaderLengthBytes)
    return make_error(ErrorCode::kCorrupt,
                      "the file has {} bytes, too few for a safetensors header", file_bytes);
  uint64_t length = 0;
  for (size_t i = kHeaderLengthBytes; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(first[i]);
  if (length > kHeaderBytesMax)
    return make_error(ErrorCode::kCorrupt,
                      "header length {} exceeds the limit of {}; is this a safetensors file?",
                      length, kHeaderBytesMax);
  if (length > file_bytes - kHeaderLengthBytes)
    return make_error(ErrorCode::kCorrupt,
                      "header length {} exceeds the file of {} bytes; the file is truncated",
                      length, file_bytes);
  return length;
}

Result<ShardHeader> parse_safetensors(std::string_view head, uint64_t file_bytes) {
  WEFT_ASSIGN(const uint64_t length, safetensors_json_bytes(head, file_bytes));
  if (head.size() - kHeaderLengthBytes < length)
    return make_error(ErrorCode::kCorrupt, "header: expected {} bytes, got {}", length,
                      head.size() - kHeaderLengthBytes);
  const std::string_view json = head.substr(kHeaderLengthBytes, length);
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json, &reader)) return reader.take_error();
  ShardHeader header;
  header.data_start = kHeaderLengthBytes + length;
  header.data_bytes = file_bytes - header.data_start;
  header.tensors = reader.take_tensors();
  // Empty tensors may share their place with the next one's begin, so the end decides between equal
  // begins.
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  WEFT_TRY(check_tiling(header));
  return header;
}

}  // namespace weft::engine
