#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/comm/chain.h"
#include "tests/runtime/comm/ranks.h"
#include "tests/support/error_message.h"
#include "tests/support/own_process.h"
#include "tests/support/wait_until.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int chain_stages = 4;

/// The error of each stage of a pipeline (run_chain) in which stage `faulty` calls `fault` in step
/// 5.
std::vector<std::string> chain_errors(int faulty, const std::function<bool()>& fault,
                                      double timeout = 240) {
  return errors_of(
      chain_stages,
      [&](Communicator& comm, const Device& device) {
        run_chain(comm, device,
                  [&](int step) { return step < 5 || comm.rank() != faulty || fault(); });
      },
      timeout);
}

/// The collective, as named in errors, in which `stage` waits while `faulty` hangs in step 5.
std::string place_of(int stage, int faulty) {
  return place_in_chain(stage, stage < faulty ? stage + 1 : stage - 1);
}

Tensor one_element(const Device& device) { return Tensor::zeros({1}, DType::f32, device); }

}  // namespace

TEST_CASE("a stage that throws ends all stages, which name it and where they wait") {
  for (int faulty = 0; faulty < chain_stages; ++faulty) {
    CAPTURE(faulty);
    const auto errors = chain_errors(faulty, []() -> bool { throw ShapeError("planted"); });
    for (int stage = 0; stage < chain_stages; ++stage) {
      const std::string& error = errors[static_cast<size_t>(stage)];
      CAPTURE(error);
      if (stage == faulty) {
        CHECK(error == "planted");
        continue;
      }
      CHECK(contains(error, "rank " + std::to_string(faulty) + " failed in step 5, after "));
      CHECK(contains(error, ": ShapeError: planted; rank " + std::to_string(stage) + " waits in "));
    }
  }
}

TEST_CASE("a stage that leaves early is named by all others") {
  for (int faulty = 0; faulty < chain_stages; ++faulty) {
    CAPTURE(faulty);
    const auto errors = chain_errors(faulty, [] { return false; });
    for (int stage = 0; stage < chain_stages; ++stage) {
      const std::string& error = errors[static_cast<size_t>(stage)];
      CAPTURE(error);
      if (stage == faulty)
        CHECK(error == "");
      else
        CHECK(contains(error, "rank " + std::to_string(faulty) +
                                  " returned early, in step 5; the others are at collective #"));
    }
  }
}

TEST_CASE("a rank that returns before it joins a group is named by those that wait in it") {
  const auto errors = errors_of(
      2,
      [](Communicator& comm, const Device& device) {
        if (comm.rank() == 1) return;
        const int members[] = {0, 1};
        const auto group = comm.group(members, "late");
        group->wait(group->broadcast(one_element(device), 1, "x"));
      },
      stall_timeout_s);
  CHECK(contains(errors[0], "rank 1 returned early, in step 0; the others are at "));
  CHECK(errors[1] == "");
}

TEST_CASE("a stage that comes too late is named, not the neighbours that wait for it") {
  const auto errors_in = [](int faulty) {
    std::atomic<int> failed = 0;
    const auto body = [&](Communicator& comm, const Device& device) {
      const auto between = [&](int step) {
        if (step == 5 && comm.rank() == faulty)
          wait_until([&] { return failed == chain_stages - 1; }, "all other stages have failed");
        return true;
      };
      try {
        run_chain(comm, device, between);
      } catch (const CommError&) {
        ++failed;
        throw;
      }
    };
    return errors_of(chain_stages, body, stall_timeout_s);
  };
  std::vector<std::future<std::vector<std::string>>> all;
  for (int faulty = 0; faulty < chain_stages; ++faulty)
    all.push_back(std::async(std::launch::async, errors_in, faulty));
  for (int faulty = 0; faulty < chain_stages; ++faulty) {
    CAPTURE(faulty);
    const auto errors = all[static_cast<size_t>(faulty)].get();
    const std::string who = "rank " + std::to_string(faulty) + " did not arrive within 4 s: ";
    for (int stage = 0; stage < chain_stages; ++stage) {
      const std::string& error = errors[static_cast<size_t>(stage)];
      CAPTURE(error);
      CHECK(contains(error, who + "collective #5, broadcast of 'activations' (f32, 3 elements, "));
      if (stage == faulty) continue;
      // The error names one rank's collective. A rank that waits in another collective adds its
      // own.
      const std::string own = place_of(stage, faulty);
      CHECK((contains(error, who + own) ||
             contains(error, "; rank " + std::to_string(stage) + " waits in " + own)));
      if (std::abs(stage - faulty) > 1) CHECK(!contains(error, who + own));
    }
  }
}

TEST_CASE(
    "slow stages in sequence cause no timeout even if their delays add up to more than the "
    "timeout") {
  // A pause of the machine can make one delay longer than the timeout. Then the test is repeated
  // with delays and a timeout that are four times longer.
  std::vector<std::string> errors(1);
  for (double unit_s = 1.0; unit_s <= 16.0 && errors != std::vector<std::string>(3); unit_s *= 4)
    errors = errors_of(
        3,
        [&](Communicator& comm, const Device& device) {
          run_chain(comm, device, [&](int step) {
            // The first stage waits for two of these delays.
            if (step == 3) std::this_thread::sleep_for(std::chrono::duration<double>(2 * unit_s));
            return true;
          });
        },
        3 * unit_s);
  CHECK(errors == std::vector<std::string>(3));
}

TEST_CASE("a rank in its own code is named as late although its worker waits in another group") {
  std::atomic<bool> failed = false;
  const auto errors = errors_of(
      2,
      [&](Communicator& comm, const Device& device) {
        const int both[] = {0, 1};
        const auto down = comm.group(both, "down"), up = comm.group(both, "up");
        const Tensor x = one_element(device), y = one_element(device);
        if (comm.rank() == 0) {
          up->broadcast(y, 1, "answer");  // posted before the question that it answers
          wait_until([&] { return failed.load(); }, "the other rank has failed");
          return down->wait(down->broadcast(x, 0, "question"));
        }
        try {
          down->wait(down->broadcast(x, 0, "question"));
        } catch (const CommError&) {
          failed = true;
          throw;
        }
        up->wait(up->broadcast(y, 1, "answer"));
      },
      stall_timeout_s);
  for (const std::string& error : errors)
    CHECK(contains(error,
                   "rank 0 did not arrive within 4 s: collective #0, broadcast of 'question' (f32, "
                   "1 elements, from rank 0) in group 'down', in step 0"));
}

TEST_CASE("ranks that wait for each other in different groups are both named") {
  const auto errors = errors_of(
      3,
      [](Communicator& comm, const Device& device) {
        if (comm.rank() == 2) return;
        const int both[] = {0, 1};
        const auto first = comm.group(both, "first"), second = comm.group(both, "second");
        const Tensor x = one_element(device);
        const auto& own = comm.rank() == 0 ? first : second;
        own->wait(own->broadcast(x, 0, "x"));
      },
      stall_timeout_s);
  const std::string ring =
      "ranks 0, 1 wait for each other: rank 0 in collective #0, broadcast of 'x' (f32, 1 elements, "
      "from rank 0) in group 'first', in step 0; rank 1 in collective #0, broadcast of 'x' (f32, 1 "
      "elements, from rank 0) in group 'second', in step 0; every rank must make the same calls";
  CHECK(contains(errors[0], ring));
  CHECK(contains(errors[1], ring));
  CHECK(errors[2] == "");
}

TEST_CASE("a failure in one group ends the collectives of all other groups, also later ones") {
  const auto errors = errors_of(4, [](Communicator& comm, const Device& device) {
    const int own[] = {comm.rank() / 2 * 2, comm.rank() / 2 * 2 + 1};
    const auto pair = comm.group(own, "pair");
    const Tensor x = one_element(device);
    if (comm.rank() == 0) {
      pair->barrier("rank 1 does not call it");  // no wait() for it
      throw ConfigError("planted");
    }
    if (comm.rank() == 1) comm.wait(comm.barrier("of all"));
    if (comm.rank() == 2) pair->wait(pair->broadcast(x, 0, "x"));
    try {
      comm.wait(comm.barrier("of all"));
    } catch (const CommError&) {
    }
    pair->wait(pair->broadcast(x, 0, "x"));
  });
  CHECK(errors[0] == "planted");
  for (size_t rank = 1; rank < 4; ++rank) {
    CAPTURE(errors[rank]);
    CHECK(contains(errors[rank], "rank 0 failed in step 0"));
    CHECK(contains(errors[rank], "ConfigError: planted"));
  }
}

TEST_CASE("a rank that fails inside a group is named by its global rank") {
  // In the group of ranks 3 and 1, rank 3 has group rank 0.
  const int members[] = {3, 1};
  const auto is_member = [](const Communicator& comm) { return comm.rank() % 2 == 1; };
  const auto fails_in_worker = [&](Communicator& comm, const Device& device) {
    if (!is_member(comm)) return comm.wait(comm.barrier("of all"));
    const auto group = comm.group(members, "odd");
    const Tensor full = Tensor::zeros({2}, DType::f32, device), shard = one_element(device);
    if (comm.rank() == 3) shard.data<float>()[0] = 1.0f;
    const auto combine = [](const Tensor&, const Tensor& sum, bool, Stream&) {
      if (sum.data<float>()[0] != 0.0f) throw DeviceError("planted");
    };
    group->wait(group->reduce_scatter(full, shard, false, combine, "x"));
  };
  const auto aborts = [&](Communicator& comm, const Device&) {
    if (!is_member(comm)) return comm.wait(comm.barrier("of all"));
    const auto group = comm.group(members, "odd");
    if (comm.rank() == 3) {
      group->abort("DeviceError: planted");
      // If rank 3 called the barrier instead, rank 1 could still leave the barrier without an
      // error.
      throw DeviceError("planted");
    }
    group->wait(group->barrier("of some"));
  };
  const std::pair<Body, std::string> failures[] = {
      {fails_in_worker,
       "rank 3 failed in step 0, after collective #0, reduce_scatter of 'x' (f32, 1 elements) in "
       "group 'odd': DeviceError: planted"},
      {aborts, "rank 3 failed in step 0, before any collective: DeviceError: planted"}};
  for (const auto& [body, cause] : failures) {
    CAPTURE(cause);
    const auto errors = errors_of(4, body);
    for (const size_t rank : {0, 1, 2}) {
      INFO("rank ", rank, ", ", errors[rank]);
      CHECK(contains(errors[rank], cause));
      if (rank != 1) CHECK(contains(errors[rank], "; rank " + std::to_string(rank) + " waits in "));
    }
  }
  // A rank that returns early, or arrives too late, is also named by its global rank.
  const auto leaves = [&](Communicator& comm, const Device&) {
    if (!is_member(comm)) return;
    const auto group = comm.group(members, "odd");
    if (comm.rank() == 1) group->wait(group->barrier("of some"));
  };
  CHECK(contains(errors_of(4, leaves)[1], "rank 3 returned early, in step 0; the others are at "));
  std::atomic<bool> failed = false;
  const auto comes_late = [&](Communicator& comm, const Device&) {
    if (!is_member(comm)) return;
    const auto group = comm.group(members, "odd");
    if (comm.rank() == 3) wait_until([&] { return failed.load(); }, "rank 1 has failed");
    try {
      group->wait(group->barrier("of some"));
    } catch (const CommError&) {
      failed = true;
      throw;
    }
  };
  CHECK(
      contains(errors_of(4, comes_late, stall_timeout_s)[1], "rank 3 did not arrive within 4 s: "));
}

TEST_CASE("an error about calls that differ within a group names the global ranks") {
  const auto errors = errors_of(3, [](Communicator& comm, const Device& device) {
    if (comm.rank() == 1) return comm.wait(comm.barrier("other"));
    const int ends[] = {2, 0};
    const auto group = comm.group(ends, "ends");
    const Tensor x = one_element(device);
    group->wait(group->broadcast(x, comm.rank() == 0 ? 1 : 0, "tied"));
  });
  for (const std::string& error : {errors[0], errors[2]})
    CHECK(error ==
          "ranks disagree at collective #0 of group 'ends' in step 0: rank 2 calls broadcast of "
          "'tied' (f32, 1 elements, from rank 2), rank 0 calls broadcast of 'tied' (f32, 1 "
          "elements, from rank 0); every rank must make the same calls");
  CHECK(contains(errors[1], "ranks disagree at collective #0 of group 'ends'"));
  CHECK(contains(errors[1], "; rank 1 waits in collective #0, barrier of 'other'"));
}

// The environment variable stall_variable holds the number of the stage that stalls.
TEST_CASE("stalled stage: run by the next test" * doctest::skip()) {
  const int faulty = std::atoi(std::getenv(stall_variable));
  const auto body = [&](Communicator& comm, const Device& device) {
    try {
      run_chain(comm, device, [&](int step) {
        while (step == 5 && comm.rank() == faulty)
          std::this_thread::sleep_for(std::chrono::hours(1));
        return true;
      });
    } catch (const CommError& error) {
      std::fprintf(stderr, "rank %d: %s\n", comm.rank(), error.what());
      throw;
    }
  };
  errors_of(chain_stages, body, stall_timeout_s);
}

TEST_CASE(
    "a stage that stalls for good ends the process with status 4, and all other stages name it") {
  std::vector<FILE*> processes;
  for (int faulty = 0; faulty < chain_stages; ++faulty)
    processes.push_back(start_own_test("stalled stage: run by the next test",
                                       std::string(stall_variable) + "=" + std::to_string(faulty)));
  for (int faulty = 0; faulty < chain_stages; ++faulty) {
    const EndedTest ended = end_of_own_test(processes[static_cast<size_t>(faulty)]);
    const std::string& text = ended.text;
    CAPTURE(text);
    CHECK(ended.status == 4);
    const std::string number = std::to_string(faulty);
    const std::string late = "rank " + number + " did not arrive within 4 s: collective #5, ";
    CHECK(contains(text, "error: CommError: " + late));
    CHECK(contains(text, "\nrank " + number + " is still running the program's code"));
    for (int rank = 0; rank < chain_stages; ++rank)
      if (rank != faulty) CHECK(contains(text, "rank " + std::to_string(rank) + ": " + late));
  }
}
