#include "ctl/ctl.h"

#include <CLI/CLI.hpp>
#include <map>

#include "ctl/format.h"

namespace weft::ctl {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 failure, 2 wrong usage, 3 weftd not reachable, 4 not ready or not found,\n"
    "5 permission denied. --json prints what the API answered. docs/weftctl.md has examples.";

// Creates the subcommands along "requests cancel" and returns the last one.
CLI::App* subcommand(CLI::App& root, std::string_view path, std::string_view help,
                     std::map<std::string, CLI::App*, std::less<>>* made) {
  CLI::App* app = &root;
  for (size_t end = 0; end != std::string_view::npos;) {
    const size_t begin = end == 0 ? 0 : end + 1;
    end = path.find(' ', begin);
    CLI::App*& next = (*made)[std::string(path.substr(0, end))];
    if (next == nullptr) {
      next = app->add_subcommand(std::string(path.substr(begin, end - begin)), "");
      next->fallthrough();
    }
    app = next;
  }
  app->description(std::string(help));
  return app;
}

}  // namespace

Api Context::api() const {
  http::ClientOptions client;
  client.cancel = console.interrupted;
  return Api(socket_address(options.socket), client);
}

int Context::fail(const ApiFailure& failure) const {
  return fail(failure.exit_code, failure.message);
}

int Context::fail(int code, std::string_view message) const {
  console.err << "weftctl: " << terminal_safe(message) << "\n";
  return code;
}

int run_weftctl(const std::vector<std::string>& arguments, Console& console) {
  Options options;
  CLI::App app("weftctl: look at weftd and steer it", "weftctl");
  app.footer(kFooter);
  app.set_version_flag("--version", "weftctl " WEFT_VERSION);
  app.add_option("--socket", options.socket, "Control socket of weftd")
      ->envname("WEFT_SOCKET")
      ->capture_default_str();
  app.add_flag("--json", options.json, "Print the API's JSON");
  app.require_subcommand(1);
  std::map<std::string, CLI::App*, std::less<>> made;
  std::map<const CLI::App*, const Command*> by_app;
  for (const Command& command : commands()) {
    CLI::App* sub = subcommand(app, command.name, command.help, &made);
    sub->footer(std::string("Usage: weftctl ") + std::string(command.name) +
                (command.usage.empty() ? "" : " " + std::string(command.usage)));
    command.declare(*sub, options);
    by_app[sub] = &command;
  }
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& e) {
    // CLI11 speaks in exceptions; they end here. To an unknown command it only says that one is
    // missing.
    const std::vector<std::string> rest = app.remaining();
    if (e.get_name() == "RequiredError" && app.get_subcommands().empty() && !rest.empty()) {
      console.err << terminal_safe(
          fmt::format("weftctl: unknown command \"{}\"; see weftctl --help\n", rest.front()));
      return kUsage;
    }
    const int rc = app.exit(e, console.out, console.err);
    return rc == 0 ? kOk : kUsage;
  }
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  const auto found = by_app.find(chosen);
  const Context context{options, console};
  if (found == by_app.end()) {  // "config" alone
    return context.fail(kUsage, "\"" + chosen->get_name() + "\" needs a subcommand; see weftctl " +
                                    chosen->get_name() + " --help");
  }
  const int code = found->second->run(context);
  if (console.out.flush()) return code;
  // A full disk or a closed descriptor: who reads the output must not take it for the answer.
  return code == kOk ? context.fail(kFailure, "cannot write to the standard output") : code;
}

}  // namespace weft::ctl
