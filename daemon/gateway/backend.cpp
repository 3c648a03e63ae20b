#include "gateway/backend.h"

namespace weft::gateway {

const char* to_string(ReplicaState state) {
  switch (state) {
    case ReplicaState::kStarting:
      return "starting";
    case ReplicaState::kLoading:
      return "loading";
    case ReplicaState::kReady:
      return "ready";
    case ReplicaState::kDraining:
      return "draining";
    case ReplicaState::kRestarting:
      return "restarting";
    case ReplicaState::kFailed:
      return "failed";
    case ReplicaState::kStopped:
      return "stopped";
  }
  return "unknown";
}

}  // namespace weft::gateway
