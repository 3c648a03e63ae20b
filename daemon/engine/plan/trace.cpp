#include "engine/plan/trace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/log.h"

namespace weft::engine {
namespace {

constexpr std::string_view kMagic = "WEFTPLAN";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kNameMax = 256;
constexpr size_t kFlushBytes = 256 << 10;
constexpr uint64_t kFlushNs = 1'000'000'000;
constexpr size_t kFrameBytes = sizeof(uint32_t) + sizeof(uint64_t);

template <class T>
void put_raw(T value, std::string* out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof value);
  out->append(bytes, sizeof bytes);
}
template <class T>
T get_raw(std::string_view bytes, size_t at) {
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return out;
}
uint64_t checksum(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

// Length, checksum, contents. The header is framed like a record.
void put_framed(std::string_view contents, std::string* out) {
  put_raw(static_cast<uint32_t>(contents.size()), out);
  put_raw(checksum(contents), out);
  out->append(contents);
}

Result<std::string_view> get_framed(std::string_view bytes, size_t* at) {
  if (bytes.size() - *at < kFrameBytes) {
    return make_error(ErrorCode::kCorrupt, "the file ends in the middle, after {} bytes",
                      bytes.size());
  }
  const uint64_t length = get_raw<uint32_t>(bytes, *at);
  if (length > kTraceRecordMax || length > bytes.size() - *at - kFrameBytes) {
    return make_error(ErrorCode::kCorrupt,
                      "the file ends in the middle: {} bytes expected, {} left", length,
                      bytes.size() - *at - kFrameBytes);
  }
  const std::string_view contents = bytes.substr(*at + kFrameBytes, length);
  const uint64_t expected = get_raw<uint64_t>(bytes, *at + sizeof(uint32_t));
  if (checksum(contents) != expected) {
    return make_error(ErrorCode::kCorrupt, "checksum {:016x} expected, got {:016x}", expected,
                      checksum(contents));
  }
  *at += kFrameBytes + length;
  return contents;
}

// Only an ordinary file: a device or a link stays where it is.
Status move_away(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISREG(info.st_mode)) {
    return make_error(ErrorCode::kInvalid,
                      "the scheduler trace {} is there and no ordinary file: name another", path);
  }
  if (std::rename(path.c_str(), (path + ".old").c_str()) == 0) return {};
  return make_error(ErrorCode::kIo, "cannot move the old trace {} out of the way: {}", path,
                    std::strerror(errno));
}

}  // namespace

TraceWriter::TraceWriter(std::string path, UniqueFd fd, uint64_t bytes_max)
    : path_(std::move(path)), fd_(std::move(fd)), bytes_max_(bytes_max) {}

Result<std::unique_ptr<TraceWriter>> TraceWriter::open(const std::string& path,
                                                       std::string_view scheduler,
                                                       uint64_t bytes_max) {
  WEFT_TRY(move_away(path));
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640));
  if (!fd.valid()) {
    return make_error(ErrorCode::kIo, "cannot create the scheduler trace {}: {}", path,
                      std::strerror(errno));
  }
  std::unique_ptr<TraceWriter> out(new TraceWriter(path, std::move(fd), bytes_max));
  const std::string_view name = scheduler.substr(0, kNameMax);
  std::string header(kMagic);
  put_raw(kVersion, &header);
  header.append(name);
  put_framed(header, &out->buffer_);
  out->bytes_ = out->buffer_.size();
  out->flush();
  return out;
}

TraceWriter::~TraceWriter() { flush(); }

void TraceWriter::append(const weft_sched_view& view, const weft_sched_plan& plan, uint64_t plan_ns,
                         bool by_plugin) {
  if (!fd_.valid()) return;
  record_.clear();
  encoder_.encode(view, plan, plan_ns, by_plugin, &record_);
  if (bytes_ + kFrameBytes + record_.size() > bytes_max_ || record_.size() > kTraceRecordMax) {
    flush();
    if (fd_.valid()) stop(fmt::format("it has reached its size limit of {} bytes", bytes_max_));
    return;
  }
  put_framed(record_, &buffer_);
  bytes_ += kFrameBytes + record_.size();
  ++records_;
  if (buffer_.size() < kFlushBytes && view.now_ns < flushed_ns_ + kFlushNs) return;
  flushed_ns_ = view.now_ns;
  flush();
}

void TraceWriter::flush() {
  std::string_view rest = buffer_;
  while (fd_.valid() && !rest.empty()) {
    const ssize_t n = ::write(fd_.get(), rest.data(), rest.size());
    if (n > 0) {
      rest.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      stop(fmt::format("writing failed: {}", n == 0 ? "no progress" : std::strerror(errno)));
    }
  }
  buffer_.clear();
}

void TraceWriter::stop(const std::string& why) {
  log_warning("the scheduler trace {} ends after {} records: {}", path_, records_, why);
  fd_.reset();
}

Result<std::unique_ptr<TraceReader>> TraceReader::open(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(ErrorCode::kNotFound, "cannot open the trace {}", path);
  std::ostringstream all;
  all << in.rdbuf();
  return from_bytes(std::move(all).str());
}

Result<std::unique_ptr<TraceReader>> TraceReader::from_bytes(std::string bytes) {
  std::unique_ptr<TraceReader> out(new TraceReader());
  out->bytes_ = std::move(bytes);
  Status header = out->read_header();
  if (!header.ok()) return std::move(header).error().within("scheduler trace");
  return out;
}

Status TraceReader::read_header() {
  const size_t least = kFrameBytes + kMagic.size() + sizeof(uint32_t);
  if (bytes_.size() < least ||
      std::string_view(bytes_).substr(kFrameBytes, kMagic.size()) != kMagic) {
    return Error(ErrorCode::kCorrupt, "this is not a scheduler trace: it does not start as one");
  }
  WEFT_ASSIGN(const std::string_view header, get_framed(bytes_, &at_));
  if (header.size() < kMagic.size() + sizeof(uint32_t)) {
    return make_error(ErrorCode::kCorrupt, "a header of {} bytes is too short", header.size());
  }
  const uint32_t version = get_raw<uint32_t>(header, kMagic.size());
  if (version != kVersion) {
    return make_error(ErrorCode::kUnsupported,
                      "version {} expected, got {}: use the weft-sim of that worker", kVersion,
                      version);
  }
  scheduler_ = header.substr(kMagic.size() + sizeof(uint32_t));
  return {};
}

Result<bool> TraceReader::next(TraceRecord* out) {
  if (at_ == bytes_.size()) return false;
  Result<std::string_view> contents = get_framed(bytes_, &at_);
  Status status;
  if (contents.ok()) {
    status = decoder_.decode(*contents, out);
  } else {
    status = std::move(contents).error();
  }
  if (!status.ok()) {
    at_ = bytes_.size();  // records build on each other: nothing behind this one can be read
    return std::move(status).error().within(fmt::format("record {}", records_));
  }
  ++records_;
  return true;
}

}  // namespace weft::engine
