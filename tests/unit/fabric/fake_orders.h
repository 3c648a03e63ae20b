// What a test tells the fake worker to do with a request: the first token of its prompt.
#pragma once

#include <cstdint>

namespace weft::fabric_test {

enum class Order : int32_t {
  kEcho = 1,      // the rest of the prompt comes back, one token per message
  kHold,          // admitted, then nothing until it is cancelled
  kExit,          // exits with status 5
  kLastWords,     // a last token for everything held, then SIGKILL
  kGarbage,       // bytes that are no frame
  kHang,          // reads and writes no more
  kForgetful,     // drops the request and reports itself idle
  kCloseAndHang,  // closes the link, but lives on
  kCopying,       // takes no step for a while, but copies; then it is done
  kAuditless,     // admitted, then held; audits are answered no more
};

}  // namespace weft::fabric_test
