// The plugin as the host sees it: descriptor, settings, life, and every way a name can be wrong.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "temp_dir.h"
#include "weft/host.h"
#include "weft/storage.h"

extern "C" const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor);

namespace {

struct Plugin {
  weft_host host{};
  const weft_desc* desc = weft_plugin_query_v1(WEFT_ABI_MAJOR, WEFT_ABI_MINOR);
  const weft_storage_v1* table = nullptr;
  const weft_life* life = nullptr;
  weft_plugin* plugin = nullptr;
  weft_err err{sizeof(weft_err), 0, 0, ""};

  Plugin() {
    REQUIRE(desc != nullptr);
    host.struct_size = sizeof host;
    host.now_ns = [](const weft_host*) -> uint64_t { return 1000; };
    REQUIRE(desc->open(&host, &plugin, &err) == WEFT_OK);
    table = reinterpret_cast<const weft_storage_v1*>(desc->interfaces[0].table);
    life = desc->interfaces[0].life;
  }
  ~Plugin() { desc->close(plugin); }
};

struct Instance : Plugin {
  weft_instance* self = nullptr;
  Instance() {
    REQUIRE(life->create(plugin, nullptr, 0, &self, &err) == WEFT_OK);
    REQUIRE(life->start(self, &err) == WEFT_OK);
  }
  ~Instance() {
    life->stop(self);
    life->destroy(self);
  }
  weft_status open(const std::string& uri) {
    weft_object_info info{};
    info.struct_size = sizeof info;
    weft_object* object = nullptr;
    const weft_status status =
        table->open_object(self, {uri.data(), uri.size()}, &object, &info, &err);
    if (status == WEFT_OK) table->close_object(self, object);
    return status;
  }
  std::string etag(const std::string& uri) {
    weft_object_info info{};
    info.struct_size = sizeof info;
    weft_object* object = nullptr;
    REQUIRE(table->open_object(self, {uri.data(), uri.size()}, &object, &info, &err) == WEFT_OK);
    table->close_object(self, object);
    CHECK(info.align >= 1);
    return info.etag;
  }
};

weft_param int_param(const char* name, int64_t value) {
  weft_param param{};
  param.name = name;
  param.type = WEFT_KEY_INT;
  param.i = value;
  return param;
}

}  // namespace

TEST_CASE("the descriptor names one storage interface and refuses another major") {
  const Plugin p;
  CHECK(std::string(p.desc->name) == "storage_file");
  CHECK(p.desc->magic == WEFT_MAGIC);
  CHECK(std::string(p.desc->interfaces[0].id) == WEFT_STORAGE_ID);
  CHECK(p.desc->interfaces[1].id == nullptr);
  CHECK(p.table->head.struct_size == sizeof(weft_storage_v1));
  CHECK(p.table->head.revision == 1);
  CHECK(weft_plugin_query_v1(WEFT_ABI_MAJOR + 1, 0) == nullptr);
}

TEST_CASE("settings out of range are named") {
  Plugin p;
  weft_instance* self = nullptr;
  const weft_param none = int_param("threads", 0), many = int_param("threads", 65),
                   deep = int_param("queue", 65537);
  CHECK(p.life->create(p.plugin, &none, 1, &self, &p.err) == WEFT_E_CONFIG);
  CHECK(std::string(p.err.msg) == "setting \"threads\": expected 1 to 64, came 0");
  CHECK(p.life->create(p.plugin, &many, 1, &self, &p.err) == WEFT_E_CONFIG);
  CHECK(p.life->create(p.plugin, &deep, 1, &self, &p.err) == WEFT_E_CONFIG);
  CHECK(std::string(p.err.msg) == "setting \"queue\": expected 1 to 65536, came 65537");
  CHECK(self == nullptr);
  const weft_param good[] = {int_param("threads", 64), int_param("queue", 1)};
  REQUIRE(p.life->create(p.plugin, good, 2, &self, &p.err) == WEFT_OK);
  p.life->destroy(self);  // never started
  p.life->destroy(nullptr);
}

TEST_CASE("missing file, directory, FIFO and socket-like names are refused without hanging") {
  Instance s;
  const TempDir dir;
  CHECK(s.open(dir.file("none")) == WEFT_E_IO);
  CHECK(s.err.sys == ENOENT);
  CHECK(std::string(s.err.msg) == "open " + dir.file("none") + ": No such file or directory");
  CHECK(s.open(dir.path()) == WEFT_E_CONFIG);
  CHECK(std::string(s.err.msg) ==
        "expected " + dir.path() + " to be a regular file, it is a directory");
  REQUIRE(::mkfifo(dir.file("pipe").c_str(), 0600) == 0);
  CHECK(s.open(dir.file("pipe")) == WEFT_E_CONFIG);
  CHECK(std::string(s.err.msg) ==
        "expected " + dir.file("pipe") + " to be a regular file, it is a FIFO");
  CHECK(s.open("/dev/null") == WEFT_E_CONFIG);
  CHECK(s.open("s3://bucket/key") == WEFT_E_CONFIG);
  REQUIRE(::symlink("loop", dir.file("loop").c_str()) == 0);
  CHECK(s.open(dir.file("loop")) == WEFT_E_IO);
  CHECK(s.err.sys == ELOOP);
  CHECK(s.open("file://" + dir.write("ok", "x")) == WEFT_OK);
}

TEST_CASE("a file without read permission says which permission is needed") {
  Instance s;
  const TempDir dir;
  const std::string path = dir.write("secret", "x");
  REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  REQUIRE(::chmod(path.c_str(), 0000) == 0);
  const uid_t before = ::geteuid();
  if (before == 0) REQUIRE(::seteuid(65534) == 0);  // root may read everything
  const weft_status status = s.open(path);
  if (before == 0) REQUIRE(::seteuid(before) == 0);
  CHECK(status == WEFT_E_IO);
  CHECK(s.err.sys == EACCES);
  CHECK(std::string(s.err.msg).find(
            "Permission denied; the user weft runs as needs read permission") != std::string::npos);
}

TEST_CASE("the etag changes with the content and not without") {
  Instance s;
  const TempDir dir;
  const std::string path = dir.write("f", "one");
  const std::string first = s.etag(path);
  CHECK(s.etag("file://" + path) == first);
  dir.write("f", "longer");
  CHECK(s.etag(path) != first);
  const std::string second = s.etag(path);
  const timespec times[2] = {{1, 0}, {1, 5}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  CHECK(s.etag(path) != second);
}

TEST_CASE("list gives regular files in name order and stops when told") {
  Instance s;
  const TempDir dir;
  dir.write("b", "22");
  dir.write("a", "1");
  dir.write("c", "333");
  REQUIRE(::mkdir(dir.file("sub").c_str(), 0700) == 0);
  REQUIRE(::symlink("a", dir.file("link").c_str()) == 0);
  REQUIRE(::symlink("nowhere", dir.file("dangling").c_str()) == 0);
  struct Seen {
    std::vector<std::string> names;
    size_t stop_at = 100;
  } seen;
  const auto each = [](void* ctx, weft_str name, const weft_object_info* info) -> weft_status {
    auto* to = static_cast<Seen*>(ctx);
    to->names.push_back(std::string(name.data, name.len) + ":" + std::to_string(info->size));
    return to->names.size() == to->stop_at ? WEFT_PARTIAL : WEFT_OK;
  };
  const std::string uri = "file://" + dir.path() + "/";
  CHECK(s.table->list(s.self, {uri.data(), uri.size()}, each, &seen, &s.err) == WEFT_OK);
  CHECK(seen.names == std::vector<std::string>{"a:1", "b:2", "c:3", "link:1"});
  seen = {{}, 2};
  CHECK(s.table->list(s.self, {uri.data(), uri.size()}, each, &seen, &s.err) == WEFT_PARTIAL);
  CHECK(seen.names.size() == 2);
  const std::string file = dir.file("a"), none = dir.file("none");
  CHECK(s.table->list(s.self, {file.data(), file.size()}, each, &seen, &s.err) == WEFT_E_CONFIG);
  CHECK(std::string(s.err.msg) == "expected " + file + " to be a directory");
  CHECK(s.table->list(s.self, {none.data(), none.size()}, each, &seen, &s.err) == WEFT_E_IO);
}

TEST_CASE("drain takes no more work and waits for the unreaped") {
  Instance s;
  const TempDir dir;
  const std::string path = dir.write("f", "12345678");
  weft_object_info info{};
  info.struct_size = sizeof info;
  weft_object* object = nullptr;
  REQUIRE(s.table->open_object(s.self, {path.data(), path.size()}, &object, &info, &s.err) ==
          WEFT_OK);
  char dst[8];
  const weft_io io = {3, object, 0, 8, dst, WEFT_MEM_HOST, 0};
  REQUIRE(s.table->submit(s.self, &io, 1) == 1);
  CHECK(s.life->drain(s.self, 2000) == WEFT_AGAIN);
  CHECK(s.life->drain(s.self, 1000) == WEFT_OK);  // the deadline has come
  CHECK(s.table->submit(s.self, &io, 1) == 0);
  weft_done done{};
  REQUIRE(s.table->reap(s.self, &done, 1, UINT64_MAX) == 1);
  CHECK(std::string(dst, 8) == "12345678");
  CHECK(s.life->drain(s.self, 2000) == WEFT_OK);
  CHECK(s.table->cancel(s.self, 3) == WEFT_END);
  s.table->close_object(s.self, object);
}
