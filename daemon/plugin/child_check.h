// Tries a plugin in a process of its own before the daemon does: constructors, query and open may
// crash, hang, exit or corrupt memory, and then only the child is lost. The child is this program
// again (fork and exec, so that it holds none of our threads and memory), or a plain fork when no
// program is given.
//
// What it can say: "crashed in constructor: signal 11 (Segmentation fault)", "did not return from
// open within 5000 ms", "exited from query with status 3", or the loader's own refusal. Blocks up
// to the timeout: [slow], never on the loop.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/result.h"
#include "plugin/trust.h"

namespace weft::plugin {

struct ChildCheckOptions {
  TrustPolicy policy = TrustPolicy::kRootOnly;
  std::chrono::milliseconds timeout{5000};  // of each step: constructors, query, open, close
  // argv of a program whose main calls run_child_check_if_asked first, e.g.
  // {"/usr/libexec/weft/weft-worker"}. Empty = fork only; then the calling process should have few
  // threads, because the child has only the calling one.
  std::vector<std::string> program;
};

struct ChildReport {
  std::string name;
  std::string version;
  std::vector<std::string> interfaces;  // ids
};

Result<ChildReport> check_plugin_in_child(const std::string& path,
                                          const ChildCheckOptions& options);

// For main(): when argv asks for a check (argv[1] is "--check-plugin"), does it and returns the
// exit status; else -1.
int run_child_check_if_asked(int argc, char** argv);

}  // namespace weft::plugin
