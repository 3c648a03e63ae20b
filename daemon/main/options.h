// Command line of weftd -> Config. Used once, on the main thread, before anything starts.
#pragma once

#include <string>

#include "config/config.h"

namespace weft {

// Exit codes of weftd. 78 is EX_CONFIG: the unit file tells systemd not to restart on it.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitConfig = 78;

struct Options {
  config::Config config;
  std::string config_path;  // empty in direct use
  bool check_only = false;
};

struct OptionsOutcome {
  bool run = false;  // false: print `text` and leave with exit_code
  int exit_code = kExitOk;
  std::string text;
  Options options;
};

OptionsOutcome parse_options(int argc, const char* const* argv);

}  // namespace weft
