// "weftctl plan": asks weft-worker, which stands beside this program, what a model would need. The
// worker is the one who would load it, so the answer cannot differ from what happens.
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/paths.h"
#include "base/unique_fd.h"
#include "config/units.h"
#include "ctl/ctl.h"
#include "ctl/format.h"

namespace weft::ctl {
namespace {

constexpr size_t kReportBytesMax = 16u << 20;

struct ChildOutput {
  int status = -1;
  std::string out, err;
};

std::string read_all(int fd) {
  std::string text;
  char buffer[64 << 10];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || text.size() > kReportBytesMax) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

// The error text is short (a pipe holds it), so it can be read after the report.
Result<ChildOutput> run_child(const std::vector<std::string>& arguments) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0) {
    return make_error(ErrorCode::kIo, "cannot make a pipe: {}", std::strerror(errno));
  }
  UniqueFd out_read(out[0]), out_write(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) {
    return make_error(ErrorCode::kIo, "cannot make a pipe: {}", std::strerror(errno));
  }
  UniqueFd err_read(err[0]), err_write(err[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out_write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err_write.get(), STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    return make_error(ErrorCode::kNotFound, "cannot start {}: {}", arguments[0],
                      std::strerror(failed));
  }
  out_write.reset();
  err_write.reset();
  ChildOutput result;
  result.out = read_all(out_read.get());
  result.err = read_all(err_read.get());
  while (::waitpid(pid, &result.status, 0) < 0 && errno == EINTR) {
  }
  return result;
}

// Plugins beside the binary are as trustworthy as the binary itself when the same user owns both.
bool owns_binary_dir() {
  struct stat st {};
  return ::stat(executable_dir().c_str(), &st) == 0 && st.st_uid == ::geteuid();
}

Result<std::vector<std::string>> worker_arguments(const Options& o) {
  namespace fs = std::filesystem;
  const std::string plugins =
      o.plugin_dir.empty() ? executable_dir() + "/../lib/weft/plugins" : o.plugin_dir;
  std::vector<std::string> out = {
      executable_dir() + "/weft-worker", "--plan",
      "model=" + fs::absolute(o.model).lexically_normal().string(),
      "plugin_dir=" + fs::absolute(plugins).lexically_normal().string()};
  if (owns_binary_dir()) out.push_back("trust_user_plugins=true");
  if (!o.memory.empty()) {
    const auto bytes = config::parse_size(o.memory);
    if (!bytes) {
      return make_error(ErrorCode::kInvalid, "--memory {}: expected a size such as 8GiB", o.memory);
    }
    out.push_back(fmt::format("memory={}", *bytes));
  }
  const auto number = [&out](const char* key, int64_t value) {
    if (value > 0) out.push_back(fmt::format("{}={}", key, value));
  };
  number("max_sequences", o.max_sequences);
  number("max_batch_tokens", o.max_batch_tokens);
  number("max_context", o.max_context);
  return out;
}

double real_at(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_number() ? value->as_double().value_or(0) : 0;
}

std::string megabytes(double bytes) { return fmt::format("{:.2f} MB", bytes / 1e6); }

void print_plan(std::ostream& out, const JsonValue& p) {
  out << terminal_safe(fmt::format("{}: {} layers of {}, {:.3g} parameters\n\n",
                                   text_at(p, "model"), int_at(p, "layers"), int_at(p, "hidden"),
                                   real_at(p, "parameters")));
  Table weights({"WEIGHTS", "TENSORS", "STORED"});
  for (const JsonValue& part : list_at(p, "parts")) {
    weights.add({text_at(part, "name"), std::to_string(int_at(part, "tensors")),
                 megabytes(real_at(part, "bytes"))});
  }
  weights.add({"sum", "", megabytes(real_at(p, "checkpoint_bytes"))});
  out << weights.to_string() << "\n";
  const double more = real_at(p, "weight_bytes") - real_at(p, "checkpoint_bytes");
  Table memory({"MEMORY", "SIZE", ""});
  memory.add({"weights", megabytes(real_at(p, "weight_bytes")),
              fmt::format("stored {:+.2f}% for layout and alignment",
                          100 * more / std::max(1.0, real_at(p, "checkpoint_bytes")))});
  memory.add({"workspace", megabytes(real_at(p, "workspace_bytes")),
              fmt::format("for {} rows in a step", int_at(p, "max_batch_tokens"))});
  memory.add(
      {"caches", megabytes(real_at(p, "cache_bytes")),
       fmt::format("{:.0f} B per token, {} per sequence", real_at(p, "cache_bytes_per_token"),
                   megabytes(real_at(p, "state_bytes_per_sequence")))});
  memory.add({"sum", megabytes(real_at(p, "total_bytes")), ""});
  out << memory.to_string() << "\n";
  out << fmt::format("{} of cache hold {} sequences, {} tokens in all, at most {} in one\n",
                     megabytes(real_at(p, "cache_budget_bytes")), int_at(p, "max_sequences"),
                     int_at(p, "cache_tokens"), int_at(p, "max_context"));
  if (real_at(p, "unused_bytes") > 0) {
    out << megabytes(real_at(p, "unused_bytes")) << " of the files are not part of the model\n";
  }
}

}  // namespace

int run_plan(const Context& context) {
  const Options& o = context.options;
  const auto arguments = worker_arguments(o);
  if (!arguments.ok()) return context.fail(kUsage, arguments.error().message);
  const Result<ChildOutput> child = run_child(*arguments);
  if (!child.ok()) return context.fail(kFailure, child.error().message);
  if (!WIFEXITED(child->status) || WEXITSTATUS(child->status) != 0) {
    std::string why = child->err;
    while (!why.empty() && why.back() == '\n') why.pop_back();
    return context.fail(kFailure, why.empty() ? "weft-worker ended without an answer" : why);
  }
  const Result<JsonValue> report = parse_json(child->out);
  if (!report.ok()) {
    return context.fail(kFailure, "weft-worker gave no report: " + report.error().message);
  }
  if (o.json) {
    context.console.out << dump_json(*report) << "\n";
  } else {
    print_plan(context.console.out, *report);
  }
  return kOk;
}

}  // namespace weft::ctl
