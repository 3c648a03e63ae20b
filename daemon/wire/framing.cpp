#include "wire/framing.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weft::wire {
namespace {

constexpr size_t kGatherMax = 64;
// Bytes handed out stay at the front of the buffer until they are worth a move.
constexpr size_t kCompactAt = 64 << 10;

uint32_t read_length(const char* p) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(p[i]);
  return value;
}

}  // namespace

Status append_frame(const Envelope& envelope, std::string* out, uint32_t limit) {
  const size_t size = envelope.ByteSizeLong();
  if (size > limit) {
    return make_error(ErrorCode::kInvalid,
                      "message of {} bytes is over the frame limit of {} bytes: send less at once",
                      size, limit);
  }
  const size_t start = out->size();
  out->resize(start + kFrameHeaderBytes + size);
  auto* p = reinterpret_cast<unsigned char*>(out->data() + start);
  for (size_t i = 0; i < kFrameHeaderBytes; ++i) {
    p[i] = static_cast<unsigned char>(size >> (8 * i) & 0xff);
  }
  envelope.SerializeWithCachedSizesToArray(p + kFrameHeaderBytes);
  return {};
}

void FrameDecoder::feed(std::string_view bytes) {
  if (!error_.empty()) return;
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
  } else if (start_ >= kCompactAt && start_ >= buffer_.size() / 2) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  buffer_.append(bytes);
}

Error FrameDecoder::fail(std::string message) {
  error_ = std::move(message);
  buffer_.clear();
  buffer_.shrink_to_fit();
  start_ = 0;
  return Error(ErrorCode::kPeer, error_);
}

Result<bool> FrameDecoder::next(Envelope* out) {
  if (!error_.empty()) return Error(ErrorCode::kPeer, error_);
  if (buffered() < kFrameHeaderBytes) return false;
  const uint32_t length = read_length(buffer_.data() + start_);
  if (length > limit_) {
    return fail(
        fmt::format("the peer announced a message of {} bytes, the limit is {}: both ends must "
                    "speak protocol {}",
                    length, limit_, kProtocolVersion));
  }
  if (buffered() - kFrameHeaderBytes < length) return false;
  if (length > 0x7fffffffu ||
      !out->ParseFromArray(buffer_.data() + start_ + kFrameHeaderBytes, static_cast<int>(length))) {
    return fail(fmt::format("a message of {} bytes is not an Envelope of protocol {}", length,
                            kProtocolVersion));
  }
  start_ += kFrameHeaderBytes + length;
  if (start_ == buffer_.size() && buffer_.capacity() > (1u << 20)) {
    std::string().swap(buffer_);  // do not keep the memory of one large message for ever
    start_ = 0;
  }
  return true;
}

bool WriteQueue::push(std::string frame) {
  if (!has_room()) return false;
  if (frame.empty()) return true;
  bytes_ += frame.size();
  frames_.push_back(std::move(frame));
  return true;
}

size_t WriteQueue::gather(struct iovec* out, size_t max) const {
  size_t n = 0;
  size_t skip = front_done_;
  for (const std::string& frame : frames_) {
    if (n == max) break;
    out[n].iov_base = const_cast<char*>(frame.data()) + skip;  // iovec is not const-correct
    out[n].iov_len = frame.size() - skip;
    skip = 0;
    ++n;
  }
  return n;
}

void WriteQueue::consume(size_t bytes) {
  WEFT_CHECK(bytes <= bytes_);
  bytes_ -= bytes;
  front_done_ += bytes;
  while (!frames_.empty() && front_done_ >= frames_.front().size()) {
    front_done_ -= frames_.front().size();
    frames_.pop_front();
  }
}

Result<WriteQueue::Flushed> WriteQueue::flush(int fd) {
  while (!empty()) {
    struct iovec pieces[kGatherMax];
    struct msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = gather(pieces, kGatherMax);
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      consume(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Flushed::kBlocked;
    } else if (errno != EINTR) {
      return make_error(ErrorCode::kPeer, "cannot write to the link: {}", std::strerror(errno));
    }
  }
  return Flushed::kAll;
}

}  // namespace weft::wire
