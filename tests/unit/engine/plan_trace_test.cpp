#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/plan/fcfs_plan.h"
#include "engine/plan/planner.h"
#include "engine/plan/trace.h"
#include "unit/engine/plan_view.h"

using namespace weft;
using namespace weft::engine;

namespace {

struct TempFile {
  TempFile() {
    char name[] = "/tmp/weft_trace_XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(fd >= 0);
    ::close(fd);
    path = name;
  }
  ~TempFile() {
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".old");
  }
  std::string path;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

template <class T>
bool same(const T* a, const T* b, uint32_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(T)) == 0;
}

void check_same(const weft_sched_view& a, const weft_sched_view& b) {
  weft_sched_view x = a, y = b;
  x.wait = y.wait = x.run = y.run = nullptr;
  x.groups = y.groups = nullptr;
  x.costs = y.costs = nullptr;
  x.tenants = y.tenants = nullptr;
  CHECK(std::memcmp(&x, &y, sizeof x) == 0);
  CHECK(same(a.wait, b.wait, a.n_wait));
  CHECK(same(a.run, b.run, a.n_run));
  CHECK(same(a.groups, b.groups, a.n_groups));
  CHECK(same(a.costs, b.costs, a.n_costs));
  CHECK(same(a.tenants, b.tenants, a.n_tenants));
}

// A few views of one worker's life: the same sequences again, changed, moved, some new.
std::vector<TestView> related_views(uint32_t seed, int n) {
  TestRng rng(seed);
  std::vector<TestView> out;
  for (int i = 0; i < n; ++i) {
    TestView v = random_view(rng);
    for (weft_seq& s : v.wait) s.id = rng.below(12) + 100 * s.id;
    if (i > 0 && rng.below(3) > 0) {
      v.wait = out.back().wait;
      v.run = out.back().run;
      if (!v.wait.empty() && rng.below(2) == 0) {
        v.run.push_back(v.wait[rng.below(static_cast<uint32_t>(v.wait.size()))]);
      }
      for (weft_seq& s : v.run) s.context += rng.below(3), s.swap_bytes += rng();
    }
    v.view.n_costs = 0;
    v.link();
    out.push_back(std::move(v));
  }
  return out;
}

std::string make_trace(const std::vector<TestView>& views, uint64_t limit = kTraceBytesMax) {
  TempFile file;
  auto writer = TraceWriter::open(file.path, "some_policy", limit);
  REQUIRE(writer.ok());
  for (const TestView& v : views) {
    TestPlan p(v.view);
    FcfsPlan().plan(v.view, &p.plan);
    (*writer)->append(v.view, p.plan, 1234, true);
  }
  writer->reset();
  return read_file(file.path);
}

}  // namespace

TEST_CASE("trace: what is written is read back") {
  std::vector<TestView> views = related_views(1, 200);
  const std::vector<weft_sched_cost> costs = {{1, 5, 1000}, {64, 7, 1ull << 40}};
  views[3].view.n_costs = 2;
  views[3].view.costs = costs.data();
  const std::vector<weft_sched_tenant> tenants = {{0, 1, 7}, {5, 3, 1ull << 50}};
  views[4].view.n_tenants = 2;
  views[4].view.tenants = tenants.data();
  auto reader = TraceReader::from_bytes(make_trace(views));
  REQUIRE(reader.ok());
  CHECK((*reader)->scheduler() == "some_policy");
  TraceRecord record;
  for (TestView& v : views) {
    const auto more = (*reader)->next(&record);
    REQUIRE(more.ok());
    REQUIRE(*more);
    check_same(v.link(), record.view);
    TestPlan expected(v.view), got(v.view);
    FcfsPlan().plan(v.view, &expected.plan);
    got.plan = record.plan;
    got.run = record.run_shares;
    got.admit = record.admit_shares;
    got.preempt = record.preempts;
    got.drop = record.drops;
    CHECK(got.text() == expected.text());
    CHECK(record.plan_ns == 1234);
    CHECK(record.by_plugin);
  }
  const auto end = (*reader)->next(&record);
  REQUIRE(end.ok());
  CHECK_FALSE(*end);
  CHECK((*reader)->records() == views.size());
}

TEST_CASE("trace: unchanged sequences cost a few bytes") {
  TestView v(1000, 300);
  for (int i = 0; i < 1000; ++i) v.add_wait(5000).arrive_ns = 1ull << 60;
  v.link();
  TestPlan p(v.view);
  std::string first, second;
  TraceEncoder encoder;
  encoder.encode(v.view, p.plan, 0, false, &first);
  encoder.encode(v.view, p.plan, 0, false, &second);
  CHECK(first.size() > 10'000);
  CHECK(second.size() < 4'000);
}

TEST_CASE("trace: a file that is cut or changed is refused from there on, never believed") {
  const std::vector<TestView> views = related_views(2, 12);
  const std::string good = make_trace(views);
  TestRng rng(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    if (round % 2 == 0) {
      bad.resize(rng.below(static_cast<uint32_t>(good.size())));
    } else {
      bad[rng.below(static_cast<uint32_t>(good.size()))] ^= static_cast<char>(1 + rng.below(255));
    }
    auto reader = TraceReader::from_bytes(bad);
    if (!reader.ok()) {
      CHECK_FALSE(reader.error().message.empty());
      continue;
    }
    TraceRecord record;
    bool failed = false;
    for (;;) {
      const auto more = (*reader)->next(&record);
      failed = !more.ok();
      if (failed || !*more) break;
      check_same(views[(*reader)->records() - 1].view, record.view);
    }
    if (failed) {
      const auto again = (*reader)->next(&record);  // and it stays at its end
      REQUIRE(again.ok());
      CHECK_FALSE(*again);
    }
    // Cut exactly between two records, a file is a shorter trace.
    CHECK((failed || round % 2 == 0));
  }
}

TEST_CASE("trace: records with a good checksum and wild contents are refused") {
  const std::vector<TestView> views = related_views(4, 3);
  std::string bytes;
  TestPlan p(views[0].view);
  FcfsPlan().plan(views[0].view, &p.plan);
  TraceEncoder().encode(views[0].view, p.plan, 7, true, &bytes);
  TestRng rng(5);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = bytes;
    for (uint32_t i = 0; i <= rng.below(3); ++i) {
      bad[rng.below(static_cast<uint32_t>(bad.size()))] = static_cast<char>(rng.below(256));
    }
    TraceRecord record;
    const Status s = TraceDecoder().decode(bad, &record);
    refused += s.ok() ? 0 : 1;
    if (s.ok()) continue;
    CHECK(s.error().code == ErrorCode::kCorrupt);
    CHECK_FALSE(s.error().message.empty());
  }
  CHECK(refused > 300);
}

TEST_CASE("trace: other files and other versions are named as such") {
  const auto refused = [](std::string bytes) {
    auto reader = TraceReader::from_bytes(std::move(bytes));
    REQUIRE_FALSE(reader.ok());
    return reader.error().message;
  };
  CHECK(refused("").find("not a scheduler trace") != std::string::npos);
  CHECK(refused(std::string(1000, 'x')).find("not a scheduler trace") != std::string::npos);
  CHECK(TraceReader::open("/nowhere/trace").error().code == ErrorCode::kNotFound);
}

TEST_CASE("trace: it ends at its size limit and on a failed write, with the engine unharmed") {
  const std::vector<TestView> views = related_views(6, 50);
  const std::string part = make_trace(views, 2000);
  CHECK(part.size() <= 2000);
  CHECK(part.size() > 500);
  auto reader = TraceReader::from_bytes(part);
  REQUIRE(reader.ok());
  TraceRecord record;
  uint64_t n = 0;
  while (true) {
    const auto more = (*reader)->next(&record);
    REQUIRE(more.ok());
    if (!*more) break;
    ++n;
  }
  CHECK(n > 0);
  CHECK(n < 50);

  CHECK_FALSE(TraceWriter::open("/nowhere/trace", "x").ok());
  CHECK(TraceWriter::open("/dev/null", "x").error().code == ErrorCode::kInvalid);

  // A disk that is full after 4000 bytes.
  TempFile file;
  auto writer = TraceWriter::open(file.path, "x");
  REQUIRE(writer.ok());
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit full = {4000, before.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &full) == 0);
  for (const TestView& v : views) {
    TestPlan p(v.view);
    (*writer)->append(v.view, p.plan, 0, false);
    (*writer)->flush();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  CHECK_FALSE((*writer)->active());
  CHECK((*writer)->records() > 0);
  CHECK(read_file(file.path).size() == 4000);
}

TEST_CASE("trace: the planner writes one, and keeps the one before") {
  TempFile file;
  for (int round = 0; round < 2; ++round) {
    auto writer = TraceWriter::open(file.path, kBuiltInScheduler);
    REQUIRE(writer.ok());
    Planner planner({}, std::move(writer).value());
    TestView v;
    v.add_run(100, 16);
    planner.plan(v.link());
    planner.plan(v.link());
  }
  for (const std::string& path : {file.path, file.path + ".old"}) {
    auto reader = TraceReader::open(path);
    REQUIRE(reader.ok());
    TraceRecord record;
    int n = 0;
    for (auto more = (*reader)->next(&record); more.ok() && *more;
         more = (*reader)->next(&record)) {
      CHECK(record.plan.n_run == 1);
      CHECK(record.run_shares[0].rows == 64);
      CHECK_FALSE(record.by_plugin);
      ++n;
    }
    CHECK(n == 2);
  }
}
