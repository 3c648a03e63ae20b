// fenced: calls a plugin and turns an exception that crosses the C line into a status and a
// message. Plugins must not throw, but one that does at start should be refused with a reason, not
// end the process. Only for calls outside the step loop.
#pragma once

#include <weft/base.h>

#include <exception>

#include "plugin/status.h"

namespace weft::plugin {

template <class Call>
weft_status fenced(weft_err* err, Call&& call) {
  try {
    return call();
  } catch (const std::exception& problem) {
    return put_err(
        err, WEFT_E_INTERNAL,
        fmt::format("expected a status, came a C++ exception: {}; the plugin must be repaired",
                    problem.what()));
  } catch (...) {
    return put_err(err, WEFT_E_INTERNAL,
                   "expected a status, came a C++ exception; the plugin must be repaired");
  }
}

}  // namespace weft::plugin
