// Exit codes of weftctl, for scripts. Documented in --help and docs/weftctl.md; a test compares.
#pragma once

namespace weft::ctl {

enum ExitCode : int {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,
  kUnreachable = 3,
  kNotReady = 4,  // not ready, or not found
  kDenied = 5,
};

}  // namespace weft::ctl
