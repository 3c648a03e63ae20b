// weftctl as a function: arguments and streams in, exit code out, so that tests run it inside their
// process. Commands come from one table, which also makes the help, the completion and (checked by
// a test) docs/weftctl.md.
//
// One thread, blocking.
#pragma once

#include <atomic>
#include <functional>
#include <istream>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/paths.h"
#include "ctl/api.h"
#include "ctl/exit_code.h"

namespace CLI {
class App;
}

namespace weft::ctl {

struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool in_is_terminal = false;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  const std::atomic<bool>* interrupted = nullptr;  // Ctrl-C: ends the running answer of a chat
  std::function<void()> clear_interrupt = {};      // before each answer
};

// All options of all commands; each command reads its own.
struct Options {
  std::string socket = existing_control_socket();
  bool json = false;
  std::string id;     // requests cancel
  std::string file;   // config check
  std::string shell;  // completion
  int64_t deadline_ms = -1;
  int64_t timeout_s = 300;  // wait
  std::string model;        // served name; plan: a directory
  bool drop_cache = false;  // audit
  std::string system;
  std::string effort;
  std::string message;
  bool message_given = false;
  bool no_thinking = false;
  int64_t max_tokens = 0;
  double temperature = -1;
  std::string memory, plugin_dir;  // plan, as the next
  int64_t max_sequences = 0, max_batch_tokens = 0, max_context = 0;
};

struct Context {
  const Options& options;
  Console& console;

  Api api() const;
  int fail(const ApiFailure& failure) const;  // prints it, returns the exit code
  int fail(int code, std::string_view message) const;
};

struct Command {
  std::string_view name;   // "requests cancel"
  std::string_view usage;  // its arguments
  std::string_view help;
  std::string_view role;  // "look": whoever may open the socket; "administer": root and weftd's
                          // user; "none": no daemon
  void (*declare)(CLI::App&, Options&);
  int (*run)(const Context&);
};

const std::vector<Command>& commands();

int run_weftctl(const std::vector<std::string>& arguments, Console& console);

// Implemented in chat.cpp.
int run_chat(const Context& context);
// Implemented in audit.cpp.
int run_audit(const Context& context);
// Implemented in plan.cpp.
int run_plan(const Context& context);

}  // namespace weft::ctl
