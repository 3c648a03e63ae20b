#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "unit/engine_cache/shrink.h"

namespace weft::engine {
namespace {

constexpr unsigned kChildSeconds = 100;  // a run that hangs has failed

struct Report {
  RunCounts counts;
  uint32_t ok = 0;
  char message[500] = {};
};

[[noreturn]] void be_child(const Scenario& scenario, bool loud, int out) {
  ::signal(SIGABRT, SIG_DFL);  // doctest's handlers would tell the parent's story
  ::signal(SIGSEGV, SIG_DFL);
  ::alarm(kChildSeconds);
  if (!loud) {
    const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) ::dup2(null, STDERR_FILENO);
  }
  Report report;
  try {
    World world(scenario);
    world.run();
    report.counts = world.counts();
    report.ok = 1;
  } catch (const std::exception& e) {
    const std::string_view text = e.what();
    std::copy_n(text.data(), std::min(text.size(), sizeof(report.message) - 1), report.message);
    // The world is not taken down: a fault leaves it in a state in which that may not work.
  }
  const ssize_t n = ::write(out, &report, sizeof(report));
  ::_exit(n == sizeof(report) && report.ok == 1 ? 0 : 1);
}

// What failed, without where: another mistake met while shrinking is another story.
std::string kind_of(const RunResult& result) {
  const size_t at = result.message.find(": ");
  return at == std::string::npos ? result.message : result.message.substr(at, 24);
}

}  // namespace

RunResult run_in_child(const Scenario& scenario, bool loud) {
  int ends[2];
  RunResult out;
  if (::pipe2(ends, O_CLOEXEC) != 0) return out;
  const pid_t child = ::fork();
  if (child == 0) be_child(scenario, loud, ends[1]);
  ::close(ends[1]);
  Report report;
  const ssize_t n = child > 0 ? ::read(ends[0], &report, sizeof(report)) : -1;
  ::close(ends[0]);
  int status = 0;
  if (child > 0) ::waitpid(child, &status, 0);
  if (n == sizeof(report)) {
    out.ok = report.ok == 1 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    out.counts = report.counts;
    out.message = report.message;
  } else {
    out.message = fmt::format("the process ended with status {}", status);
  }
  return out;
}

Scenario shrink(Scenario failing, uint32_t runs) {
  const RunResult first = run_in_child(failing, /*loud=*/false);
  size_t piece = std::max<size_t>(failing.ops.size() / 2, 1);
  while (runs > 0) {
    bool shorter = false;
    // From the end: what comes after the fault goes at once.
    for (size_t end = failing.ops.size(); end > 0 && runs > 0;) {
      const size_t begin = end > piece ? end - piece : 0;
      Scenario candidate = failing;
      candidate.ops.erase(candidate.ops.begin() + static_cast<ptrdiff_t>(begin),
                          candidate.ops.begin() + static_cast<ptrdiff_t>(end));
      --runs;
      const RunResult result = run_in_child(candidate, /*loud=*/false);
      if (!result.ok && kind_of(result) == kind_of(first)) {
        failing = std::move(candidate);
        shorter = true;
      }
      end = begin;
    }
    if (piece == 1 && !shorter) break;
    if (!shorter || piece > 1) piece = std::max<size_t>(std::min(piece, failing.ops.size()) / 2, 1);
  }
  return failing;
}

}  // namespace weft::engine
