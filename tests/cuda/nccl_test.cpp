#include "zerograd/runtime/cuda/nccl.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/accelerator/channels.h"
#include "tests/fakes/cuda/launch.h"
#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "tests/support/scoped_variable.h"
#include "zerograd/autograd/collective.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

using Body = std::function<void(Communicator&, const Device&)>;

struct Way {
  const char* name;
  std::string transport;  // as the communicator reports it
};
const Way by_nccl{"nccl", "NCCL 2.28.9"};
const Way direct{"direct", "the peers' memory; not by NCCL: ZG_CUDA_COMM=direct"};

/// The results of each rank; the index is the rank.
using ValuesByRank = std::vector<std::vector<double>>;

ValuesByRank values_of(
    int ranks, const Way& way,
    const std::function<std::vector<double>(Communicator&, const Device&)>& body) {
  const ScopedVariable wish("ZG_CUDA_COMM", way.name);
  ValuesByRank values(static_cast<size_t>(ranks));
  const int64_t before = emulator::nccl_operations();
  const auto rank = [&](Communicator& comm, const Device& device) {
    if (comm.transport() != way.transport) throw ConfigError(comm.transport());
    values[static_cast<size_t>(comm.rank())] = body(comm, device);
  };
  run_local(ranks, rank, {.type = Device::Type::cuda});
  CHECK((emulator::nccl_operations() > before) == (way.name == by_nccl.name));
  return values;
}

Tensor numbers(Communicator& comm, int64_t numel, DType dtype, const Device& device) {
  return random_tensor({numel}, dtype, device, static_cast<uint64_t>(comm.rank()), -1e3, 1e3);
}

void append(std::vector<double>& all, const Tensor& tensor) {
  const std::vector<double> more = tensor.to_doubles();
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("all_gather by NCCL equals that by peer copies: whole, in parts, in place, on the host") {
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto gathers = [&](Communicator& comm, const Device& device) {
        std::vector<double> all;
        const Tensor shard = numbers(comm, 37, dtype, device);
        for (const Space space : {Space::device, Space::pinned}) {
          const Tensor full = Tensor::empty({ranks * 37}, dtype, device, space);
          comm.wait(comm.all_gather(shard, full, "whole"));
          append(all, full);
          const Tensor parts = Tensor::empty({ranks * 37}, dtype, device, space);
          comm.all_gather(shard, parts, "parts", {0, 20});
          comm.wait(comm.all_gather(shard, parts, "parts", {20, 17}));
          append(all, parts);
        }
        const Tensor full = Tensor::zeros({ranks * 37}, dtype, device);
        const Tensor own = full.flat(comm.rank() * 37, 37);
        copy(shard, own, device.compute());
        comm.wait(comm.all_gather(own, full, "in place", {3, 30}));
        append(all, full);
        const Tensor host = Tensor::empty({37}, dtype, device, Space::pinned);
        copy(shard, host, device.compute());
        comm.wait(comm.all_gather(host, full, "from the host"));
        append(all, full);
        // Tensors that are not on a device do not use NCCL.
        const Device cpu = Device::cpu();
        const Tensor text = Tensor::full({3}, comm.rank(), DType::u8, cpu);
        const Tensor texts = Tensor::empty({3 * ranks}, DType::u8, cpu);
        comm.wait(comm.all_gather(text, texts, "texts"));
        for (const uint8_t letter : texts.to_host<uint8_t>()) all.push_back(letter);
        return all;
      };
      CHECK(values_of(ranks, by_nccl, gathers) == values_of(ranks, direct, gathers));
    }
}

TEST_CASE("reduce_scatter by NCCL adds terms in rising rank, and sums integers") {
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto folds = [&](Communicator& comm, const Device& device) {
        std::vector<double> all;
        const Tensor sums = Tensor::empty({37}, DType::f32, device);
        for (const Space space : {Space::device, Space::pinned})
          for (const bool fresh : {true, false}) {
            const Tensor full = Tensor::empty({ranks * 37}, dtype, device, space);
            copy(numbers(comm, ranks * 37, dtype, device), full, device.compute());
            comm.reduce_scatter(full, sums, fresh, fold, "g", {0, 3});
            comm.wait(comm.reduce_scatter(full, sums, fresh, fold, "g", {3, 34}));  // a longer part
            append(all, sums);
          }
        const Tensor whole = numbers(comm, ranks * 37, dtype, device);
        comm.wait(comm.reduce_scatter(whole, sums, false, fold, "g"));
        append(all, sums);
        const Tensor x = Tensor::full({300}, comm.rank() + 1.0, DType::i64, device);
        comm.wait(comm.all_reduce(x, "limbs"));
        for (const int64_t value : x.to_host<int64_t>()) all.push_back(double(value));
        return all;
      };
      CHECK(values_of(ranks, by_nccl, folds) == values_of(ranks, direct, folds));
    }
}

TEST_CASE(
    "broadcast by NCCL equals that by peer copies: from any root, on the device and on the host") {
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
      const auto sends = [&](Communicator& comm, const Device& device) {
        std::vector<double> all;
        for (int root = 0; root < ranks; ++root)
          for (const Space space : {Space::device, Space::pinned}) {
            const Tensor x = Tensor::empty({3, 37}, dtype, device, space);
            copy(Tensor::full({3, 37}, comm.rank() + 0.0, dtype, device), x, device.compute());
            comm.wait(comm.broadcast(x, root, "x"));
            append(all, x);
            const Tensor text = Tensor::full({3}, comm.rank(), DType::u8, Device::cpu());
            comm.wait(comm.broadcast(text, root, "text"));
            append(all, text);
          }
        return all;
      };
      CHECK(values_of(ranks, by_nccl, sends) == values_of(ranks, direct, sends));
    }
}

TEST_CASE("pieces and messages by NCCL arrive as by peer copies, and floats are summed by rank") {
  for (const int ranks : {2, 4}) {
    const auto all = [&](Communicator& comm, const Device& device) {
      check_pieces(comm, device, 5);
      check_messages(comm, device);
      std::vector<double> sums;
      for (const DType dtype : {DType::f32, DType::bf16})
        append(sums, all_reduce(numbers(comm, 37, dtype, device), comm).value());
      return sums;
    };
    ValuesByRank threads(static_cast<size_t>(ranks));  // of the CPU
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      threads[static_cast<size_t>(comm.rank())] = all(comm, device);
    });
    CHECK(values_of(ranks, by_nccl, all) == threads);
    CHECK(values_of(ranks, direct, all) == threads);
  }
}

TEST_CASE("each group has its own NCCL communicator, and groups work at the same time") {
  const auto values = [](const Way& way) {
    return values_of(4, way, [&](Communicator& comm, const Device& device) {
      const int rank = comm.rank();
      const int row[] = {rank / 2 * 2, rank / 2 * 2 + 1}, column[] = {rank % 2, rank % 2 + 2};
      const auto rows = comm.group(row, "row"), columns = comm.group(column, "column");
      if (rows->transport() != way.transport) throw ConfigError(rows->transport());
      std::vector<double> all;
      const Tensor full = numbers(comm, 2 * 37, DType::bf16, device);
      const Tensor sums = Tensor::zeros({37}, DType::f32, device);
      const Tensor x = numbers(comm, 41, DType::f32, device);
      const Tensor gathered = Tensor::zeros({82}, DType::f32, device);
      // Half of the ranks call the collectives in the other order.
      Communicator::Ticket sent = -1;
      if (rank < 2) sent = columns->broadcast(x, 1, "x");
      const auto folded = rows->reduce_scatter(full, sums, true, fold, "g");
      if (rank >= 2) sent = columns->broadcast(x, 1, "x");
      columns->wait(sent);
      append(all, x);
      columns->wait(columns->all_gather(x, gathered, "x"));
      append(all, gathered);
      rows->wait(folded);
      append(all, sums);
      comm.wait(comm.barrier("end"));
      return all;
    });
  };
  CHECK(values(by_nccl) == values(direct));
}

TEST_CASE("a group whose ranks share no GPU uses NCCL even if the world does not") {
  const ScopedVariable wish("ZG_CUDA_COMM", "");
  const int ranks = Device::count(Device::Type::cuda) + 1;
  run_local(ranks,
            [&](Communicator& comm, const Device& device) {
              const int apart[] = {0, 1}, shared[] = {0, ranks - 1};
              const Tensor x = Tensor::full({5}, comm.rank() + 1.0, DType::f32, device);
              const auto sends = [&](std::span<const int> members, const std::string& transport) {
                const auto group = comm.group(members, "two");
                if (!contains(group->transport(), transport)) throw ConfigError(group->transport());
                group->wait(group->broadcast(x, 0, "x"));
                if (x.to_doubles() != std::vector<double>(5, 1.0)) throw ShapeError("sent");
              };
              if (comm.rank() < 2) sends(apart, by_nccl.transport);
              if (comm.rank() % (ranks - 1) == 0) sends(shared, "not by NCCL: ranks 0 and 1 share");
            },
            {.type = Device::Type::cuda});
}

TEST_CASE("a reduce_scatter larger than the window takes several rounds") {
  const int64_t numel = (int64_t{16} << 20) / 4 + 77;  // a slot of two ranks is 16 MiB
  const auto rounds = [&](Communicator& comm, const Device& device) {
    const Tensor full = Tensor::full({2 * numel}, comm.rank() + 0.5, DType::f32, device);
    const Tensor sums = Tensor::empty({numel}, DType::f32, device);
    comm.wait(comm.reduce_scatter(full, sums, true, fold, "g"));
    if (device.memory().live() !=
        arena_bytes(full.bytes()) + arena_bytes(sums.bytes()) + (int64_t{32} << 20))
      throw ShapeError("live bytes");
    const std::vector<float> values = sums.to_host<float>();
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] != 2.0f) throw ShapeError("element " + std::to_string(i));
    return std::vector<double>{values.back()};
  };
  CHECK(values_of(2, by_nccl, rounds) == ValuesByRank{{2.0}, {2.0}});
}

TEST_CASE("a transfer from the host larger than the window takes several rounds") {
  const int64_t numel = (int64_t{16} << 20) / 4 + 77;  // the window is 16 MiB
  const auto rounds = [&](Communicator& comm, const Device& device) {
    const Tensor x = Tensor::full({numel}, comm.rank() + 0.5, DType::f32, device);
    const Tensor host = Tensor::empty({numel}, DType::f32, device, Space::pinned);
    copy(x, host, device.compute());
    comm.wait(comm.broadcast(host, 1, "h"));
    const std::vector<float> values = host.to_host<float>();
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] != 1.5f) throw ShapeError("element " + std::to_string(i));
    return std::vector<double>{values.back()};
  };
  CHECK(values_of(2, by_nccl, rounds) == ValuesByRank{{1.5}, {1.5}});
}

TEST_CASE("sums computed by NCCL itself are close to the exact ones but not equal, and need NCCL") {
  const auto sums_of = [](bool by_library) {
    return values_of(4, by_nccl, [by_library](Communicator& comm, const Device& device) {
      if (by_library) comm.sum_by_library();
      std::vector<double> all;
      const Tensor sums = Tensor::empty({500}, DType::f32, device);
      const Tensor full = numbers(comm, 4 * 500, DType::f32, device);
      comm.wait(comm.reduce_scatter(full, sums, true, fold, "g"));
      append(all, sums);
      const Tensor parts = numbers(comm, 4 * 500, DType::f32, device);
      comm.reduce_scatter(parts, sums, true, fold, "g", {0, 123});
      comm.wait(comm.reduce_scatter(parts, sums, true, fold, "g", {123, 377}));
      append(all, sums);
      return all;
    });
  };
  const ValuesByRank exact = sums_of(false), inexact = sums_of(true);
  CHECK(exact != inexact);
  for (size_t rank = 0; rank < 4; ++rank)
    for (size_t i = 0; i < 1000; ++i)  // in both sums, three additions with results up to 4e3
      REQUIRE(std::abs(exact[rank][i] - inexact[rank][i]) <= 6 * 4e3 * unit_roundoff(DType::f32));
  // Without NCCL it throws Unsupported with the reason.
  const auto asks = [](Communicator& comm, const Device&) { comm.sum_by_library(); };
  const ScopedVariable wish("ZG_CUDA_COMM", "direct");
  const std::string text =
      message_of<Unsupported>([&] { run_local(2, asks, {.type = Device::Type::cuda}); });
  CHECK(contains(text, "nccl_reduce: NCCL does not carry these ranks' data (the peers' memory"));
  CHECK(contains(text, "ZG_CUDA_COMM=direct"));
  CHECK_THROWS_AS(run_local(2, asks), Unsupported);
  run_local(1, asks);  // one rank has nothing to add
}

TEST_CASE("ranks that share a GPU work without NCCL, or are refused if it is requested") {
  const int ranks = Device::count(Device::Type::cuda) + 1;
  const auto body = [](Communicator& comm, const Device&) {
    if (!contains(comm.transport(), "the peers' memory; not by NCCL: ranks 0 and 8 share "))
      throw ConfigError(comm.transport());
    comm.wait(comm.barrier("all"));
  };
  {
    const ScopedVariable wish("ZG_CUDA_COMM", "");
    run_local(ranks, body, {.type = Device::Type::cuda});
  }
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl");
  const std::string text =
      message_of<ConfigError>([&] { run_local(ranks, body, {.type = Device::Type::cuda}); });
  CHECK(contains(text, "ZG_CUDA_COMM=nccl, but ranks 0 and 8 share "));
  CHECK(contains(text, "try fewer ranks or ZG_CUDA_COMM=direct"));
}

TEST_CASE(
    "ranks whose machine gives NCCL no id work without it, or are refused if it is requested") {
  const ScopedVariable fault("ZG_EMULATOR_NCCL", "no id");
  const auto body = [](Communicator& comm, const Device&) {
    if (!contains(comm.transport(), "the peers' memory; not by NCCL: no id for the ranks: "))
      throw ConfigError(comm.transport());
    comm.wait(comm.barrier("all"));
  };
  {
    const ScopedVariable wish("ZG_CUDA_COMM", "");
    run_local(2, body, {.type = Device::Type::cuda});
  }
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl");
  const std::string text =
      message_of<ConfigError>([&] { run_local(2, body, {.type = Device::Type::cuda}); });
  CHECK(contains(text, "ZG_CUDA_COMM=nccl, but no id for the ranks: "));
  CHECK(contains(text, "expected NCCL with a network, and a GPU for every rank"));
}

TEST_CASE("ZG_CUDA_COMM is direct or nccl") {
  {
    const ScopedVariable wish("ZG_CUDA_COMM", "direct");
    CHECK(cuda::describe_nccl() == "no NCCL (ZG_CUDA_COMM=direct)");
  }
  const ScopedVariable wish("ZG_CUDA_COMM", "mpi");
  CHECK_THROWS_WITH_AS(cuda::nccl(),
                       "ZG_CUDA_COMM is 'mpi'; expected direct or nccl; try to unset ZG_CUDA_COMM: "
                       "then NCCL is used where it is available",
                       ConfigError);
}

TEST_CASE("a rank that fails or stalls in NCCL ends all ranks, which name it and the collective") {
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl");
  struct Case {
    const char* fault;
    const char* part;
  };
  for (const auto& [fault, part] :
       {Case{"2:3:error",
             "rank 2 failed in step 7, after collective #2, all_gather of 'block.5' (f32, 5 "
             "elements): DeviceError: NCCL: unhandled system error"},
        Case{"2:3:stall",
             " did not finish within 5 s: collective #2, all_gather of 'block.5' "
             "(f32, 5 elements), in step 7"}}) {
    CAPTURE(fault);
    const ScopedVariable plants("ZG_EMULATOR_NCCL", fault);
    std::vector<std::string> said(4);
    const auto body = [&](Communicator& comm, const Device& device) {
      comm.set_step(7);
      const Tensor shard = Tensor::zeros({5}, DType::f32, device);
      const Tensor full = Tensor::zeros({20}, DType::f32, device);
      said[static_cast<size_t>(comm.rank())] = message_of<CommError>([&] {
        for (const char* name : {"block.3", "block.4", "block.5"})
          comm.wait(comm.all_gather(shard, full, name));
      });
    };
    run_local(4, body, {.timeout_s = 5, .type = Device::Type::cuda});
    for (const std::string& text : said) {
      CAPTURE(text);
      CHECK(contains(text, part));
    }
  }
}

TEST_CASE("a group that stalls in NCCL ends all ranks, which name the collective") {
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl");
  const ScopedVariable plants("ZG_EMULATOR_NCCL",
                              "1:1:stall");  // the group's rank 1, in its first call
  std::vector<std::string> said(4);
  const auto body = [&](Communicator& comm, const Device& device) {
    comm.set_step(7);
    const Tensor x = Tensor::zeros({5}, DType::f32, device);
    said[static_cast<size_t>(comm.rank())] = message_of<CommError>([&] {
      if (comm.rank() < 2) {
        const int pair[] = {0, 1};
        const auto group = comm.group(pair, "pair");
        group->wait(group->broadcast(x, 0, "activations"));
      }
      comm.wait(comm.barrier("end"));
    });
  };
  run_local(4, body, {.timeout_s = 5, .type = Device::Type::cuda});
  for (const std::string& text : said) {
    CAPTURE(text);
    CHECK(contains(text,
                   " did not finish within 5 s: collective #0, broadcast of 'activations' (f32, 5 "
                   "elements, from rank 0) in group 'pair', in step 7"));
  }
  CHECK(contains(said[3], "; rank 3 waits in collective #0, barrier of 'end'"));
}

TEST_CASE("a rank that throws while its group is in an NCCL call is named by all ranks") {
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl");
  const ScopedVariable plants("ZG_EMULATOR_NCCL", "1:1:stall");
  std::vector<std::string> said(1);
  const auto body = [&](Communicator& comm, const Device& device) {
    const int pair[] = {0, 1};
    const auto group = comm.group(pair, "pair");
    const Tensor x = Tensor::zeros({5}, DType::f32, device);
    const auto sent = group->broadcast(x, 0, "activations");
    comm.wait(comm.barrier("both are there"));
    if (comm.rank() == 1) throw ShapeError("a shape");
    said[0] = message_of<CommError>([&] { group->wait(sent); });
  };
  CHECK_THROWS_WITH_AS(run_local(2, body, {.timeout_s = 240, .type = Device::Type::cuda}),
                       "rank 1/2: a shape", ShapeError);
  CHECK(contains(said[0], "rank 1 failed in step 0, after collective #0, "));
  CHECK(contains(said[0], ": ShapeError: a shape; rank 0 waits in collective #0, broadcast of "));
}

TEST_CASE("a rank that throws is named while peers wait in NCCL") {
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl");
  const auto body = [](Communicator& comm, const Device& device) {
    comm.set_step(3);
    const Tensor x = Tensor::zeros({4}, DType::i64, device);
    comm.wait(comm.all_reduce(x, "first"));
    if (comm.rank() == 1) throw ShapeError("a shape");
    const std::string text =
        message_of<CommError>([&] { comm.wait(comm.all_reduce(x, "second")); });
    if (!contains(text,
                  "rank 1 failed in step 3, after collective #0, all_reduce of 'first' (i64, "
                  "4 elements): ShapeError: a shape"))
      throw ConfigError(text);
  };
  CHECK_THROWS_WITH_AS(run_local(3, body, {.type = Device::Type::cuda}), "rank 1/3: a shape",
                       ShapeError);
}

TEST_SUITE_END();
