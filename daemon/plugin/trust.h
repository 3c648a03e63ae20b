// Which plugin files may run. A plugin has the full power of the process, so the only question is
// who could have put the bytes there: every directory from / down and the file itself must belong
// to root (or, for development, to the user who runs weft) and be writable by nobody else. A
// world-writable directory with the sticky bit (/tmp) is accepted on the way when the next
// component is trusted itself, because nobody else can then rename or replace that component.
// Nobody untrusted can change anything on such a path, so checking the path and then opening it is
// no race. Any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace weft::plugin {

enum class TrustPolicy {
  kRootOnly,    // production
  kRootOrUser,  // development: files of the current user are as good as root's
  kUnchecked,   // tests whose files lie anywhere; symlinks and odd files are still refused
};

// path: absolute, to a regular file.
Status check_trust(const std::string& path, TrustPolicy policy);

}  // namespace weft::plugin
