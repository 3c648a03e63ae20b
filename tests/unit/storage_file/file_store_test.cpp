#include "file_store.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <set>

#include "file_object.h"
#include "temp_dir.h"

namespace {

using storage_file::FileObject;
using storage_file::FileStore;
using storage_file::kPieceBytes;
using storage_file::StoreOptions;

constexpr uint64_t kForeverNs = UINT64_MAX;

std::string pattern(size_t n) {
  std::string bytes(n, '\0');
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>((i * 31 + (i >> 8) * 7 + 1) & 0xff);
  return bytes;
}

std::unique_ptr<FileObject> open_file(const std::string& path) {
  storage_file::Failure failure;
  auto object = FileObject::open(path, &failure);
  REQUIRE_MESSAGE(object != nullptr, failure.message);
  return object;
}

weft_io read_of(uint64_t id, const FileObject& object, uint64_t offset, uint64_t len, void* dst) {
  auto* handle = reinterpret_cast<weft_object*>(const_cast<FileObject*>(&object));
  return {id, handle, offset, len, dst, WEFT_MEM_HOST, 0};
}

weft_done reap_one(FileStore& store) {
  weft_done done{};
  REQUIRE(store.reap(&done, 1, kForeverNs) == 1);
  return done;
}

// Holds reads back until opened; counts those that have arrived.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_for_arrivals(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= n; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool open_ = false;
};

void start(FileStore& store) {
  std::string error;
  REQUIRE_MESSAGE(store.start(&error), error);
}

}  // namespace

TEST_CASE("reads deliver the bytes of the range, large ones in pieces") {
  const TempDir dir;
  const std::string bytes = pattern(kPieceBytes * 2 + 12345);
  const auto object = open_file(dir.write("f", bytes));
  FileStore store({});
  start(store);
  std::string got(bytes.size() - 7, '\0');
  const weft_io io = read_of(9, *object, 7, got.size(), got.data());
  REQUIRE(store.submit(&io, 1) == 1);
  const weft_done done = reap_one(store);
  CHECK(done.id == 9);
  CHECK(done.status == WEFT_OK);
  CHECK(done.bytes == got.size());
  CHECK(got == bytes.substr(7));
  CHECK(store.idle());
}

TEST_CASE("no pread asks for more than one piece, short and interrupted reads are continued") {
  const TempDir dir;
  const std::string bytes = pattern(100'000);
  const auto object = open_file(dir.write("f", bytes));
  std::atomic<int> calls{0};
  std::atomic<size_t> largest{0};
  StoreOptions options;
  options.read = [&](int fd, void* dst, size_t len, off_t offset) -> ssize_t {
    largest = std::max(largest.load(), len);
    if (calls++ % 3 == 0) return errno = EINTR, -1;
    return ::pread(fd, dst, std::min<size_t>(len, 777), offset);
  };
  FileStore store(options);
  start(store);
  std::string got(bytes.size(), '\0');
  const weft_io io = read_of(1, *object, 0, got.size(), got.data());
  REQUIRE(store.submit(&io, 1) == 1);
  CHECK(reap_one(store).status == WEFT_OK);
  CHECK(got == bytes);
  CHECK(largest <= kPieceBytes);
  CHECK(calls > 100'000 / 777);
}

TEST_CASE("a file that ends early is corrupt and says how much came") {
  const TempDir dir;
  const std::string path = dir.write("f", pattern(1000));
  const auto object = open_file(path);
  CHECK(object->info().size == 1000);
  REQUIRE(::truncate(path.c_str(), 600) == 0);  // after open, before the read
  FileStore store({});
  start(store);
  std::string got(1000, '\0');
  const weft_io io = read_of(1, *object, 100, 900, got.data());
  REQUIRE(store.submit(&io, 1) == 1);
  const weft_done done = reap_one(store);
  CHECK(done.status == WEFT_E_CORRUPT);
  CHECK(done.bytes == 500);
}

TEST_CASE("a read error carries errno and the bytes before it") {
  const TempDir dir;
  const auto object = open_file(dir.write("f", pattern(1000)));
  StoreOptions options;
  options.read = [](int fd, void* dst, size_t len, off_t offset) -> ssize_t {
    if (offset >= 512) return errno = EIO, -1;
    return ::pread(fd, dst, std::min<size_t>(len, 512), offset);
  };
  FileStore store(options);
  start(store);
  std::string got(1000, '\0');
  const weft_io io = read_of(1, *object, 0, 1000, got.data());
  REQUIRE(store.submit(&io, 1) == 1);
  const weft_done done = reap_one(store);
  CHECK(done.status == WEFT_E_IO);
  CHECK(done.sys == EIO);
  CHECK(done.bytes == 512);
}

TEST_CASE("a full queue accepts a prefix and takes more only after a reap") {
  const TempDir dir;
  const auto object = open_file(dir.write("f", pattern(64)));
  Gate gate;
  StoreOptions options;
  options.threads = 1;
  options.queue = 3;
  options.read = [&](int fd, void* dst, size_t len, off_t offset) {
    gate.pass();
    return ::pread(fd, dst, len, offset);
  };
  FileStore store(options);
  start(store);
  char dst[8][4];
  std::vector<weft_io> ios;
  for (uint64_t i = 0; i < 8; ++i) ios.push_back(read_of(i, *object, i * 4, 4, dst[i]));
  CHECK(store.submit(ios.data(), 8) == 3);
  CHECK(store.submit(ios.data() + 3, 5) == 0);
  weft_done done[8];
  CHECK(store.reap(done, 8, 0) == 0);
  gate.open();
  std::set<uint64_t> ids;
  while (ids.size() < 3) ids.insert(reap_one(store).id);
  CHECK(ids == std::set<uint64_t>{0, 1, 2});
  CHECK(store.submit(ios.data() + 3, 5) == 3);
  // Completed but unreaped reads still hold their places: the bound is on everything the store
  // remembers.
  gate.wait_for_arrivals(6);
  CHECK(store.submit(ios.data() + 6, 2) == 0);
}

TEST_CASE("cancel of a waiting read completes it at once, the others are untouched") {
  const TempDir dir;
  const auto object = open_file(dir.write("f", pattern(64)));
  Gate gate;
  StoreOptions options;
  options.threads = 1;
  options.read = [&](int fd, void* dst, size_t len, off_t offset) {
    gate.pass();
    return ::pread(fd, dst, len, offset);
  };
  FileStore store(options);
  start(store);
  char dst[3][4];
  const weft_io ios[3] = {read_of(10, *object, 0, 4, dst[0]), read_of(11, *object, 4, 4, dst[1]),
                          read_of(12, *object, 8, 4, dst[2])};
  REQUIRE(store.submit(ios, 3) == 3);
  gate.wait_for_arrivals(1);
  CHECK(store.cancel(11));
  weft_done done = reap_one(store);
  CHECK(done.id == 11);
  CHECK(done.status == WEFT_E_CANCELLED);
  CHECK(done.bytes == 0);
  CHECK_FALSE(store.cancel(11));
  CHECK_FALSE(store.cancel(99));
  gate.open();
  std::map<uint64_t, weft_status> rest;
  for (int i = 0; i < 2; ++i) {
    done = reap_one(store);
    rest[done.id] = done.status;
  }
  CHECK(rest == std::map<uint64_t, weft_status>{{10, WEFT_OK}, {12, WEFT_OK}});
}

TEST_CASE("cancel of a read in progress stops it between two pieces") {
  const TempDir dir;
  const auto object = open_file(dir.write("f", pattern(64)));
  Gate gate;
  StoreOptions options;
  options.read = [&](int fd, void* dst, size_t, off_t offset) {
    gate.pass();
    return ::pread(fd, dst, 1, offset);
  };
  FileStore store(options);
  start(store);
  char dst[64];
  const weft_io io = read_of(1, *object, 0, 64, dst);
  REQUIRE(store.submit(&io, 1) == 1);
  gate.wait_for_arrivals(1);
  CHECK(store.cancel(1));
  gate.open();
  const weft_done done = reap_one(store);
  CHECK(done.status == WEFT_E_CANCELLED);
  CHECK(done.bytes == 1);
}

TEST_CASE("impossible requests are accepted and come back with the reason") {
  const TempDir dir;
  const auto object = open_file(dir.write("f", pattern(64)));
  FileStore store({});
  start(store);
  char dst[8];
  weft_io device = read_of(4, *object, 0, 8, dst);
  device.mem = WEFT_MEM_DEVICE;
  weft_io none = read_of(5, *object, 0, 8, dst);
  none.object = nullptr;
  const weft_io ios[] = {read_of(1, *object, 0, 8, nullptr),
                         read_of(2, *object, UINT64_MAX - 3, 8, dst),
                         read_of(3, *object, 8, UINT64_MAX, dst),
                         device,
                         none,
                         read_of(6, *object, 64, 0, nullptr)};
  REQUIRE(store.submit(ios, 6) == 6);
  std::map<uint64_t, weft_status> got;
  for (int i = 0; i < 6; ++i) {
    const weft_done done = reap_one(store);
    got[done.id] = done.status;
  }
  CHECK(got == std::map<uint64_t, weft_status>{{1, WEFT_E_ARG},
                                               {2, WEFT_E_ARG},
                                               {3, WEFT_E_ARG},
                                               {4, WEFT_E_UNSUPPORTED},
                                               {5, WEFT_E_ARG},
                                               {6, WEFT_OK}});
}

TEST_CASE("stop joins the threads and leaves every completion to be reaped") {
  const TempDir dir;
  const auto object = open_file(dir.write("f", pattern(64)));
  Gate gate;
  StoreOptions options;
  options.threads = 1;
  options.read = [&](int fd, void* dst, size_t len, off_t offset) {
    gate.pass();
    return ::pread(fd, dst, len, offset);
  };
  FileStore store(options);
  char dst[4][4];
  std::vector<weft_io> ios;
  for (uint64_t i = 0; i < 4; ++i) ios.push_back(read_of(i, *object, i * 4, 4, dst[i]));
  CHECK(store.submit(ios.data(), 4) == 0);  // not started yet
  start(store);
  REQUIRE(store.submit(ios.data(), 4) == 4);
  gate.wait_for_arrivals(1);
  std::thread stopper([&] { store.stop(); });
  // stop() cancels what waits before it joins, so three completions come while the gate is still
  // shut.
  std::set<uint64_t> cancelled;
  while (cancelled.size() < 3) {
    weft_done done{};
    if (store.reap(&done, 1, kForeverNs) == 0) continue;
    CHECK(done.status == WEFT_E_CANCELLED);
    cancelled.insert(done.id);
  }
  CHECK(cancelled == std::set<uint64_t>{1, 2, 3});
  gate.open();
  stopper.join();
  weft_done done{};
  REQUIRE(store.reap(&done, 1, 0) == 1);
  CHECK(done.id == 0);
  CHECK(store.idle());
  CHECK(store.submit(ios.data(), 1) == 0);
  CHECK(store.reap(&done, 1, kForeverNs) == 0);  // nothing can come any more: no wait
}

TEST_CASE("I/O threads have a name and take no signals") {
  const TempDir dir;
  const auto object = open_file(dir.write("f", pattern(64)));
  StoreOptions options;
  options.threads = 1;
  std::string name;
  bool blocked = false;
  options.read = [&](int fd, void* dst, size_t len, off_t offset) {
    char text[16] = {};
    pthread_getname_np(pthread_self(), text, sizeof text);
    name = text;
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, nullptr, &set);
    blocked = sigismember(&set, SIGTERM) == 1 && sigismember(&set, SIGINT) == 1 &&
              sigismember(&set, SIGHUP) == 1;
    return ::pread(fd, dst, len, offset);
  };
  FileStore store(options);
  start(store);
  char dst[4];
  const weft_io io = read_of(1, *object, 0, 4, dst);
  REQUIRE(store.submit(&io, 1) == 1);
  reap_one(store);
  CHECK(name == "weft-file-0");
  CHECK(blocked);
  sigset_t mine;
  pthread_sigmask(SIG_BLOCK, nullptr, &mine);
  CHECK(sigismember(&mine, SIGTERM) == 0);  // the starter's own mask is back
}

TEST_CASE("many submitters and reapers: every id once, every byte right") {
  constexpr uint64_t kSubmitters = 3, kPerSubmitter = 400, kTotal = kSubmitters * kPerSubmitter,
                     kLenMax = 5000;
  const TempDir dir;
  const std::string bytes = pattern(200'000);
  const auto object = open_file(dir.write("f", bytes));
  StoreOptions options;
  options.threads = 3;
  options.queue = 16;
  FileStore store(options);
  start(store);
  std::vector<std::string> dst(kTotal);
  std::vector<uint64_t> offsets(kTotal);
  std::mt19937 random(7);
  for (uint64_t i = 0; i < kTotal; ++i) {
    dst[i].resize(random() % kLenMax);
    offsets[i] = random() % (bytes.size() - kLenMax);
  }
  std::vector<std::atomic<int>> seen(kTotal);
  std::atomic<uint64_t> reaped{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t s = 0; s < kSubmitters; ++s)
    threads.emplace_back([&, s] {
      for (uint64_t i = s * kPerSubmitter; i < (s + 1) * kPerSubmitter;) {
        const weft_io io = read_of(i, *object, offsets[i], dst[i].size(), dst[i].data());
        if (store.submit(&io, 1) == 1) {
          if (i++ % 5 == 0) store.cancel(i - 1);
        } else {
          std::this_thread::yield();
        }
      }
    });
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&] {
      while (reaped < kTotal) {
        weft_done done[7];
        const uint32_t n = store.reap(done, 7, 1'000'000);
        for (uint32_t k = 0; k < n; ++k) {
          ++seen[done[k].id];
          const std::string& got = dst[done[k].id];
          const bool right = done[k].status == WEFT_E_CANCELLED ||
                             (done[k].status == WEFT_OK && done[k].bytes == got.size() &&
                              bytes.compare(offsets[done[k].id], got.size(), got) == 0);
          if (!right) ++wrong;
        }
        reaped += n;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(std::all_of(seen.begin(), seen.end(), [](const std::atomic<int>& n) { return n == 1; }));
  CHECK(store.idle());
}
