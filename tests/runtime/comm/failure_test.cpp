#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/comm/ranks.h"
#include "tests/support/error_message.h"
#include "tests/support/own_process.h"
#include "tests/support/wait_until.h"
#include "zerograd/runtime/comm/communicator.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr Collective kinds[] = {Collective::all_gather, Collective::reduce_scatter,
                                Collective::all_reduce, Collective::broadcast,
                                Collective::barrier,    Collective::all_to_all,
                                Collective::scatter};
constexpr int group_sizes[] = {2, 8};

void keep_nothing(const Tensor&, const Tensor&, bool, Stream&) {}

/// One collective and the wait for it.
struct Exchange {
  Collective kind;
  const char* name = "block.5";
  DType dtype = DType::f32;
  int64_t count = 3;
  int root = 0;

  void operator()(Communicator& comm, const Device& device) const {
    const Tensor shard = Tensor::zeros({count}, dtype, device);
    const Tensor full = Tensor::zeros({count * comm.size()}, dtype, device);
    const Tensor copied = Tensor::zeros({count * comm.size()}, dtype, device);
    const Tensor integers = Tensor::zeros({count}, DType::i64, device);
    switch (kind) {
      case Collective::all_gather:
        return comm.wait(comm.all_gather(shard, full, name));
      case Collective::reduce_scatter:
        return comm.wait(comm.reduce_scatter(full, shard, true, keep_nothing, name));
      case Collective::all_reduce:
        return comm.wait(comm.all_reduce(integers, name));
      case Collective::broadcast:
        return comm.wait(comm.broadcast(shard, root, name));
      case Collective::barrier:
        return comm.wait(comm.barrier(name));
      case Collective::all_to_all:
        return comm.wait(comm.all_to_all(pieces_of(full, comm), pieces_of(copied, comm), name));
      case Collective::scatter:
        return comm.wait(comm.scatter(pieces_of(full, comm), shard, root, name));
    }
  }
  Pieces pieces_of(const Tensor& full, const Communicator& comm) const {
    return {full, std::vector<int64_t>(static_cast<size_t>(comm.size()), count)};
  }
  /// The description that errors contain.
  std::string text() const {
    const bool barrier = kind == Collective::barrier;
    const DType shown = kind == Collective::all_reduce ? DType::i64 : barrier ? DType::u8 : dtype;
    const bool rooted = kind == Collective::broadcast || kind == Collective::scatter;
    return std::string(name_of(kind)) + " of '" + name + "' (" + name_of(shown) +
           (has_pieces() ? "" : ", " + std::to_string(barrier ? 0 : count) + " elements") +
           (rooted ? ", from rank " + std::to_string(root) : "") + ")";
  }
  bool has_pieces() const { return kind == Collective::all_to_all || kind == Collective::scatter; }
};

/// The error of each rank, by rank; the exception of run_local itself is ignored. All ranks have a
/// collective in step 4. `body` is the next step.
std::vector<std::string> errors_in_step_5(int ranks, const Body& body, double timeout = 240) {
  return errors_of(
      ranks,
      [&](Communicator& comm, const Device& device) {
        comm.set_step(4);
        comm.wait(comm.barrier("end of step"));
        comm.set_step(5);
        body(comm, device);
      },
      timeout);
}

bool is_last(const Communicator& comm) { return comm.rank() + 1 == comm.size(); }

}  // namespace

TEST_CASE("a rank that throws ends the others, whose errors name it and where they wait") {
  for (const Collective kind : kinds)
    for (const int ranks : group_sizes) {
      const Exchange exchange{kind};
      const auto errors = errors_in_step_5(ranks, [&](Communicator& comm, const Device& device) {
        if (is_last(comm)) throw ShapeError("planted");
        exchange(comm, device);
      });
      CHECK(errors.back() == "planted");
      for (int rank = 0; rank + 1 < ranks; ++rank)
        CHECK(errors[static_cast<size_t>(rank)] ==
              "rank " + std::to_string(ranks - 1) +
                  " failed in step 5, after collective #0, barrier of 'end of step' (u8, 0 "
                  "elements): ShapeError: planted; rank " +
                  std::to_string(rank) + " waits in collective #1, " + exchange.text() +
                  ", in step 5");
    }
}

TEST_CASE("a rank that returns early is named with the collective that the others wait in") {
  for (const Collective kind : kinds)
    for (const int ranks : group_sizes) {
      const Exchange exchange{kind};
      const auto errors = errors_in_step_5(ranks, [&](Communicator& comm, const Device& device) {
        if (!is_last(comm)) exchange(comm, device);
      });
      CHECK(errors.back() == "");
      for (int rank = 0; rank + 1 < ranks; ++rank)
        CHECK(errors[static_cast<size_t>(rank)] ==
              "rank " + std::to_string(ranks - 1) +
                  " returned early, in step 5; the others are at collective #1, " +
                  exchange.text() + ", in step 5; every rank must make the same calls");
    }
}

TEST_CASE(
    "a rank that arrives after the timeout is named in the errors of all ranks, its own included") {
  const auto errors_in = [](Collective kind) {
    std::atomic<int> failed = 0;
    const auto body = [&](Communicator& comm, const Device& device) {
      if (is_last(comm)) wait_until([&] { return failed == 2; }, "both others have failed");
      try {
        Exchange{kind}(comm, device);
      } catch (const CommError&) {
        ++failed;
        throw;
      }
    };
    return errors_in_step_5(3, body, stall_timeout_s);
  };
  std::vector<std::future<std::vector<std::string>>> all;
  for (const Collective kind : kinds)
    all.push_back(std::async(std::launch::async, errors_in, kind));
  for (size_t i = 0; i < all.size(); ++i)
    for (const std::string& error : all[i].get())
      CHECK(error == "rank 2 did not arrive within 4 s: collective #1, " +
                         Exchange{kinds[i]}.text() +
                         ", in step 5; look at what that rank is doing, or raise --comm-timeout");
}

TEST_CASE("the error that run_local rethrows names its rank and keeps its type") {
  const auto run = [](int ranks, const auto& fail) {
    run_local(ranks, [&](Communicator& comm, const Device&) {
      if (is_last(comm)) fail();
      comm.wait(comm.barrier("never met"));
    });
  };
  const auto shape = [] { throw ShapeError("planted"); };
  CHECK(message_of<ShapeError>([&] { run(4, shape); }) == "rank 3/4: planted");
  CHECK(message_of<ShapeError>([&] { run(1, shape); }) == "planted");
  const auto memory = [] { throw OutOfMemory("planted\n  table\n"); };
  CHECK(message_of<OutOfMemory>([&] { run(2, memory); }) == "rank 1/2: planted\n  table\n");
  const auto base = [] { throw Error("planted"); };
  CHECK(message_of<Error>([&] { run(2, base); }) == "rank 1/2: planted");
  const auto standard = [] { throw std::invalid_argument("planted"); };
  CHECK(message_of<std::invalid_argument>([&] { run(2, standard); }) == "rank 1/2: planted");
  // A CommError already names ranks.
  const std::string early = message_of<CommError>([] {
    run_local(2, [](Communicator& comm, const Device&) {
      if (!is_last(comm)) comm.wait(comm.barrier("never met"));
    });
  });
  CHECK(early.starts_with("rank 1 returned early, in step 0"));
  // An exception that is more than a message is rethrown unchanged.
  struct Derived : Error {
    using Error::Error;
    int more = 7;
  };
  const auto derived = [] { throw Derived("planted"); };
  CHECK(message_of<Derived>([&] { run(2, derived); }) == "planted");
  const auto number = [] { throw 7; };
  CHECK_THROWS_AS(run(2, number), int);
}

TEST_CASE("an exception in the combine function of one rank ends all ranks") {
  for (const int ranks : group_sizes) {
    const auto errors = errors_in_step_5(ranks, [](Communicator& comm, const Device& device) {
      const Tensor full = Tensor::zeros({2 * comm.size()}, DType::f32, device);
      const Tensor shard = Tensor::zeros({2}, DType::f32, device);
      const auto combine = [](const Tensor&, const Tensor& shard, bool, Stream&) {
        if (shard.data<float>()[0] != 0.0f) throw DeviceError("planted");
      };
      if (is_last(comm)) shard.data<float>()[0] = 1.0f;
      comm.wait(comm.reduce_scatter(full, shard, false, combine, "block.5 gradients"));
    });
    CHECK(errors.back() == "planted");
    for (int rank = 0; rank + 1 < ranks; ++rank) {
      const std::string& error = errors[static_cast<size_t>(rank)];
      CHECK(contains(error, "rank " + std::to_string(ranks - 1) + " failed in step 5, after "));
      CHECK(contains(error, "collective #1, reduce_scatter of 'block.5 gradients' (f32, 2 "));
      CHECK(contains(error, ": DeviceError: planted"));
    }
  }
}

TEST_CASE(
    "calls that differ in op, name, dtype or count are an error on every rank, with both calls") {
  struct Pair {
    Exchange others, last;
  };
  std::vector<Pair> pairs;
  for (const Collective kind : kinds) {
    for (const Collective other : kinds)
      if (kind != other) pairs.push_back({{kind}, {other}});
    // The last rank skips a collective.
    pairs.push_back({{kind}, {kind, "block.6"}});
    if (kind != Collective::barrier && !Exchange{kind}.has_pieces())
      pairs.push_back({{kind}, {.kind = kind, .count = 4}});
  }
  for (const Collective kind : {Collective::broadcast, Collective::scatter})
    pairs.push_back({{kind}, {.kind = kind, .root = 1}});
  for (const Collective kind : {Collective::all_gather, Collective::all_to_all, Collective::scatter,
                                Collective::reduce_scatter})
    pairs.push_back({{kind}, {.kind = kind, .dtype = DType::bf16}});

  for (const auto& [others, last] : pairs)
    for (const int ranks : group_sizes) {
      INFO(others.text(), ", ", last.text());
      const auto errors = errors_in_step_5(ranks, [&](Communicator& comm, const Device& device) {
        (is_last(comm) ? last : others)(comm, device);
      });
      for (const std::string& error : errors) {
        CHECK(contains(error, "ranks disagree at collective #1 in step 5: rank "));
        CHECK(contains(error, "rank " + std::to_string(ranks - 1) + " calls " + last.text()));
        CHECK(contains(error, " calls " + others.text()));
      }
    }
}

TEST_CASE("ranks that disagree on the size of a piece all name both ranks and both sizes") {
  for (const Collective kind : {Collective::all_to_all, Collective::scatter})
    for (const int ranks : group_sizes) {
      const auto errors = errors_in_step_5(ranks, [&](Communicator& comm, const Device& device) {
        Exchange{.kind = kind, .count = is_last(comm) ? 4 : 3}(comm, device);
      });
      for (const std::string& error : errors)
        CHECK(error == "rank 0 sends 3 elements to rank " + std::to_string(ranks - 1) +
                           ", which expects 4: collective #1, " + Exchange{kind}.text() +
                           ", in step 5; each pair of ranks must agree on the size of a piece");
    }
}

TEST_CASE("a rank that makes an extra call gets an error that names the rank that has returned") {
  for (const Collective kind : kinds) {
    const Exchange exchange{kind};
    const auto errors = errors_in_step_5(2, [&](Communicator& comm, const Device& device) {
      if (is_last(comm)) exchange(comm, device);
    });
    CHECK(errors[0] == "");
    CHECK(contains(errors[1], "rank 0 returned early, in step 5"));
    CHECK(contains(errors[1], "collective #1, " + exchange.text()));
  }
}

// stall_variable: "KIND RANKS"

TEST_CASE("stall: run by the next test" * doctest::skip()) {
  std::istringstream words(std::getenv(stall_variable));
  int kind = 0, ranks = 0;
  words >> kind >> ranks;
  const auto body = [&](Communicator& comm, const Device& device) {
    while (is_last(comm)) std::this_thread::sleep_for(std::chrono::hours(1));
    try {
      Exchange{kinds[kind]}(comm, device);
    } catch (const CommError& error) {
      std::fprintf(stderr, "rank %d: %s\n", comm.rank(), error.what());
      throw;
    }
  };
  errors_in_step_5(ranks, body, stall_timeout_s);
}

TEST_CASE("ranks that take seconds to release what they hold do not hide the failure") {
  // Memory of gigabytes, or a file on a drive. The process would end, and this test with it.
  struct Held {
    ~Held() { std::this_thread::sleep_for(std::chrono::milliseconds(2500)); }
  };
  const auto body = [](Communicator& comm, const Device&) {
    const Held held;
    if (comm.rank() == 1) {
      comm.abort("no memory");  // as zero::Trainer does before it throws
      throw OutOfMemory("no memory");
    }
    comm.wait(comm.barrier("end"));
  };
  CHECK_ERROR(OutOfMemory, "no memory", run_local(2, body));
}

TEST_CASE(
    "a rank that computes for long after a failure ends the process with the cause's status") {
  const EndedTest ended = end_of_own_test(start_own_test("computes: run by the test before"));
  const std::string& text = ended.text;
  CAPTURE(text);
  CHECK(ended.status == 3);
  CHECK(contains(text, "error: OutOfMemory: no memory"));
  CHECK(contains(text, "rank 0 is still running the program's code and cannot be ended"));
}

TEST_CASE("computes: run by the test before" * doctest::skip()) {
  run_local(2, [](Communicator& comm, const Device&) {
    if (comm.rank() == 1) throw OutOfMemory("no memory");
    std::this_thread::sleep_for(std::chrono::minutes(5));
  });
}

TEST_CASE(
    "a rank that stalls for good ends the process with status 4, and all other ranks name it") {
  struct Process {
    Exchange exchange;
    int ranks;
    FILE* output;
  };
  std::vector<Process> processes;
  for (const Collective kind : kinds)
    for (const int ranks : group_sizes) {
      const std::string variable = std::string(stall_variable) + "='" +
                                   std::to_string(static_cast<int>(kind)) + " " +
                                   std::to_string(ranks) + "'";
      processes.push_back({{kind}, ranks, start_own_test("stall: run by the next test", variable)});
    }
  for (const auto& [exchange, ranks, output] : processes) {
    const EndedTest ended = end_of_own_test(output);
    const std::string& text = ended.text;
    CAPTURE(text);
    CHECK(ended.status == 4);
    const std::string last = std::to_string(ranks - 1);
    const std::string late = "rank " + last + " did not arrive within 4 s: collective #1, " +
                             exchange.text() + ", in step 5;";
    CHECK(contains(text, "error: CommError: " + late));
    CHECK(contains(text, "\nrank " + last + " is still running the program's code"));
    for (int rank = 0; rank + 1 < ranks; ++rank)
      CHECK(contains(text, "rank " + std::to_string(rank) + ": " + late));
  }
}
