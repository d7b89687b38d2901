#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/runtime/comm/mpirun.h"
#include "tests/runtime/comm/ranks.h"
#include "tests/support/error_message.h"
#include "zerograd/autograd/collective.h"
#include "zerograd/runtime/comm/processes.h"

using namespace zg;
using namespace zg::testing;

namespace {

// Differs between neighbouring ranks and indices. Sums depend on the order of addition.
float value_of(int rank, int64_t i) {
  return (rank % 2 ? -1.0f : 1.0f) * static_cast<float>(1 + i % 7) * (rank % 3 ? 1e8f : 1.1f);
}

void check_gather(Communicator& comm, const Device& device, int64_t numel, Chunk chunk) {
  const Tensor full = Tensor::full({numel * comm.size()}, -1.0, DType::f32, device);
  const Tensor shard = full.flat(comm.rank() * numel, numel);  // gathered in place
  for (int64_t i = 0; i < numel; ++i) shard.data<float>()[i] = value_of(comm.rank(), i);
  comm.wait(comm.all_gather(shard, full, "x", chunk));
  const int64_t end = chunk.count < 0 ? numel : chunk.begin + chunk.count;
  for (int rank = 0; rank < comm.size(); ++rank)
    for (int64_t i = 0; i < numel; ++i) {
      const bool moved = rank == comm.rank() || (i >= chunk.begin && i < end);
      expect(full.data<float>()[rank * numel + i] == (moved ? value_of(rank, i) : -1.0f),
             "all_gather: wrong values");
    }
}

void check_reduce_scatter(Communicator& comm, const Device& device, int64_t numel, bool fresh) {
  const Tensor full = Tensor::empty({numel * comm.size()}, DType::f32, device);
  const Tensor shard = Tensor::full({numel}, 3.0, DType::f32, device);
  for (int64_t i = 0; i < full.numel(); ++i) full.data<float>()[i] = value_of(comm.rank(), i);
  comm.wait(comm.reduce_scatter(full, shard, fresh, add_floats, "g"));
  for (int64_t i = 0; i < numel; ++i) {
    const int64_t place = comm.rank() * numel + i;
    float sum = fresh ? value_of(0, place) : value_of(0, place) + 3.0f;
    for (int rank = 1; rank < comm.size(); ++rank) sum = value_of(rank, place) + sum;
    expect(shard.data<float>()[i] == sum, "reduce_scatter: wrong values");
  }
}

void check_sum(Communicator& comm, const Device& device, int64_t numel) {
  const Tensor x = Tensor::full({numel}, comm.rank() + 1.0, DType::i64, device);
  x.data<int64_t>()[numel - 1] = int64_t{1} << 40;
  comm.wait(comm.all_reduce(x, "limbs"));  // as the i64 words of a gradient norm
  const int64_t n = comm.size();
  expect(x.data<int64_t>()[0] == (numel == 1 ? n << 40 : n * (n + 1) / 2),
         "all_reduce: wrong first sum");
  expect(x.data<int64_t>()[numel - 1] == n << 40, "all_reduce: wrong last sum");
}

// More bytes than one round of a transfer moves, so that several rounds are needed. The last round
// is not full.
constexpr int64_t large = 700001;

void check_broadcast(Communicator& comm, const Device& device, int64_t numel) {
  for (int root = 0; root < comm.size(); ++root) {
    const Tensor x = Tensor::empty({numel}, DType::f32, device);
    for (int64_t i = 0; i < numel; ++i) x.data<float>()[i] = value_of(comm.rank(), i);
    comm.wait(comm.broadcast(x, root, "h"));
    for (int64_t i = 0; i < numel; ++i)
      expect(x.data<float>()[i] == value_of(root, i), "broadcast: wrong values");
  }
}

void check_floating_sum(Communicator& comm, const Device& device) {
  const Tensor x = Tensor::empty({1001}, DType::f32, device);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = value_of(comm.rank(), i);
  const std::vector<float> sums = all_reduce(x, comm).value().to_host<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    float sum = value_of(0, i);
    for (int rank = 1; rank < comm.size(); ++rank) sum += value_of(rank, i);
    expect(sums[static_cast<size_t>(i)] == sum, "all_reduce of floats: not the sum by rank");
  }
}

void check_collectives(Communicator& comm, const Device& device) {
  for (const int64_t numel : {int64_t{1}, int64_t{1023}, large}) {
    if (numel == large && comm.size() == 8) continue;  // 3 ranks move them
    check_gather(comm, device, numel, {});
    check_reduce_scatter(comm, device, numel, true);
    check_reduce_scatter(comm, device, numel, false);
    check_sum(comm, device, numel);
    check_broadcast(comm, device, numel);
    check_pieces(comm, device, numel / 4);
  }
  check_messages(comm, device);
  check_floating_sum(comm, device);
  check_gather(comm, device, 1023, {.begin = 5, .count = 17});
  std::vector<Communicator::Ticket> tickets;
  for (int i = 0; i < 50; ++i) tickets.push_back(comm.barrier("ahead " + std::to_string(i)));
  comm.wait(tickets.back());

  const auto counting = counting_communicator(comm.rank(), comm.size());
  const auto before = comm.wire()[0].bytes;
  const Tensor shard = Tensor::zeros({9}, DType::bf16, device);
  const Tensor full = Tensor::zeros({9 * comm.size()}, DType::bf16, device);
  comm.wait(comm.all_gather(shard, full, "counted"));
  counting->all_gather(shard, full, "counted");
  expect(comm.wire()[0].bytes - before == counting->wire()[0].bytes,
         "wire(): wrong number of bytes");
}

}  // namespace

TEST_CASE("mpi child: collectives" * doctest::skip()) {
  run_processes(check_collectives, {.timeout_s = 240});
}

TEST_CASE("mpi child: one calls something else" * doctest::skip()) {
  const std::string kind = std::getenv("ZG_TEST_MPI");
  const auto body = [&](Communicator& comm, const Device& device) {
    comm.set_step(5);
    const bool other = comm.rank() + 1 == comm.size();
    const Tensor x = Tensor::zeros({other && kind == "count" ? 4 : 3}, DType::i64, device);
    if (kind == "piece") {
      const Pieces sent{Tensor::zeros({3}, DType::f32, device), {1, 1, 1}};
      const int64_t first = other ? 2 : 1;
      const Pieces received{Tensor::zeros({first + 2}, DType::f32, device), {first, 1, 1}};
      return comm.wait(comm.all_to_all(sent, received, "tokens"));
    }
    if (other && kind == "op") return comm.wait(comm.barrier("limbs"));
    comm.wait(comm.all_reduce(x, other && kind == "name" ? "norm" : "limbs"));
  };
  try {
    run_processes(body, {.timeout_s = 240});
  } catch (const CommError& error) {
    std::fprintf(stderr, "rank %d: %s\n", process_rank()->rank, error.what());
    end_with_others(4, 3);
  }
}

TEST_CASE("mpi child: twice" * doctest::skip()) {
  const auto nothing = [](Communicator&, const Device&) {};
  run_processes(nothing, {.timeout_s = 240});
  CHECK_ERROR(ConfigError, "MPI was started before in this process",
              run_processes(nothing, {.timeout_s = 240}));
}

TEST_CASE("mpi: a second call in a process is an error and does not end it") {
  if (skips_mpi("a second call")) return;
  const Ended ended = mpirun(2, "mpi child: twice");
  CAPTURE(ended.text);
  CHECK(ended.status == 0);
  CHECK(contains(ended.text, "1 passed"));
}

TEST_CASE("mpi: a piece that its receiver expects with another size ends all ranks") {
  if (skips_mpi("mismatches")) return;
  const Ended ended = mpirun(3, "mpi child: one calls something else", "ZG_TEST_MPI=piece");
  CAPTURE(ended.text);
  CHECK(ended.status == 4);
  for (const char* rank : {"rank 0: ", "rank 1: ", "rank 2: "})
    CHECK(contains(
        ended.text,
        rank + std::string("rank 0 sends 1 elements to rank 2, which expects 2: collective "
                           "#0, all_to_all of 'tokens' (f32), in step 5; each pair")));
}

TEST_CASE("mpi: collectives between processes give what they give between threads") {
  if (skips_mpi("collectives")) return;
  for (const int ranks : {3, 8}) {
    run_local(ranks, check_collectives);  // the same checks
    const Ended ended = mpirun(ranks, "mpi child: collectives");
    CAPTURE(ended.text);
    CHECK(ended.status == 0);
    CHECK(contains(ended.text, "1 passed"));
  }
}

TEST_CASE(
    "mpi: a process that makes a different call ends all ranks, whose errors show both calls") {
  if (skips_mpi("mismatches")) return;
  const std::pair<const char*, const char*> kinds[] = {
      {"op", "barrier of 'limbs' (u8, 0 elements)"},
      {"count", "all_reduce of 'limbs' (i64, 4 elements)"},
      {"name", "all_reduce of 'norm' (i64, 3 elements)"}};
  for (const auto& [kind, call] : kinds) {
    const Ended ended =
        mpirun(3, "mpi child: one calls something else", "ZG_TEST_MPI=" + std::string(kind));
    CAPTURE(ended.text);
    CHECK(ended.status == 4);
    for (const char* rank : {"rank 0: ", "rank 1: ", "rank 2: "})
      CHECK(
          contains(ended.text, rank + std::string("ranks disagree at collective #0 in step 5: ")));
    CHECK(contains(ended.text, "calls all_reduce of 'limbs' (i64, 3 elements)"));
    CHECK(contains(ended.text, std::string("calls ") + call));
  }
}
