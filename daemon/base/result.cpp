#include "base/result.h"

namespace weft {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return "invalid";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kIo:
      return "I/O error";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kPeer:
      return "peer error";
    case ErrorCode::kPermission:
      return "permission denied";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

}  // namespace weft
