#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/comm/chain.h"
#include "tests/runtime/comm/mesh_checks.h"
#include "tests/runtime/comm/mpirun.h"
#include "tests/runtime/comm/ranks.h"
#include "tests/support/error_message.h"
#include "zerograd/runtime/comm/processes.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int mpi_stages = 4;
constexpr double mpi_timeout_s = 12.0;  // enough for a loaded machine to start all ranks

/// Uses two groups of the same ranks at once: they neither wait for each other nor mix data.
void check_beside(Communicator& comm, const Device& device) {
  std::vector<int> all, reversed;
  for (int rank = 0; rank < comm.size(); ++rank) all.push_back(rank);
  reversed.assign(all.rbegin(), all.rend());
  const auto first = comm.group(all, "first"), second = comm.group(reversed, "second");
  constexpr int64_t numel = 3001;
  const Tensor late = Tensor::full({numel}, comm.rank() + 0.5, DType::f32, device);
  const Tensor full = Tensor::full({numel * comm.size()}, comm.rank() + 1, DType::f32, device);
  const Tensor shard = Tensor::zeros({numel}, DType::f32, device);
  // Rank 0 posts this broadcast of the first group before the collectives that the others wait for.
  Communicator::Ticket early = -1;
  if (comm.rank() == 0) early = first->broadcast(late, comm.size() - 1, "late");
  second->wait(second->reduce_scatter(full, shard, true, add_floats, "g"));
  comm.wait(comm.barrier("all"));
  if (comm.rank() != 0) early = first->broadcast(late, comm.size() - 1, "late");
  first->wait(early);
  const auto n = static_cast<float>(comm.size());
  expect(shard.to_host<float>() == std::vector<float>(numel, n * (n + 1) / 2), "sums");
  expect(late.to_host<float>() == std::vector<float>(numel, n - 0.5f), "late");
  expect(first->wire()[static_cast<size_t>(Collective::broadcast)].bytes ==
             (first->rank() + 1 == comm.size() ? 0 : numel * 4),
         "wire of the first");
  expect(second->wire()[static_cast<size_t>(Collective::reduce_scatter)].bytes ==
             (comm.size() - 1) * numel * 4,
         "wire of the second");
}

void check_groups(Communicator& comm, const Device& device) {
  check_beside(comm, device);
  check_beside(comm, device);  // the group names can be used again
  const int ranks = comm.size();
  check_mesh(comm, {.pipeline = ranks}, device);
  check_mesh(comm, {.data = ranks}, device);
  if (ranks % 2 == 0) check_mesh(comm, {.data = 2, .pipeline = ranks / 2}, device);
  if (ranks == 8) check_mesh(comm, {.data = 2, .pipeline = 2, .tensor = 2}, device);
  const int alone[] = {comm.rank()};
  const auto own = comm.group(alone, "alone");
  const Tensor x = Tensor::full({5}, 2, DType::f32, device),
               y = Tensor::zeros({5}, DType::f32, device);
  own->wait(own->all_gather(x, y, "x"));
  own->wait(own->reduce_scatter(y, x, false, add_floats, "g"));
  own->wait(own->broadcast(x, 0, "x"));
  expect(x.to_host<float>() == std::vector<float>(5, 4.0f), "alone");
}

/// `saying` ranks print an error.
[[noreturn]] void say_and_end(const CommError& error, int saying) {
  std::fprintf(stderr, "rank %d: %s\n", process_rank()->rank, error.what());
  end_with_others(4, saying);
}

/// Runs a fault in a stage that should continue.
bool strike(const std::string& fault) {
  if (fault == "kill") std::raise(SIGKILL);
  if (fault == "stop") std::raise(SIGSTOP);
  if (fault == "throw") throw ShapeError("planted");
  while (fault == "stall") std::this_thread::sleep_for(std::chrono::hours(1));
  return false;
}

}  // namespace

TEST_CASE("mpi child: groups" * doctest::skip()) {
  run_processes(check_groups, {.timeout_s = 240});
}

TEST_CASE("mpi: groups of processes hold the right ranks, and groups do not wait for each other") {
  if (skips_mpi("groups")) return;
  for (const int ranks : {3, 8}) {
    run_local(ranks, check_groups);  // the same checks with threads
    const Ended ended = mpirun(ranks, "mpi child: groups");
    CAPTURE(ended.text);
    CHECK(ended.status == 0);
    CHECK(contains(ended.text, "1 passed"));
  }
}

TEST_CASE("mpi child: chain" * doctest::skip()) {
  std::signal(SIGTERM, SIG_IGN);  // sent by mpirun before it kills
  const std::string text = std::getenv("ZG_TEST_MPI");
  const std::string fault = text.substr(0, text.find(' '));
  const int struck = std::atoi(text.substr(text.find(' ')).c_str());
  const auto body = [&](Communicator& comm, const Device& device) {
    run_chain(comm, device,
              [&](int step) { return step < 5 || comm.rank() != struck || strike(fault); });
  };
  try {
    run_processes(body, {.timeout_s = mpi_timeout_s});
  } catch (const CommError& error) {
    // The others must have printed their errors before any rank ends. The struck rank may see one,
    // too.
    if (process_rank()->rank != struck) say_and_end(error, mpi_stages - 1);
  } catch (const ShapeError&) {
    await_others(mpi_stages - 1);
    throw;
  }
  await_others(mpi_stages - 1);
}

TEST_CASE("mpi: a stage that is killed, stopped, stalls, throws or leaves is named by all others") {
  if (skips_mpi("faults of stages")) return;
  // Each fault at one stage; group_failure_test.cpp has faults at every stage, between threads.
  struct Fault {
    std::string name, words;
    int struck;
  };
  const Fault faults[] = {
      {"kill", R"(rank V \(pid \d+\) is gone, last heard of in step)", 0},
      {"stop", "rank V did not (arrive|finish) within 12 s: collective #5, broadcast of 'activ", 1},
      {"stall", "rank V did not arrive within 12 s: collective #5, broadcast of 'activations'", 2},
      {"throw", "rank V failed in step 5, after .*: ShapeError: planted; rank R waits in coll", 3},
      {"return", "rank V returned early, in step 5; the others are at collective #5, broadca", 1}};
  std::vector<std::future<Ended>> all;
  for (const auto& [name, words, struck] : faults) {
    const std::string child = "ZG_TEST_MPI='" + name + " " + std::to_string(struck) + "'";
    // mpirun waits twice as long before it kills the others of one that ended.
    const char* const options =
        name == "kill" || name == "stall" ? "--mca odls_base_sigkill_timeout 6" : "";
    all.push_back(std::async(std::launch::async, [child, options] {
      return mpirun(mpi_stages, "mpi child: chain", child, options);
    }));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [name, words, struck] = faults[i];
    const Ended ended = all[i].get();
    INFO("fault ", name, ", struck ", struck, ", text ", ended.text);
    CHECK(ended.status != 0);
    for (int rank = 0; rank < mpi_stages; ++rank) {
      if (rank == struck) continue;
      std::string wanted = std::regex_replace(words, std::regex("V"), std::to_string(struck));
      wanted = std::regex_replace(wanted, std::regex("R"), std::to_string(rank));
      CHECK(std::regex_search(ended.text,
                              std::regex("(^|\n)rank " + std::to_string(rank) + ": " + wanted)));
    }
  }
}

TEST_CASE("mpi child: slow stages" * doctest::skip()) {
  const double unit_s = std::stod(std::getenv("ZG_TEST_MPI"));
  const auto body = [&](Communicator& comm, const Device& device) {
    run_chain(comm, device, [&](int step) {
      if (step == 3) std::this_thread::sleep_for(std::chrono::duration<double>(2 * unit_s));
      return true;
    });
  };
  run_processes(body, {.timeout_s = 3 * unit_s});
}

TEST_CASE(
    "mpi: slow stages in sequence cause no timeout even if their delays add up to more than it") {
  if (skips_mpi("slow stages")) return;
  // A pause of the machine can make one delay longer than the timeout. Then longer ones are tried.
  Ended ended{.status = 1, .text = ""};
  for (int unit_s = 1; unit_s <= 16 && ended.status != 0; unit_s *= 4)
    ended = mpirun(3, "mpi child: slow stages", "ZG_TEST_MPI=" + std::to_string(unit_s));
  CAPTURE(ended.text);
  CHECK(ended.status == 0);
}

TEST_CASE("mpi child: a failure in a group" * doctest::skip()) {
  std::signal(SIGTERM, SIG_IGN);  // sent by mpirun before it kills
  const bool in_worker = std::string(std::getenv("ZG_TEST_MPI")) == "worker";
  const auto body = [&](Communicator& comm, const Device& device) {
    if (comm.rank() % 2 == 0) return comm.wait(comm.barrier("of all"));
    const int members[] = {3, 1};  // rank 3 has group rank 0
    const auto group = comm.group(members, "odd");
    const Tensor full = Tensor::zeros({2}, DType::f32, device);
    const Tensor shard = Tensor::full({1}, comm.rank(), DType::f32, device);
    const auto combine = [](const Tensor&, const Tensor& sum, bool, Stream&) {
      if (sum.data<float>()[0] == 3.0f) throw DeviceError("planted");
    };
    if (!in_worker && comm.rank() == 3) throw DeviceError("planted");
    group->wait(group->reduce_scatter(full, shard, false, combine, "x"));
    comm.wait(comm.barrier("of all"));  // rank 1 may be done with the group before rank 3 fails
  };
  try {
    run_processes(body, {.timeout_s = 240});
  } catch (const DeviceError& error) {
    std::fprintf(stderr, "rank %d threw: %s\n", process_rank()->rank, error.what());
    end_with_others(1, 4);
  } catch (const CommError& error) {
    say_and_end(error, 4);
  }
}

TEST_CASE("mpi: a rank that fails in a group is named by its global rank on every rank") {
  if (skips_mpi("faults in groups")) return;
  for (const char* where : {"worker", "own thread"}) {
    CAPTURE(where);
    const Ended ended =
        mpirun(4, "mpi child: a failure in a group", "ZG_TEST_MPI='" + std::string(where) + "'");
    CAPTURE(ended.text);
    CHECK(ended.status != 0);
    CHECK(contains(ended.text, "rank 3 threw: rank 3/4: planted\n"));
    for (const int rank : {0, 1, 2})
      CHECK(std::regex_search(ended.text,
                              std::regex("(^|\n)rank " + std::to_string(rank) +
                                         ": rank 3 failed in step 0, .*: DeviceError: planted")));
  }
}
