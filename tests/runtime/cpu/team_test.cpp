#include "zerograd/runtime/cpu/team.h"

#include <numeric>
#include <thread>
#include <vector>

TEST_CASE("a team runs every task once, whatever the thread count") {
  for (const int threads : {1, 2, 3, 8}) {
    std::vector<int> runs(1000, 0);
    zg::cpu::team(threads, 1000, [&](int64_t task, int worker) {
      runs[static_cast<size_t>(task)] += 1 + (worker < 0 || worker >= threads ? 100 : 0);
    });
    CHECK(runs == std::vector<int>(1000, 1));
  }
}

TEST_CASE("parallel_for covers the range in chunks of the given grain") {
  std::vector<int> seen(1001, 0);
  zg::cpu::parallel_for(2, 1001, 64, [&](int64_t begin, int64_t end) {
    if (begin % 64 != 0 || end - begin > 64) return;
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
  });
  CHECK(seen == std::vector<int>(1001, 1));
}

TEST_CASE("a team sees what was written before it starts, and its writes are seen after it ends") {
  // ThreadSanitizer watches this one: team() tells it about both edges.
  std::vector<int64_t> input(4096), output(4096);
  for (int round = 0; round < 20; ++round) {
    std::iota(input.begin(), input.end(), round);
    zg::cpu::team(2, 64, [&](int64_t task, int) {
      for (int64_t i = task * 64; i < task * 64 + 64; ++i)
        output[static_cast<size_t>(i)] = 2 * input[static_cast<size_t>(i)];
    });
    int64_t sum = 0;
    for (int64_t x : output) sum += x;
    CHECK(sum == 4096 * 4095 + int64_t{2} * 4096 * round);
  }
}

TEST_CASE("two threads can each run a team at the same time") {
  auto work = [](int64_t* sum) {
    for (int round = 0; round < 50; ++round) {
      std::vector<int64_t> parts(32);
      zg::cpu::team(2, 32, [&](int64_t task, int) { parts[static_cast<size_t>(task)] = task; });
      *sum += std::accumulate(parts.begin(), parts.end(), int64_t{0});
    }
  };
  int64_t a = 0, b = 0;
  std::thread one(work, &a), two(work, &b);
  one.join();
  two.join();
  CHECK(a == 50 * 496);
  CHECK(b == 50 * 496);
}
