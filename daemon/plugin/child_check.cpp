#include "plugin/child_check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/unique_fd.h"
#include "plugin/host_table.h"
#include "plugin/loader.h"
#include "plugin/status.h"

namespace weft::plugin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFlag = "--check-plugin";
constexpr size_t kReportMax = 64 * 1024;  // of what a child may tell us
constexpr int kSteps = 4;                 // constructor, query, open, close
constexpr int kReportFd = 3;              // in an exec'd child

// The child writes one line per event, a letter and text:
//   C constructor is next   Q query is next   O open is next   X close is next   (where we are,
//   should it go wrong) N name   V version   I interface id   E error text   D done
class Reporter {
 public:
  explicit Reporter(int fd) : fd_(fd) {}
  void say(char kind, std::string_view text = {}) const {
    std::string line(1, kind);
    line += clean_text(text);
    line += '\n';
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t n = ::write(fd_, line.data() + sent, line.size() - sent);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;  // the parent is gone; nobody wants the report
      sent += static_cast<size_t>(n);
    }
  }

 private:
  int fd_;
};

int run_check(const std::string& path, TrustPolicy policy, const Reporter& report) {
  auto host = HostTable::make({});
  LoadSteps steps;
  steps.before_dlopen = [&] { report.say('C'); };
  steps.before_query = [&] { report.say('Q'); };
  auto plugin = Loader(policy).load(path, steps);
  if (!plugin.ok()) {
    report.say('E', plugin.error().message);
    return 1;
  }
  report.say('N', (*plugin)->name());
  report.say('V', (*plugin)->version());
  for (const weft_interface* i = (*plugin)->desc().interfaces; i->id != nullptr; ++i)
    report.say('I', i->id);
  report.say('O');
  if (Status status = (*plugin)->open(*host); !status.ok()) {
    report.say('E', status.error().message);
    return 1;
  }
  report.say('X');
  (*plugin)->close();
  report.say('D');
  return 0;
}

// A child must not outlive us, leave core files, or keep our signal mask.
void prepare_child() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  sigset_t empty;
  sigemptyset(&empty);
  sigprocmask(SIG_SETMASK, &empty, nullptr);
  for (const int sig : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGINT, SIGPIPE})
    signal(sig, SIG_DFL);
}

struct Child {
  pid_t pid = -1;
  UniqueFd report;

  Child() = default;
  Child(Child&& other) noexcept
      : pid(std::exchange(other.pid, -1)), report(std::move(other.report)) {}
  ~Child() {
    if (pid < 0) return;
    ::kill(pid, SIGKILL);
    wait_status();
  }
  int wait_status() {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    pid = -1;
    return status;
  }
  // A plugin may close our pipe and hang: then its end is not the process's end.
  bool ends_before(Clock::time_point deadline) const {
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    for (;;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd wait{process.get(), POLLIN, 0};
      if (::poll(&wait, 1, static_cast<int>(std::clamp<long>(left, 0, 60000))) > 0) return true;
      if (left <= 0) return false;
    }
  }
};

const char* policy_word(TrustPolicy policy) {
  return policy == TrustPolicy::kRootOnly     ? "root"
         : policy == TrustPolicy::kRootOrUser ? "user"
                                              : "unchecked";
}

Result<Child> start_child(const std::string& path, const ChildCheckOptions& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return make_error(ErrorCode::kIo, "plugin check: pipe: {}", strerror(errno));
  Child child;
  child.report.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  // Everything that allocates happens before the fork: the child of a threaded process may only do
  // little.
  std::vector<std::string> words = options.program;
  words.insert(words.end(), {kFlag, policy_word(options.policy), path});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  child.pid = ::fork();
  if (child.pid < 0) return make_error(ErrorCode::kIo, "plugin check: fork: {}", strerror(errno));
  if (child.pid > 0) return child;
  prepare_child();
  if (options.program.empty()) {
    // _exit: the parent's atexit handlers and buffers are not ours.
    ::_exit(run_check(path, options.policy, Reporter(write_end.get())));
  }
  if (write_end.get() == kReportFd) {
    ::fcntl(kReportFd, F_SETFD, 0);
  } else {
    ::dup2(write_end.get(), kReportFd);
  }
  ::execv(argv[0], argv.data());
  const std::string_view failed = "Ecannot run the checking program\n";
  static_cast<void>(!::write(kReportFd, failed.data(), failed.size()));
  ::_exit(127);
}

struct Outcome {
  ChildReport report;
  std::string error;  // the loader's
  char step = 'S';    // last step that began
  bool done = false;
};

void take_line(std::string_view line, Outcome* out) {
  if (line.empty()) return;
  const std::string_view text = line.substr(1);
  switch (line[0]) {
    case 'C':
    case 'Q':
    case 'O':
    case 'X':
      out->step = line[0];
      break;
    case 'N':
      out->report.name = text;
      break;
    case 'V':
      out->report.version = text;
      break;
    case 'I':
      out->report.interfaces.emplace_back(text);
      break;
    case 'E':
      out->error = text;
      break;
    case 'D':
      out->done = true;
      break;
    default:
      break;
  }
}

// Reads lines until the pipe ends. False when one step took longer than the timeout.
bool read_report(int fd, std::chrono::milliseconds timeout, Outcome* out) {
  std::string pending;
  size_t total = 0;
  int steps = 0;
  Clock::time_point deadline = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd wait{fd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::min<long>(left, 60000)));
    if (ready <= 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || total > kReportMax) return true;
    total += static_cast<size_t>(n);
    pending.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      const char before = out->step;
      take_line(std::string_view(pending).substr(0, end), out);
      if (out->step != before && ++steps <= kSteps) deadline = Clock::now() + timeout;
    }
    // Done means done: a plugin's own threads may keep the pipe open for ever.
    if (out->done || !out->error.empty()) return true;
  }
}

const char* step_name(char step) {
  switch (step) {
    case 'C':
      return "constructor";
    case 'Q':
      return "query";
    case 'O':
      return "open";
    case 'X':
      return "close";
    default:
      return "start";
  }
}

constexpr const char* kAdvice = "remove the file, or install a repaired one";

}  // namespace

Result<ChildReport> check_plugin_in_child(const std::string& path,
                                          const ChildCheckOptions& options) {
  WEFT_ASSIGN(Child child, start_child(path, options));
  Outcome outcome;
  bool in_time = read_report(child.report.get(), options.timeout, &outcome);
  if (outcome.done) return std::move(outcome.report);
  if (!outcome.error.empty()) return make_error(ErrorCode::kInvalid, "{}", outcome.error);
  in_time = in_time && child.ends_before(Clock::now() + options.timeout);
  if (!in_time) {
    return make_error(ErrorCode::kTimeout, "plugin {}: did not return from {} within {} ms; {}",
                      path, step_name(outcome.step), options.timeout.count(), kAdvice);
  }
  const int status = child.wait_status();
  if (WIFSIGNALED(status)) {
    return make_error(ErrorCode::kInvalid, "plugin {}: crashed in {}: signal {} ({}); {}", path,
                      step_name(outcome.step), WTERMSIG(status), strsignal(WTERMSIG(status)),
                      kAdvice);
  }
  return make_error(ErrorCode::kInvalid, "plugin {}: exited from {} with status {}; {}", path,
                    step_name(outcome.step), WEXITSTATUS(status), kAdvice);
}

int run_child_check_if_asked(int argc, char** argv) {
  if (argc != 4 || std::string_view(argv[1]) != kFlag) return -1;
  const std::string_view word = argv[2];
  const TrustPolicy policy = word == "unchecked" ? TrustPolicy::kUnchecked
                             : word == "user"    ? TrustPolicy::kRootOrUser
                                                 : TrustPolicy::kRootOnly;
  ::fcntl(kReportFd, F_SETFD, FD_CLOEXEC);
  prepare_child();
  return run_check(argv[3], policy, Reporter(kReportFd));
}

}  // namespace weft::plugin
