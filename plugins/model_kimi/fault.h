// Failure inside the plugin: an ABI status and a message for a person. Functions return a Fault and
// fill their outputs only when it is ok; the plugin's edge (plugin.cpp) turns it into a weft_err.
// Values; any thread.
#pragma once

#include <fmt/format.h>
#include <weft/base.h>

#include <string>
#include <utility>

namespace weft_kimi {

struct [[nodiscard]] Fault {
  weft_status code = WEFT_OK;
  std::string message;

  bool ok() const { return code == WEFT_OK; }
};

template <class... Args>
Fault fault(weft_status code, fmt::format_string<Args...> format, Args&&... args) {
  return Fault{code, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace weft_kimi

// Returns the Fault of an expression from the enclosing function unless it is ok.
#define KIMI_TRY(expr)                     \
  do {                                     \
    ::weft_kimi::Fault kimi_try_ = (expr); \
    if (!kimi_try_.ok()) return kimi_try_; \
  } while (false)
