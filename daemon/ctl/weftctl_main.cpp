#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>

#include "ctl/ctl.h"

namespace {

// The signal handler can reach nothing else; it only sets this.
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // "weftctl requests | head" ends quietly
  const bool talks = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  weft::ctl::Console console{std::cin, std::cout, std::cerr};
  console.in_is_terminal = isatty(STDIN_FILENO) != 0;
  console.out_is_terminal = isatty(STDOUT_FILENO) != 0;
  console.err_is_terminal = isatty(STDERR_FILENO) != 0;
  if (talks) {
    // One Ctrl-C stops the answer, a second one (or one at the prompt) ends the program.
    struct sigaction action {};
    action.sa_handler = [](int) {
      if (g_interrupted.exchange(true)) _exit(130);
    };
    sigaction(SIGINT, &action, nullptr);
    console.interrupted = &g_interrupted;
    console.clear_interrupt = [] { g_interrupted = false; };
  }
  return weft::ctl::run_weftctl(std::vector<std::string>(argv + 1, argv + argc), console);
}
