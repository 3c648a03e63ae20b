#include "bench/generator/checkpoint_writer.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "bench/generator/tensor_plan.h"
#include "bench/generator/values.h"

namespace weft::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kPieceElements = 1 << 19;
constexpr uint64_t kHeaderAlign = 8;
constexpr uint64_t kSpaceMargin = 16 << 20;

Error io_error(const std::string& path, int error) {
  return make_error(ErrorCode::kIo, "{}: {}", path, std::strerror(error));
}

Status write_at(int fd, const std::string& path, const void* data, uint64_t bytes,
                uint64_t offset) {
  const auto* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return io_error(path, n < 0 ? errno : ENOSPC);
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return {};
}

struct Shard {
  std::string name;
  UniqueFd fd;
  size_t first = 0, last = 0;  // tensors
  uint64_t data_bytes = 0, data_start = 0;
};

struct Piece {
  uint32_t tensor = 0, shard = 0;
  uint64_t begin = 0, count = 0;  // elements
  uint64_t offset = 0;            // in the file
};

class CheckpointWriter {
 public:
  CheckpointWriter(const ModelShape& shape, const GenerateOptions& options)
      : shape_(shape), options_(options), tensors_(plan_tensors(shape)) {}

  Status run() {
    WEFT_TRY(prepare_directory());
    const Status status = write_all();
    if (!status.ok()) remove_created();
    return status;
  }
  uint64_t bytes() const { return bytes_; }
  uint64_t tensors() const { return tensors_.size(); }
  uint64_t shards() const { return shards_.size(); }

 private:
  Status prepare_directory();
  Status check_space() const;
  void cut_shards();
  Status open_shards();
  Status write_values();
  void work(std::atomic<size_t>* next);
  Status write_all();
  Status write_text(const std::string& name, const std::string& text);
  void remove_created();
  std::string path_of(const std::string& name) const { return options_.directory + "/" + name; }

  const ModelShape& shape_;
  const GenerateOptions& options_;
  const std::vector<PlannedTensor> tensors_;
  std::vector<Shard> shards_;
  std::vector<Piece> pieces_;
  std::vector<std::string> created_;
  uint64_t bytes_ = 0;
  std::vector<fs::path> made_directories_;  // innermost first
  std::mutex mutex_;                        // guards failure_
  Status failure_;
  std::atomic<bool> failed_{false};
};

Status CheckpointWriter::prepare_directory() {
  std::error_code ec;
  const fs::path dir = options_.directory;
  if (options_.directory.empty()) {
    return make_error(ErrorCode::kInvalid, "expected a directory to write to");
  }
  if (fs::exists(dir, ec)) {
    if (!fs::is_directory(dir, ec)) {
      return make_error(ErrorCode::kInvalid, "{} is not a directory", options_.directory);
    }
    const bool empty = fs::is_empty(dir, ec);
    if (ec) return io_error(options_.directory, ec.value());
    if (!empty) {
      return make_error(ErrorCode::kInvalid,
                        "{} is not empty: name a new directory, nothing is overwritten",
                        options_.directory);
    }
    return {};
  }
  for (fs::path p = dir; !p.empty() && !fs::exists(p, ec); p = p.parent_path()) {
    made_directories_.push_back(p);
  }
  fs::create_directories(dir, ec);
  if (!ec) return {};
  remove_created();
  return io_error(options_.directory, ec.value());
}

Status CheckpointWriter::check_space() const {
  uint64_t need = kSpaceMargin;
  for (const PlannedTensor& t : tensors_) need += t.bytes();
  struct statvfs space {};
  if (::statvfs(options_.directory.c_str(), &space) != 0) {
    return io_error(options_.directory, errno);
  }
  const uint64_t free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  if (free_bytes >= need) return {};
  return make_error(ErrorCode::kUnavailable, "{}: the checkpoint needs {} MiB, {} MiB are free",
                    options_.directory, need >> 20, free_bytes >> 20);
}

void CheckpointWriter::cut_shards() {
  Shard shard;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    shard.data_bytes += tensors_[i].bytes();
    bytes_ += tensors_[i].bytes();
    shard.last = i + 1;
    if (shard.data_bytes < options_.shard_bytes && i + 1 < tensors_.size()) continue;
    shards_.push_back(std::move(shard));
    shard = Shard();
    shard.first = i + 1;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }
}

// Creates every file with its header and its full length, so that a full disk shows before the
// work.
Status CheckpointWriter::open_shards() {
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    Shard& shard = shards_[s];
    Json header = Json::object();
    uint64_t at = 0;
    for (size_t i = shard.first; i < shard.last; ++i) {
      const PlannedTensor& t = tensors_[i];
      header[t.name] = {
          {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes()}}};
      at += t.bytes();
    }
    std::string text = header.dump();
    text.resize((text.size() + kHeaderAlign - 1) / kHeaderAlign * kHeaderAlign, ' ');
    shard.data_start = 8 + text.size();
    const std::string path = path_of(shard.name);
    shard.fd.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!shard.fd.valid()) return io_error(path, errno);
    created_.push_back(path);
    const int full = ::posix_fallocate(shard.fd.get(), 0,
                                       static_cast<off_t>(shard.data_start + shard.data_bytes));
    if (full != 0) return io_error(path, full);
    unsigned char length[8];
    for (size_t i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(text.size() >> (8 * i));
    WEFT_TRY(write_at(shard.fd.get(), path, length, 8, 0));
    WEFT_TRY(write_at(shard.fd.get(), path, text.data(), text.size(), 8));
    uint64_t offset = shard.data_start;
    for (size_t i = shard.first; i < shard.last; ++i) {
      const uint64_t n = tensors_[i].elements(), size = tensors_[i].bytes() / n;
      for (uint64_t begin = 0; begin < n; begin += kPieceElements) {
        pieces_.push_back({static_cast<uint32_t>(i), s, begin, std::min(kPieceElements, n - begin),
                           offset + begin * size});
      }
      offset += tensors_[i].bytes();
    }
  }
  return {};
}

void CheckpointWriter::work(std::atomic<size_t>* next) {
  const auto buffer = std::make_unique_for_overwrite<uint64_t[]>(kPieceElements * 4 / 8);
  while (!failed_.load(std::memory_order_relaxed)) {
    const size_t i = next->fetch_add(1);
    if (i >= pieces_.size()) return;
    const Piece& p = pieces_[i];
    const PlannedTensor& t = tensors_[p.tensor];
    fill_values(t, tensor_stream(t.name, options_.seed), p.begin, p.count, buffer.get());
    const Shard& shard = shards_[p.shard];
    const uint64_t bytes = p.count * (t.bytes() / t.elements());
    Status written = write_at(shard.fd.get(), path_of(shard.name), buffer.get(), bytes, p.offset);
    if (written.ok()) continue;
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) failure_ = std::move(written);
  }
}

Status CheckpointWriter::write_values() {
  std::atomic<size_t> next{0};
  const uint32_t count =
      options_.threads != 0 ? options_.threads : std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < count; ++i) threads.emplace_back([&] { work(&next); });
  work(&next);
  for (std::thread& t : threads) t.join();
  return std::move(failure_);
}

Status CheckpointWriter::write_text(const std::string& name, const std::string& text) {
  const std::string path = path_of(name);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) return io_error(path, errno);
  created_.push_back(path);
  return write_at(fd.get(), path, text.data(), text.size(), 0);
}

Status CheckpointWriter::write_all() {
  WEFT_TRY(check_space());
  cut_shards();
  WEFT_TRY(open_shards());
  WEFT_TRY(write_values());
  Json map = Json::object();
  for (Shard& shard : shards_) {
    for (size_t i = shard.first; i < shard.last; ++i) map[tensors_[i].name] = shard.name;
    // Delayed writes fail here, if anywhere.
    if (::close(shard.fd.release()) != 0) return io_error(path_of(shard.name), errno);
  }
  const Json index = {{"metadata", {{"total_size", bytes_}}}, {"weight_map", map}};
  WEFT_TRY(write_text("model.safetensors.index.json", index.dump(0) + "\n"));
  // Last: a directory without it is no model.
  return write_text("config.json", config_json(shape_).dump(1) + "\n");
}

void CheckpointWriter::remove_created() {
  std::error_code ignored;
  for (const std::string& path : created_) fs::remove(path, ignored);
  for (const fs::path& path : made_directories_) fs::remove(path, ignored);
}

}  // namespace

Result<GenerateReport> generate_checkpoint(const ModelShape& shape,
                                           const GenerateOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  CheckpointWriter writer(shape, options);
  WEFT_TRY(writer.run());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return GenerateReport{writer.bytes(), writer.tensors(), writer.shards(), took.count()};
}

}  // namespace weft::bench
