// Framing of the weftd <-> weft-worker link: every message is a 4-byte little-endian length
// followed by that many bytes of one serialised Envelope. The decoder takes bytes in any pieces
// (non-blocking reads), the write queue holds frames until the socket takes them and says when its
// owner must stop producing.
//
// No I/O policy here: sockets and threads belong to the caller. Each object is used by one thread
// at a time.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/result.h"
#include "wire/weft.pb.h"

namespace weft::wire {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 4;
// Largest Envelope. A Generate with images is the largest message there is; everything else stays
// far below.
inline constexpr uint32_t kFrameLimitDefault = 256u << 20;

// Appends one frame to `out`. kInvalid, with `out` untouched, when the message is larger than
// `limit`.
Status append_frame(const Envelope& envelope, std::string* out,
                    uint32_t limit = kFrameLimitDefault);

// Incremental decoder. A peer that announces a frame over the limit, or sends bytes that are not an
// Envelope, gives kPeer, and so does every later call: the stream has lost its frame boundaries and
// must be closed.
class FrameDecoder {
 public:
  explicit FrameDecoder(uint32_t limit = kFrameLimitDefault) : limit_(limit) {}

  // Memory grows with bytes received, never with the announced length.
  void feed(std::string_view bytes);
  // True and `out` filled when a whole frame was there; false when more bytes are needed.
  Result<bool> next(Envelope* out);
  // Bytes received and not yet handed out.
  size_t buffered() const { return buffer_.size() - start_; }
  // True when no partial frame is held: the only state in which a peer may close the stream
  // politely.
  bool at_boundary() const { return buffered() == 0 && error_.empty(); }

 private:
  Error fail(std::string message);

  uint32_t limit_;
  std::string buffer_;
  size_t start_ = 0;  // first byte not handed out
  std::string error_;
};

// Frames on their way to a socket, first in first out, with a byte bound.
class WriteQueue {
 public:
  enum class Flushed { kAll, kBlocked };

  explicit WriteQueue(size_t max_bytes) : max_bytes_(max_bytes) {}

  // One frame may overshoot the bound (a frame is never split or refused for its size alone); false
  // and nothing queued when the bound is already reached.
  [[nodiscard]] bool push(std::string frame);
  bool has_room() const { return bytes_ < max_bytes_; }
  bool empty() const { return frames_.empty(); }
  size_t bytes() const { return bytes_; }

  // Fills up to `max` entries with the front of the queue; consume() what was written of them.
  size_t gather(struct iovec* out, size_t max) const;
  void consume(size_t bytes);
  // Writes to a non-blocking socket until the queue is empty or the socket is full. kPeer when the
  // other end is gone.
  Result<Flushed> flush(int fd);

 private:
  size_t max_bytes_;
  size_t bytes_ = 0;
  size_t front_done_ = 0;  // bytes of the front frame already written
  std::deque<std::string> frames_;
};

}  // namespace weft::wire
