// Every part runs exactly once, whatever the number of threads, parts, callers and nesting.
#include "plugin/thread_pool.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "plugin/thread_labels.h"

using weft::plugin::ThreadLabel;
using weft::plugin::ThreadPool;
using weft::plugin::ThreadPoolOptions;

namespace {

ThreadPoolOptions with_threads(uint32_t n) {
  ThreadPoolOptions options;
  options.threads = n;
  return options;
}

// Counts runs per part without atomics: two threads on one part would be a race that TSan sees.
struct Count {
  std::vector<uint32_t> runs;
  uint32_t parts_seen_wrong = 0;
};
void count_part(void* ctx, uint32_t part, uint32_t parts) {
  auto& count = *static_cast<Count*>(ctx);
  ++count.runs[part];
  if (parts != count.runs.size()) count.parts_seen_wrong = 1;
}

void run_and_check(ThreadPool& pool, uint32_t parts) {
  Count count;
  count.runs.resize(parts);
  pool.run(&count_part, &count, parts);
  CHECK(count.runs == std::vector<uint32_t>(parts, 1));
  CHECK(count.parts_seen_wrong == 0);
}

}  // namespace

TEST_CASE("each part runs once, also more parts than threads") {
  for (const uint32_t threads : {0u, 1u, 2u, 3u, 7u}) {
    ThreadPool pool(with_threads(threads));
    CHECK(pool.threads() == std::max(threads, 1u));
    for (const uint32_t parts : {0u, 1u, 2u, 3u, 5u, 8u, 31u}) run_and_check(pool, parts);
  }
}

TEST_CASE("many short jobs of changing width see the results of the jobs before") {
  ThreadPool pool(with_threads(4));
  struct Chain {
    std::array<uint64_t, 4> value{};
    uint64_t before = 0;
  } chain;
  uint64_t expected = 0;
  for (uint32_t round = 0; round < 3000; ++round) {
    const uint32_t parts = 1 + round % 4;
    chain.before = expected;
    pool.run(
        [](void* ctx, uint32_t part, uint32_t) {
          auto& c = *static_cast<Chain*>(ctx);
          c.value[part] = c.before + part + 1;
        },
        &chain, parts);
    for (uint32_t part = 0; part < parts; ++part) expected = std::max(expected, chain.value[part]);
  }
  uint64_t sum = 0;
  for (uint32_t round = 0; round < 3000; ++round) sum += 1 + round % 4;
  CHECK(expected == sum);
}

TEST_CASE("part 0 runs on the caller and threads carry the kernel label") {
  ThreadPool pool(with_threads(2));
  struct Seen {
    std::thread::id id[2];
    uint32_t labels[2] = {0, 0};
  } seen;
  pool.run(
      [](void* ctx, uint32_t part, uint32_t) {
        static_cast<Seen*>(ctx)->id[part] = std::this_thread::get_id();
        static_cast<Seen*>(ctx)->labels[part] = ThreadLabel::current();
      },
      &seen, 2);
  CHECK(seen.id[0] == std::this_thread::get_id());
  CHECK(seen.id[1] != std::this_thread::get_id());
  CHECK(seen.labels[0] == WEFT_THREAD_KERNEL);
  CHECK(seen.labels[1] == WEFT_THREAD_KERNEL);
  CHECK(ThreadLabel::current() == 0);
}

TEST_CASE("a nested call and a second caller run their parts themselves") {
  ThreadPool pool(with_threads(3));
  struct Nest {
    ThreadPool* pool;
    std::atomic<uint32_t> inner{0};
  } nest{&pool};
  pool.run(
      [](void* ctx, uint32_t, uint32_t) {
        auto& n = *static_cast<Nest*>(ctx);
        n.pool->run([](void* c, uint32_t, uint32_t) { ++static_cast<Nest*>(c)->inner; }, &n, 5);
      },
      &nest, 3);
  CHECK(nest.inner == 15);

  std::vector<std::thread> callers;
  std::atomic<uint32_t> wrong{0};
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        Count count;
        count.runs.resize(4);
        pool.run(&count_part, &count, 4);
        if (count.runs != std::vector<uint32_t>(4, 1)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("a pinned pool keeps its threads and its caller on one CPU each") {
  const auto all = static_cast<uint32_t>(weft::plugin::process_cpus().size());
  REQUIRE(all >= 1);
  std::vector<std::array<int, 2>> seen(all);  // per part: CPUs allowed, the first of them
  std::thread caller([&] {
    ThreadPoolOptions options = with_threads(all);
    options.pin = true;
    ThreadPool pool(options);
    const auto look = [](void* ctx, uint32_t part, uint32_t) {
      cpu_set_t set;
      CPU_ZERO(&set);
      sched_getaffinity(0, sizeof set, &set);
      int first = 0;
      while (!CPU_ISSET(first, &set)) ++first;
      (*static_cast<std::vector<std::array<int, 2>>*>(ctx))[part] = {CPU_COUNT(&set), first};
    };
    pool.run(look, &seen, all);
  });
  caller.join();
  if (all == 1) return;  // nobody to keep apart
  for (uint32_t part = 0; part < all; ++part) {
    CHECK(seen[part][0] == 1);
    CHECK(seen[part][1] == weft::plugin::process_cpus()[part]);
  }
}

TEST_CASE("pools come and go without having worked") {
  for (int i = 0; i < 20; ++i) ThreadPool pool(with_threads(3));
}
