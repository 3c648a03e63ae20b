// Starts a weft-worker process connected by a socket pair. Loop thread (the call takes well under a
// millisecond).
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace weft::fabric {

struct SpawnedWorker {
  pid_t pid = -1;
  UniqueFd link;  // our end
};

// Runs `program --fd 3` with its end of the pair as descriptor 3. The child has default signal
// handling, an empty signal mask and a process group of its own, so that a Ctrl-C in the terminal
// reaches weftd alone and draining works.
Result<SpawnedWorker> spawn_worker(const std::string& program);

}  // namespace weft::fabric
