#include "zerograd/runtime/cpu/team.h"

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/error_message.h"
#include "tests/support/wait_until.h"
#include "zerograd/runtime/error.h"

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
  // ThreadSanitizer watches this one.
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

TEST_CASE("a team ends after the tasks that other threads have begun") {
  std::atomic<bool> helped{false};
  const auto run = [&] {
    std::atomic<int> ended{0};
    zg::cpu::team(2, 64, [&](int64_t, int worker) {
      if (worker == 1 && !helped.exchange(true))
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ++ended;
    });
    CHECK(ended.load() == 64);
    return helped.load();
  };
  zg::testing::wait_until(run, "another thread takes a task");
}

TEST_CASE("a thread of a team begins with the tasks of its own share") {
  int64_t first_of_helper = -1;
  const auto run = [&] {
    int64_t first[2] = {-1, -1};
    zg::cpu::team(2, 65, [&](int64_t task, int worker) {
      if (first[worker] < 0) first[worker] = task;
      std::this_thread::yield();
    });
    CHECK(first[0] < 32);  // the helper may have taken some of these
    first_of_helper = first[1];
    return first_of_helper >= 0;
  };
  zg::testing::wait_until(run, "another thread takes a task");
  CHECK(first_of_helper >= 32);
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

TEST_CASE("a team inside a task runs on the thread of that task") {
  std::vector<int> runs(64, 0);
  zg::cpu::team(2, 8, [&](int64_t task, int) {
    const std::thread::id own = std::this_thread::get_id();
    zg::cpu::team(2, 8, [&](int64_t part, int worker) {
      runs[static_cast<size_t>(task * 8 + part)] +=
          worker == 0 && std::this_thread::get_id() == own ? 1 : 100;
    });
  });
  CHECK(runs == std::vector<int>(64, 1));
}

TEST_CASE("the threads of a team end with the thread that started them") {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto before = threads();
  std::ptrdiff_t during = 0;
  std::thread([&] {
    zg::cpu::team(3, 100, [](int64_t, int) {});
    during = threads();
  }).join();
  CHECK(during == before + 3);
  zg::testing::wait_until([&] { return threads() == before; }, "the threads have ended");
}

#if !defined(__SANITIZE_THREAD__)  // it allows no threads after fork()
TEST_CASE("after fork() the child has teams of its own, and ends as other programs do") {
  const auto workers = [](int threads) {
    std::atomic<int> seen{0};
    const auto have_all = [&] {
      zg::cpu::team(threads, 100, [&](int64_t, int worker) { seen |= 1 << worker; });
      return seen == (1 << threads) - 1;
    };
    zg::testing::wait_until(have_all, "each worker takes a task");
    return threads;
  };
  workers(3);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) std::exit(workers(3) + workers(5));  // destroys what this thread has of its own
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 8);
}
#endif

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // these map any amount
TEST_CASE(
    "a thread that the system refuses is an OutOfMemory error, and a smaller team still works") {
  std::thread([] {
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto mapped = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE));
    const rlimit limit{.rlim_cur = mapped + (rlim_t{40} << 20), .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
    const std::string error = zg::testing::message_of<zg::OutOfMemory>(
        [] { zg::cpu::team(64, 64, [](int64_t, int) {}); });
    setrlimit(RLIMIT_AS, &before);
    CHECK(zg::testing::contains(error, "threads: the system refused thread "));
    CHECK(zg::testing::contains(error, " of 64: "));
    std::atomic<int64_t> sum{0};
    zg::cpu::team(2, 100, [&](int64_t task, int) { sum += task; });
    CHECK(sum.load() == 100 * 99 / 2);
  }).join();
}
#endif

#if !defined(__SANITIZE_THREAD__)  // it delays signals
namespace {
std::atomic<bool> is_held{false}, may_go_on{false};

void hold_thread(int) {
  is_held = true;
  for (int i = 0; i < 20000 && !may_go_on; ++i) usleep(1000);
  is_held = false;
}
}  // namespace

TEST_CASE("a team does not wait for a thread that the system keeps waiting") {
  // A signal handler keeps the helper waiting, as another program on its core does.
  struct sigaction action {
  }, before{};
  action.sa_handler = hold_thread;
  REQUIRE(sigaction(SIGUSR2, &action, &before) == 0);
  std::thread([] {
    std::atomic<pid_t> helper{0};
    const auto helper_works = [&] {
      helper = 0;
      zg::cpu::team(2, 1000, [&](int64_t, int worker) {
        if (worker == 1) helper = gettid();
      });
      return helper != 0;
    };
    zg::testing::wait_until(helper_works, "the helper takes a task");
    REQUIRE(tgkill(getpid(), helper, SIGUSR2) == 0);
    zg::testing::wait_until([] { return is_held.load(); }, "the helper is held");
    int64_t sum = 0;
    zg::cpu::team(2, 1000, [&](int64_t task, int) { sum += task; });
    CHECK(is_held.load());  // the tasks were not delayed until it went on
    CHECK(sum == 1000 * 999 / 2);
    may_go_on = true;
    zg::testing::wait_until(helper_works, "the helper takes tasks again");
  }).join();
  sigaction(SIGUSR2, &before, nullptr);
}
#endif
