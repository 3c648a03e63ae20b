// The zoo through the real loader: every hostile plugin is refused in exactly these words, and the
// process lives on.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <weft/storage.h>

#include <filesystem>
#include <fstream>

#include "plugin/child_check.h"
#include "plugin/host_table.h"
#include "plugin/instance.h"
#include "plugin/loader.h"
#include "plugin/registry.h"

using namespace weft;
using namespace weft::plugin;
namespace fs = std::filesystem;

namespace {

// A private directory for files that must be arranged first. Not below links, owned by us: fit for
// trust checks.
class TempDir {
 public:
  TempDir() {
    std::string name = (fs::canonical(fs::temp_directory_path()) / "weft-zoo-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempDir() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string str() const { return path_.string(); }
  // Copies a zoo plugin in; mode as installed files have it.
  std::string add(const std::string& zoo_name, const std::string& as = "",
                  mode_t mode = 0644) const {
    const std::string to = *this / (as.empty() ? zoo_name + ".so" : as);
    fs::copy_file(fs::path(WEFT_ZOO_DIR) / (zoo_name + ".so"), to);
    REQUIRE(chmod(to.c_str(), mode) == 0);
    return to;
  }

 private:
  fs::path path_;
};

std::string zoo(const std::string& name) { return std::string(WEFT_ZOO_DIR) + "/" + name + ".so"; }

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string load_error(const std::string& path, TrustPolicy policy = TrustPolicy::kUnchecked) {
  auto plugin = Loader(policy).load(path);
  return plugin.ok() ? "loaded" : plugin.error().message;
}

std::string open_error(const std::string& name) {
  auto host = HostTable::make({});
  auto plugin = Loader(TrustPolicy::kUnchecked).load(zoo(name));
  if (!plugin.ok()) return plugin.error().message;
  const Status status = (*plugin)->open(*host);
  return status.ok() ? "open" : status.error().message;
}

const std::string kBuild =
    "build the plugin as a shared object for this machine, with WEFT_PLUGIN from weft/note.h";

struct Refusal {
  const char* plugin;
  const char* message;
};

const Refusal kRefusals[] = {
    {"sound", "open"},
    {"note_minor", "open"},
    {"extra_export", "open"},
    {"foreign_interface", "open"},
    {"bad_magic",
     "descriptor magic: expected 0x54464557, came 0x12345678; the plugin must be repaired by "
     "its author"},
    {"short_desc",
     "descriptor struct_size: expected at least 72, came 16; the plugin must be repaired by "
     "its author"},
    {"desc_major",
     "descriptor ABI major: expected 1, came 2 (plugin built for ABI 2.0); update weft, or "
     "install the plugin's release for this weft"},
    {"desc_name",
     "descriptor name: expected \"desc_name\" as in the note, came \"somebody_else\"; the "
     "plugin must be repaired by its author"},
    {"desc_version",
     "descriptor version: expected \"1.0.0\" as in the note, came \"2.0.0\"; the plugin must "
     "be repaired by its author"},
    {"null_text",
     "descriptor version: expected text, came NULL; the plugin must be repaired by its author"},
    {"null_open",
     "descriptor open: expected a function, came NULL; the plugin must be repaired by its "
     "author"},
    {"null_function",
     "weft.storage/1 submit: expected a function, came NULL; the plugin must be repaired by "
     "its author"},
    {"null_capability",
     "weft.storage/1 list: expected a function because caps announces it, came NULL; the "
     "plugin must be repaired by its author"},
    {"short_table",
     "weft.storage/1 table struct_size: expected at least 72, came 24; rebuild the plugin "
     "with weft's headers"},
    {"bad_revision",
     "weft.storage/1 table revision: expected 1 as in the id, came 2; the plugin must be "
     "repaired by its author"},
    {"bad_id",
     "interface id: expected name/revision such as weft.storage/1, came \"weft.storage\"; the "
     "plugin must be repaired by its author"},
    {"no_life",
     "weft.storage/1 life: expected a table, came NULL; the plugin must be repaired by its "
     "author"},
    {"null_destroy",
     "weft.storage/1 life destroy: expected a function, came NULL; the plugin must be "
     "repaired by its author"},
    {"no_interfaces",
     "descriptor interfaces: expected at least one, came none; the plugin must be repaired by "
     "its author"},
    {"twice_interface",
     "interface weft.storage/1: expected once, came twice; the plugin must be repaired by its "
     "author"},
    {"bad_default",
     "weft.storage/1 key default: setting \"cache\": expected a size such as 4096, 64MiB or "
     "1.5GB, came \"64 fathoms\"; the plugin must be repaired by its author"},
    {"bad_key_type",
     "weft.storage/1 key 0 \"cache\" type: expected WEFT_KEY_STR (1) to WEFT_KEY_DURATION "
     "(6), came 77; the plugin must be repaired by its author"},
    {"refuses_host",
     "weft_plugin_query_v1: expected a descriptor for host ABI 1.0, came NULL: the plugin "
     "refuses this host; install the plugin's release for this weft"},
    {"no_symbol",
     "symbol: expected the file to export weft_plugin_query_v1, came none; define it with "
     "WEFT_PLUGIN from weft/note.h"},
    {"no_note",
     "note: expected an ELF note of owner \"weft\", came none; build the plugin as a shared "
     "object for this machine, with WEFT_PLUGIN from weft/note.h"},
    {"note_major",
     "note ABI major: expected 1, came 2 (plugin built for ABI 2.0); update weft, or install "
     "the plugin's release for this weft"},
    {"two_notes",
     "note: expected exactly one weft note, came two; link only one WEFT_PLUGIN into a plugin"},
    {"throws_open",
     "plugin throws_open: open: expected a status, came a C++ exception: no tide today; the "
     "plugin must be repaired (WEFT_E_INTERNAL)"},
    {"sdk_throws",
     "plugin sdk_throws: open: depth: expected 1 to 64, came 65; lower it (WEFT_E_CONFIG)"},
};

}  // namespace

TEST_CASE("each hostile plugin is refused in its words") {
  for (const Refusal& r : kRefusals) {
    CAPTURE(std::string(r.plugin));
    CHECK(open_error(r.plugin) == std::string(r.message));
  }
}

TEST_CASE("a note segment of absurd size and a message without end are cut short") {
  const std::string huge = open_error("huge_note");  // the exact size is the linker's choice
  CHECK(huge.starts_with("ELF note segment: expected at most 65536 bytes, came 100"));
  // 496 bytes in the buffer: ESC became a blank, the bytes behind are as they came.
  CHECK(open_error("fails_open") ==
        "plugin fails_open: open:  [2Jno" + std::string(490, 'x') + " (WEFT_E_DEVICE)");
}

TEST_CASE("files that are not plugins are refused before any code runs") {
  TempDir dir;
  write_file(dir / "text.so", "I am a text file, honestly.\n");
  CHECK(load_error(dir / "text.so") ==
        "file: expected an ELF shared object (first bytes 7f 45 4c 46), came 49 20 61 6d; " +
            kBuild);
  write_file(dir / "empty.so", "");
  CHECK(load_error(dir / "empty.so") ==
        "file: expected an ELF shared object, came an empty file; copy it again");
  const std::string sound = read_file(zoo("sound"));
  write_file(dir / "header_only.so", std::string_view(sound).substr(0, 40));
  CHECK(load_error(dir / "header_only.so") ==
        "ELF header: expected 64 bytes, the file has 40; it is cut short, copy it again");
  write_file(dir / "half.so", std::string_view(sound).substr(0, sound.size() / 4));
  CHECK(load_error(dir / "half.so").find("it is cut short, copy it again") != std::string::npos);
#if defined(__x86_64__)
  const std::string machine = "x86-64 (62)";
#else
  const std::string machine = "aarch64 (183)";
#endif
  std::string other_machine = sound;
  other_machine[18] = 8;  // e_machine: MIPS
  write_file(dir / "mips.so", other_machine);
  CHECK(load_error(dir / "mips.so") == "ELF machine: expected " + machine + ", came 8; " + kBuild);
  std::string program = sound;
  program[16] = 2;  // e_type: executable
  write_file(dir / "program.so", program);
  CHECK(load_error(dir / "program.so") ==
        "ELF type: expected a shared object (3), came 2; " + kBuild);
}

TEST_CASE("links, directories, pipes and odd names are refused") {
  TempDir dir;
  const std::string real = dir.add("sound");
  fs::create_symlink(real, dir / "link.so");
  CHECK(load_error(dir / "link.so") ==
        dir / "link.so" + ": expected a regular file, came a symbolic link; use the real path " +
            real);
  fs::create_directory(dir / "folder.so");
  CHECK(load_error(dir / "folder.so") ==
        dir / "folder.so" + ": expected a regular file, came a directory; move it away");
  REQUIRE(mkfifo((dir / "pipe.so").c_str(), 0644) == 0);
  CHECK(load_error(dir / "pipe.so") ==
        dir / "pipe.so" + ": expected a regular file, came a FIFO; move it away");
  CHECK(load_error(dir.add("sound", "renamed.so")) ==
        "file name: expected sound.so as in the note, came renamed.so; rename the file");
  CHECK(load_error(dir / "absent.so") == dir / "absent.so" + ": No such file or directory");
  CHECK(load_error("sound.so") == "plugin path: expected an absolute path, came \"sound.so\"");
}

TEST_CASE("only files that nobody else can write are trusted") {
  TempDir dir;
  const std::string path = dir.add("sound");
  CHECK(load_error(path, TrustPolicy::kRootOrUser) == "loaded");
  REQUIRE(chmod(path.c_str(), 0664) == 0);
  CHECK(load_error(path, TrustPolicy::kRootOrUser) ==
        path + ": mode: expected not writable by group or others, came 0664; run: chmod go-w " +
            path);
  CHECK(load_error(path) == "loaded");  // unchecked means unchecked
  REQUIRE(chmod(path.c_str(), 0644) == 0);

  REQUIRE(chmod(dir.str().c_str(), 0777) == 0);
  CHECK(load_error(path, TrustPolicy::kRootOrUser) ==
        dir.str() +
            ": mode: expected not writable by group or others, came 0777; run: chmod go-w " +
            dir.str() +
            " (of directories that others may write, only those with the sticky bit, like /tmp, "
            "are accepted)");
  REQUIRE(chmod(dir.str().c_str(), 01777) == 0);
  CHECK(load_error(path, TrustPolicy::kRootOrUser) == "loaded");
  REQUIRE(chmod(dir.str().c_str(), 0755) == 0);

  fs::create_directory_symlink(dir.str(), dir / "alias");
  CHECK(load_error(dir / "alias/sound.so", TrustPolicy::kRootOrUser) ==
        dir / "alias" + ": expected a directory, came a symbolic link; use the real path " +
            dir.str());
}

TEST_CASE("only root's files are trusted in production") {
  TempDir dir;
  const std::string path = dir.add("sound");
  if (geteuid() != 0) {  // our own file is not root's
    CHECK(load_error(path, TrustPolicy::kRootOnly).find("owner: expected root (uid 0), came uid") !=
          std::string::npos);
    return;
  }
  CHECK(load_error(path, TrustPolicy::kRootOnly) == "loaded");
  REQUIRE(chown(path.c_str(), 65534, 65534) == 0);
  CHECK(load_error(path, TrustPolicy::kRootOnly) ==
        path + ": owner: expected root (uid 0), came uid 65534; run: chown root " + path);
  CHECK(load_error(path, TrustPolicy::kRootOrUser) ==
        path +
            ": owner: expected root (uid 0) or the user who runs weft, came uid 65534; run: chown "
            "root " +
            path);
  REQUIRE(chown(path.c_str(), 0, 0) == 0);
  REQUIRE(chown(dir.str().c_str(), 65534, 65534) == 0);
  CHECK(load_error(path, TrustPolicy::kRootOnly) ==
        dir.str() + ": owner: expected root (uid 0), came uid 65534; run: chown root " + dir.str());
}

TEST_CASE("a child process takes the blow of plugins that crash, exit or hang") {
  ChildCheckOptions fork_only;
  fork_only.policy = TrustPolicy::kUnchecked;
  fork_only.timeout = std::chrono::seconds(60);
  ChildCheckOptions exec = fork_only;
  exec.program = {WEFT_CHECK_MAIN};
  const auto check = [](const char* name, const ChildCheckOptions& options) {
    auto report = check_plugin_in_child(zoo(name), options);
    return report.ok() ? "sound" : report.error().message;
  };
  for (const ChildCheckOptions& options : {fork_only, exec}) {
    CAPTURE(options.program.size());
    auto sound = check_plugin_in_child(zoo("sound"), options);
    REQUIRE(sound.ok());
    CHECK(sound->name == "sound");
    CHECK(sound->version == "1.0.0");
    CHECK(sound->interfaces == std::vector<std::string>{"weft.storage/1"});
    CHECK(check("crash_constructor", options) ==
          "plugin " + zoo("crash_constructor") +
              ": crashed in constructor: signal 11 (Segmentation fault); remove the file, or "
              "install a repaired one");
    CHECK(check("crash_query", options) ==
          "plugin " + zoo("crash_query") +
              ": crashed in query: signal 6 (Aborted); remove the file, or install a repaired one");
    CHECK(
        check("exit_constructor", options) ==
        "plugin " + zoo("exit_constructor") +
            ": exited from constructor with status 3; remove the file, or install a repaired one");
    CHECK(check("bad_magic", options) == open_error("bad_magic"));
    CHECK(check("no_note", options) == open_error("no_note"));
    CHECK(check("throws_open", options) == open_error("throws_open"));
  }
  fork_only.timeout = std::chrono::milliseconds(1500);
  for (const char* name : {"hang_open", "hang_silent"}) {
    CHECK(check(name, fork_only) == "plugin " + zoo(name) +
                                        ": did not return from open within 1500 ms; remove the "
                                        "file, or install a repaired one");
  }
  exec.program = {"/nonexistent/checker"};
  CHECK(check("sound", exec) == "cannot run the checking program");
}

TEST_CASE("a directory scan keeps every file with its state and reason") {
  TempDir dir;
  dir.add("sound");
  dir.add("bad_magic");
  dir.add("note_major");
  dir.add("fails_open");
  dir.add("no_note", "not_a_plugin.txt");
  write_file(dir / "text.so", "text");
  auto host = HostTable::make({});
  auto scanned = Registry::scan(dir.str(), TrustPolicy::kRootOrUser);
  REQUIRE(scanned.ok());
  Registry& registry = **scanned;
  REQUIRE(registry.records().size() == 5);
  CHECK(registry.record("sound")->state == PluginState::kFound);
  CHECK(registry.record("bad_magic")->state == PluginState::kFound);  // its note is fine
  CHECK(registry.record("note_major")->state == PluginState::kRefused);
  CHECK(registry.record("text")->state == PluginState::kRefused);
  CHECK(registry.record("not_a_plugin") == nullptr);
  CHECK(!registry.find_interface(WEFT_STORAGE_ID));

  registry.open_all(*host);
  CHECK(registry.record("sound")->state == PluginState::kOpen);
  CHECK(registry.record("sound")->interfaces.at(0).id == "weft.storage/1");
  CHECK(registry.record("bad_magic")->state == PluginState::kRefused);
  CHECK(registry.record("bad_magic")->reason == open_error("bad_magic"));
  CHECK(registry.record("fails_open")->state == PluginState::kFailed);
  CHECK(registry.find_interface(WEFT_STORAGE_ID).plugin == registry.find("sound"));
  CHECK(registry.find("bad_magic") == nullptr);
  CHECK(registry.load("bad_magic").error().message.find("is refused: descriptor magic") !=
        std::string::npos);
  CHECK(registry.load("missing").error().code == ErrorCode::kNotFound);

  registry.disable("sound", "three bad plans");
  CHECK(registry.record("sound")->state == PluginState::kDisabled);
  CHECK(registry.find("sound") == nullptr);
  CHECK(registry.open("sound", *host).error().message ==
        "plugin sound is disabled: three bad plans");
  CHECK(Registry::scan(dir / "nowhere", TrustPolicy::kRootOrUser).error().code ==
        ErrorCode::kNotFound);
}

TEST_CASE("vetting a directory keeps the sound plugins and survives the others") {
  TempDir dir;
  for (const char* name : {"sound", "crash_constructor", "bad_magic", "no_note"}) dir.add(name);
  auto scanned = Registry::scan(dir.str(), TrustPolicy::kUnchecked);
  REQUIRE(scanned.ok());
  Registry& registry = **scanned;
  ChildCheckOptions options;
  options.policy = TrustPolicy::kUnchecked;
  options.timeout = std::chrono::seconds(60);
  options.program = {WEFT_CHECK_MAIN};
  registry.vet(options);
  CHECK(registry.record("sound")->state == PluginState::kFound);
  CHECK(registry.record("sound")->interfaces.at(0).id == WEFT_STORAGE_ID);
  CHECK(registry.record("crash_constructor")->state == PluginState::kRefused);
  CHECK(registry.record("crash_constructor")->reason.find("crashed in constructor: signal 11") !=
        std::string::npos);
  CHECK(registry.record("bad_magic")->reason == open_error("bad_magic"));
  CHECK(registry.record("no_note")->reason == open_error("no_note"));
  REQUIRE(registry.load("sound").ok());
  CHECK(registry.record("sound")->interfaces.size() == 1);
}

TEST_CASE("of two plugins with one name the newest version is used") {
  TempDir one, two;
  const std::string old_path = one.add("twin_old", "twin.so");
  const std::string new_path = two.add("twin_new", "twin.so");
  for (const std::vector<std::string>& order :
       {std::vector{one.str(), two.str()}, std::vector{two.str(), one.str()}}) {
    auto registry = Registry::scan(order, TrustPolicy::kRootOrUser);
    REQUIRE(registry.ok());
    REQUIRE((*registry)->records().size() == 2);
    CHECK((*registry)->record("twin")->version == "1.10.0");
    CHECK((*registry)->record("twin")->state == PluginState::kFound);
    for (const PluginRecord& r : (*registry)->records()) {
      if (r.path != old_path) continue;
      CHECK(r.state == PluginState::kRefused);
      CHECK(r.reason == "name: expected one plugin called twin, came two; " + new_path +
                            " (version 1.10.0) is used because it is newer, remove " + old_path +
                            " (version 1.9.3)");
    }
    auto loaded = (*registry)->load("twin");
    REQUIRE(loaded.ok());
    CHECK((*loaded)->version() == "1.10.0");
  }
}

TEST_CASE("settings reach an instance only as its key table allows") {
  auto host = HostTable::make({});
  auto plugin = Loader(TrustPolicy::kUnchecked).load(zoo("sound"));
  REQUIRE(plugin.ok());
  CHECK(!Instance::create(**plugin, WEFT_STORAGE_ID, {}).ok());  // not open yet
  REQUIRE((*plugin)->open(*host).ok());
  auto bad = Instance::create(**plugin, WEFT_STORAGE_ID, {{"cahce", "1GiB"}});
  REQUIRE(!bad.ok());
  CHECK(bad.error().message ==
        "plugin sound: weft.storage/1 settings: setting \"cahce\" is unknown; did you mean "
        "\"cache\"? (How much to cache.)");
  CHECK(Instance::create(**plugin, "weft.model/1", {}).error().code == ErrorCode::kNotFound);
  auto good = Instance::create(**plugin, WEFT_STORAGE_ID, {{"cache", "1GiB"}});
  REQUIRE(good.ok());
  CHECK(good->start().ok());
  CHECK(*good->drain(0));
}

TEST_CASE("a plugin built with the released headers still works") {
  auto host = HostTable::make({});
  auto plugin = Loader(TrustPolicy::kUnchecked).load(WEFT_ZOO_RELEASED);
  REQUIRE(plugin.ok());
  REQUIRE((*plugin)->open(*host).ok());
  auto instance = Instance::create(**plugin, WEFT_STORAGE_ID, {{"size_max", "1KiB"}});
  REQUIRE(instance.ok());
  CHECK(instance->start().ok());
  const std::string uri = "null:7";
  CHECK(instance->table<weft_storage_v1>()->probe((*plugin)->handle(), {uri.data(), uri.size()}) >
        0);
}
