#include "zerograd/runtime/comm/communicator.h"

#include <doctest/doctest.h>

#include <mutex>
#include <string>
#include <vector>

#include "tests/accelerator/channels.h"
#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "tests/support/tested_type.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

using Body = std::function<void(Communicator&, const Device&)>;

void on_devices(int ranks, const Body& body, Device::Type type = tested_type) {
  run_local(ranks, body, {.type = type});
}

/// Every rank's shard after two folds, by rank.
std::vector<std::vector<float>> folded(int ranks, DType dtype, Device::Type type) {
  std::vector<std::vector<float>> shards(static_cast<size_t>(ranks));
  on_devices(
      ranks,
      [&](Communicator& comm, const Device& device) {
        const Tensor full = random_tensor({ranks * 37}, dtype, device,
                                          static_cast<uint64_t>(comm.rank()), -1e3, 1e3);
        const Tensor shard = Tensor::empty({37}, DType::f32, device);
        for (const bool fresh : {true, false}) {
          comm.reduce_scatter(full, shard, fresh, fold, "g", {0, 20});
          comm.wait(comm.reduce_scatter(full, shard, fresh, fold, "g", {20, 17}));
        }
        shards[static_cast<size_t>(comm.rank())] = shard.to_host<float>();
      },
      type);
  return shards;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("ranks on accelerators exchange pieces of any size and messages") {
  for (const int ranks : {2, 3})
    on_devices(ranks, [&](Communicator& comm, const Device& device) {
      check_pieces(comm, device, 5);
      check_messages(comm, device);
    });
}

TEST_CASE("ranks on accelerators gather tensors that queued kernels have not yet written") {
  for (const int ranks : {1, 2, 3}) {
    on_devices(ranks, [&](Communicator& comm, const Device& device) {
      expect(device.name() ==
                 tested_name() + ":" + std::to_string(comm.rank() % Device::count(tested_type)),
             device.name());
      const Tensor full = Tensor::zeros({ranks * 5}, DType::f32, device);
      const Tensor shard = doubled(Tensor::full({5}, comm.rank() + 1.0, DType::f32, device));
      comm.wait(comm.all_gather(shard, full, "x"));
      const std::vector<float> values = doubled(full).to_host<float>();
      const auto sent_by = [](size_t element) {
        const size_t number = element / 5 + 1;
        return static_cast<float>(number);
      };
      for (size_t i = 0; i < values.size(); ++i)
        expect(values[i] == 4.0f * sent_by(i), "element " + std::to_string(i));
      // In place, for a range of the tensor.
      const Tensor own = full.flat(comm.rank() * 5, 5);
      kernels::cast({.x = doubled(own), .y = own}, device.compute());
      comm.wait(comm.all_gather(own, full, "x", {1, 2}));
      const std::vector<float> parts = full.to_host<float>();
      for (size_t i = 0; i < parts.size(); ++i) {
        const bool there = i / 5 == static_cast<size_t>(comm.rank()) || i % 5 == 1 || i % 5 == 2;
        expect(parts[i] == (there ? 4.0f : 2.0f) * sent_by(i), "part " + std::to_string(i));
      }
    });
  }
}

TEST_CASE(
    "ranks on accelerators send tensors that queued kernels have yet to write, in concurrent "
    "groups") {
  on_devices(4, check_channels);
}

TEST_CASE(
    "folding gradients in two concurrent groups gives the bits of separate worlds of two ranks") {
  const auto folds = [](Communicator& comm, const Device& device, int seed) {
    const Tensor full = random_tensor({comm.size() * 37}, DType::bf16, device,
                                      static_cast<uint64_t>(10 * seed + comm.rank()), -1e3, 1e3);
    const Tensor shard = Tensor::zeros({37}, DType::f32, device);
    comm.wait(comm.reduce_scatter(full, shard, false, fold, "g"));
    return shard.to_host<float>();
  };
  std::vector<std::vector<float>> world(4), groups(4);
  for (const int seed : {0, 1})
    on_devices(2, [&](Communicator& comm, const Device& device) {
      world[static_cast<size_t>(2 * seed + comm.rank())] = folds(comm, device, seed);
    });
  on_devices(4, [&](Communicator& comm, const Device& device) {
    const int seed = comm.rank() % 2, members[] = {seed, seed + 2};
    const auto data = comm.group(members, "data");
    groups[static_cast<size_t>(2 * seed + data->rank())] = folds(*data, device, seed);
  });
  CHECK(groups == world);
}

TEST_CASE(
    "after a broadcast, an accelerator and its plan on a meta device have the same live bytes") {
  const auto live_after = [](Communicator& comm, const Device& device) {
    const int members[] = {1, 0};
    const auto group = comm.group(members, "both");
    std::vector<int64_t> live;
    for (const Space space : {Space::device, Space::pinned}) {
      const Tensor x = Tensor::empty({5000}, DType::f32, device, space);
      fill_zero(x, device.compute());
      group->wait(group->broadcast(x, 0, "x"));
      live.push_back(device.memory().live());
    }
    return live;
  };
  on_devices(2, [&](Communicator& comm, const Device& device) {
    const auto counting = counting_communicator(comm.rank(), 2);
    const Device meta = Device::meta(comm.rank(), {}, tested_type);
    expect(live_after(comm, device) == live_after(*counting, meta), "live bytes");
  });
}

TEST_CASE(
    "pieces of gradients on accelerators are folded in rank order, with the bits of the CPU") {
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f32, DType::bf16})
      CHECK(folded(ranks, dtype, tested_type) == folded(ranks, dtype, Device::Type::cpu));
}

TEST_CASE("ranks may share an accelerator, and sum integers") {
  const int ranks = Device::count(tested_type) + 1;
  std::mutex mutex;
  std::vector<std::string> names;
  on_devices(ranks, [&](Communicator& comm, const Device& device) {
    {
      const std::lock_guard lock(mutex);
      names.push_back(device.name());
    }
    const Tensor x = Tensor::full({300}, comm.rank() + 1.0, DType::i64, device);
    comm.wait(comm.all_reduce(x, "limbs"));
    expect(x.to_host<int64_t>() == std::vector<int64_t>(300, ranks * (ranks + 1) / 2), "sum");
  });
  CHECK(std::count(names.begin(), names.end(), tested_name() + ":0") == 2);
}

TEST_CASE(
    "collectives queued on accelerators without waits each read the value of their own turn") {
  on_devices(2, [&](Communicator& comm, const Device& device) {
    std::vector<Tensor> fulls;
    Tensor shard = Tensor::full({3}, comm.rank() + 1.0, DType::f32, device);
    std::vector<Tensor> shards;
    Communicator::Ticket last = -1;
    for (int i = 0; i < 20; ++i) {
      fulls.push_back(Tensor::zeros({6}, DType::f32, device));
      shards.push_back(shard);
      last = comm.all_gather(shard, fulls.back(), "x" + std::to_string(i));
      shard = doubled(shard);
    }
    comm.wait(last);
    for (size_t i = 0; i < fulls.size(); ++i) {
      const auto scale = static_cast<float>(1 << i);
      expect(fulls[i].to_host<float>() ==
                 std::vector<float>{scale, scale, scale, 2 * scale, 2 * scale, 2 * scale},
             "gather " + std::to_string(i));
    }
  });
}

TEST_CASE("a rank that has no memory for its peers' gradient pieces throws OutOfMemory") {
  constexpr int64_t numel = 1 << 19;
  const auto body = [](Communicator& comm, const Device& device) {
    const Tensor full = Tensor::zeros({2 * numel}, DType::f32, device);
    const Tensor shard = Tensor::zeros({numel}, DType::f32, device);
    comm.wait(comm.reduce_scatter(full, shard, true, fold, "a name that lies on the heap"));
  };
  const DeviceOptions small = {.memory_limit = 8 << 20};
  CHECK_THROWS_AS(run_local(2, body, {.device = small, .type = tested_type}), OutOfMemory);
}

TEST_CASE("a fault of a kernel on one rank ends all ranks at the next collective") {
  const auto body = [](Communicator& comm, const Device& device) {
    const Tensor weight = Tensor::zeros({5, 8}, DType::f32, device);
    const Tensor y = Tensor::empty({1, 8}, DType::f32, device);
    const Tensor ids = Tensor::full({1}, comm.rank() == 1 ? 7.0 : 0.0, DType::i64, device);
    kernels::embedding_forward({.ids = ids, .weight = weight, .y = y}, device.compute());
    const Tensor full = Tensor::zeros({16}, DType::f32, device);
    comm.wait(comm.all_gather(y.view({8}), full, "y"));
  };
  CHECK_THROWS_WITH_AS(on_devices(2, body),
                       "rank 1/2: embedding_forward: ids[0] is 7; expected 0 to 4", ShapeError);
}

TEST_SUITE_END();
