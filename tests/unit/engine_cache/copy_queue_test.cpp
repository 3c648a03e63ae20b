#include "engine/cache/copy_queue.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "temp_dir.h"

using namespace weft::engine::cache;

namespace {

using Bytes = std::vector<unsigned char>;

Bytes pattern(size_t n, unsigned seed) {
  Bytes out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<unsigned char>(i * 31 + i / 251 + seed);
  return out;
}

CopyPart memory_part(const Bytes& from, Bytes* to) {
  CopyPart part;
  part.from = from.data();
  part.to = to->data();
  part.bytes = from.size();
  return part;
}

void drain(CopyQueue* queue) {
  while (queue->pending() > 0) {
    queue->wait(100000);
    queue->poll();
  }
}

}  // namespace

TEST_CASE("the copy thread copies in order and reports once, on the polling thread") {
  CopyQueue queue;
  constexpr size_t kTasks = 50;
  const Bytes from = pattern(100000, 1);
  std::vector<Bytes> to(kTasks, Bytes(from.size()));
  std::vector<size_t> ends;
  const auto me = std::this_thread::get_id();
  for (size_t i = 0; i < kTasks; ++i) {
    auto task = std::make_shared<CopyTask>();
    task->parts.push_back(memory_part(from, &to[i]));
    task->done = [&, i, me](bool ok) {
      CHECK(ok);
      CHECK(std::this_thread::get_id() == me);
      ends.push_back(i);
    };
    queue.submit(task);
  }
  CHECK(queue.pending() > 0);
  drain(&queue);
  REQUIRE(ends.size() == kTasks);
  for (size_t i = 0; i < kTasks; ++i) {
    CHECK(ends[i] == i);
    CHECK(to[i] == from);
  }
  CHECK(queue.copied_bytes() == kTasks * from.size());
  CHECK(queue.failures() == 0);
}

TEST_CASE("inline copies happen one task per poll") {
  CopyQueue queue(/*inline_copies=*/true);
  const Bytes from = pattern(10, 1);
  Bytes a(10), b(10);
  for (Bytes* to : {&a, &b}) {
    auto task = std::make_shared<CopyTask>();
    task->parts.push_back(memory_part(from, to));
    queue.submit(task);
  }
  CHECK(a == Bytes(10));
  queue.poll();
  CHECK(a == from);
  CHECK(b == Bytes(10));
  queue.poll();
  CHECK(b == from);
  CHECK(queue.pending() == 0);
}

TEST_CASE("a cancelled task stops between slices and is no failure") {
  HostBudget budget;
  CopyQueue queue;
  const Bytes from = pattern(48u << 20, 2);
  Bytes to(from.size());
  auto task = std::make_shared<CopyTask>();
  CopyPart part = memory_part(from, &to);
  part.blob = Blob::make(&budget, 10);
  const BlobRef blob = part.blob;
  task->parts.push_back(std::move(part));
  bool reported = false, ok = true;
  task->done = [&](bool result) {
    reported = true;
    ok = result;
  };
  queue.submit(task);
  task->cancel();
  drain(&queue);
  CHECK(reported);
  CHECK(task->over());
  CHECK(ok == task->ok());
  // Whether it was quick enough is chance; half done and reported as done it is never.
  CHECK(ok == blob->ready.load());
  if (ok) CHECK(to == from);
  CHECK_FALSE(blob->broken.load());
  CHECK(queue.failures() == 0);
}

TEST_CASE("a task cancelled before its turn copies nothing") {
  CopyQueue queue(/*inline_copies=*/true);
  const Bytes from = pattern(100, 3);
  Bytes to(100);
  auto task = std::make_shared<CopyTask>();
  task->parts.push_back(memory_part(from, &to));
  int ends = 0;
  task->done = [&](bool ok) { ends += ok ? 100 : 1; };
  queue.submit(task);
  task->cancel();
  queue.poll();
  queue.poll();
  CHECK(ends == 1);
  CHECK(to == Bytes(100));
}

TEST_CASE("a queue can be destroyed with tasks pending") {
  const Bytes from = pattern(8u << 20, 4);
  std::vector<Bytes> to(6, Bytes(from.size()));
  HostBudget budget;
  int reports = 0;
  {
    CopyQueue queue;
    for (Bytes& target : to) {
      auto task = std::make_shared<CopyTask>();
      task->parts.push_back(memory_part(from, &target));
      task->parts.back().blob = Blob::make(&budget, 4096);
      task->done = [&](bool) { ++reports; };
      queue.submit(task);
    }
  }
  CHECK(reports == 0);
  CHECK(budget.used == 0);
  CopyQueue never_used;
}

TEST_CASE("unit files give back exactly what was written") {
  TempDir dir;
  for (const size_t n : {size_t{1}, size_t{40}, size_t{4096}, size_t{3u << 20}}) {
    const Bytes from = pattern(n, 5);
    Bytes to(n);
    REQUIRE(write_unit_file(dir.file("a"), from.data(), n));
    REQUIRE(read_unit_file(dir.file("a"), to.data(), n));
    CHECK(to == from);
    CHECK_FALSE(read_unit_file(dir.file("a"), to.data(), n - 1));
    Bytes longer(n + 1);
    CHECK_FALSE(read_unit_file(dir.file("a"), longer.data(), n + 1));
  }
  CHECK_FALSE(write_unit_file(dir.path() + "/no/such/place", pattern(4, 1).data(), 4));
}

TEST_CASE("a damaged unit file is never read as good") {
  TempDir dir;
  const size_t n = 200;
  const Bytes from = pattern(n, 6);
  Bytes to(n);
  const std::string path = dir.file("u");
  REQUIRE(write_unit_file(path, from.data(), n));
  const auto size = static_cast<size_t>(std::filesystem::file_size(path));
  std::ifstream in(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  REQUIRE(good.size() == size);
  for (size_t bit = 0; bit < size * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    dir.write("u", bad);
    REQUIRE_FALSE(read_unit_file(path, to.data(), n));
  }
  for (size_t cut = 0; cut < size; ++cut) {
    dir.write("u", good.substr(0, cut));
    REQUIRE_FALSE(read_unit_file(path, to.data(), n));
  }
  dir.write("u", good + "x");
  CHECK_FALSE(read_unit_file(path, to.data(), n));
  dir.write("u", good);
  CHECK(read_unit_file(path, to.data(), n));
  std::filesystem::remove(path);
  CHECK_FALSE(read_unit_file(path, to.data(), n));
}

TEST_CASE("a lost file breaks its own bytes and no others") {
  TempDir dir;
  HostBudget budget;
  CopyQueue queue;
  const Bytes from = pattern(100, 7);
  Bytes to(300);
  auto task = std::make_shared<CopyTask>();
  std::vector<BlobRef> blobs;
  REQUIRE(write_unit_file(dir.file("2"), from.data(), 100));
  for (int i = 0; i < 3; ++i) {
    CopyPart part;
    part.kind = CopyPart::Kind::kFromFile;
    part.path = dir.file(std::to_string(i == 0 ? 2 : i == 1 ? 9 : 2));
    part.to = to.data() + i * 100;
    part.bytes = 100;
    part.blob = Blob::make(&budget, 100);
    blobs.push_back(part.blob);
    task->parts.push_back(std::move(part));
  }
  queue.submit(task);
  drain(&queue);
  CHECK_FALSE(task->ok());
  CHECK(queue.failures() == 1);
  CHECK_FALSE(blobs[0]->broken.load());
  CHECK(blobs[1]->broken.load());
  CHECK_FALSE(blobs[2]->broken.load());
}

TEST_CASE("a spilled blob gives up its memory, unless it is being read") {
  TempDir dir;
  HostBudget budget;
  budget.disk_used = 200;
  BlobRef a = Blob::make(&budget, 100), b = Blob::make(&budget, 100);
  CHECK(budget.used == 200);
  dir.write("a", "x");
  a->spilled(true, dir.file("a"));
  CHECK_FALSE(a->in_memory());
  CHECK(budget.used == 100);
  dir.write("b", "x");
  b->readers = 1;
  b->spilled(true, dir.file("b"));
  CHECK(b->in_memory());
  CHECK_FALSE(std::filesystem::exists(dir.file("b")));
  CHECK(budget.disk_used == 100);
  CHECK(budget.disk_failures == 0);
  a.reset();
  b.reset();
  CHECK(budget.used == 0);
  CHECK(budget.disk_used == 0);
  CHECK(std::filesystem::is_empty(dir.path()));
}
