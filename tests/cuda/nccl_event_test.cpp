// Tests of wait_on_device(): the compute queue waits for the event of a collective, and the host
// does not wait.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/accelerator/channels.h"
#include "tests/fakes/cuda/launch.h"
#include "tests/fakes/cuda/queues.h"
#include "tests/fakes/nccl/nccl.h"
#include "tests/support/error_message.h"
#include "tests/support/scoped_variable.h"
#include "zerograd/runtime/comm/queued_comm.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/pending.h"

using namespace zg;
using namespace zg::testing;
using namespace std::chrono_literals;

TEST_SUITE_BEGIN("every device");

TEST_CASE("work of the compute queue runs after a collective that the host does not wait for") {
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl"), holds("ZG_EMULATOR_NCCL", "1:1:hold");
  emulator::let_held_collectives_begin(false);
  std::latch both_went_on(2);
  std::vector<std::vector<double>> gathered(2), folded(2);
  std::vector<int64_t> freed(2);
  const auto body = [&](Communicator& comm, const Device& device) {
    const auto rank = static_cast<size_t>(comm.rank());
    Tensor shard = Tensor::full({300}, comm.rank() + 1.0, DType::f32, device);
    const Tensor full = Tensor::zeros({600}, DType::f32, device);
    const Tensor seen = Tensor::full({600}, 9.0, DType::f32, device);
    const Tensor leaf = Tensor::full({600}, comm.rank() + 0.5, DType::f32, device);
    const Tensor sums = Tensor::full({300}, 5.0, DType::f32, device);
    const Tensor sums_seen = Tensor::full({300}, 9.0, DType::f32, device);
    device.compute().synchronize();
    comm.wait_on_device(comm.all_gather(shard, full, "held"));
    both_went_on.arrive_and_wait();  // the collective has not begun: the emulator holds it
    const int64_t live = device.memory().live();
    shard = {};
    freed[rank] = live - device.memory().live();
    copy(full, seen, device.compute());
    std::thread later;
    if (rank == 1)
      later = std::thread([] {
        std::this_thread::sleep_for(200ms);
        emulator::let_held_collectives_begin(true);
      });
    mark_compute(device)->wait();  // waits for the compute queue, without comm.wait()
    gathered[rank] = seen.to_doubles();
    if (later.joinable()) later.join();
    comm.wait_on_device(comm.reduce_scatter(leaf, sums, true, fold, "sums"));
    copy(sums, sums_seen, device.compute());
    mark_compute(device)->wait();
    folded[rank] = sums_seen.to_doubles();
  };
  run_local(2, body, {.timeout_s = 20, .type = Device::Type::cuda});
  std::vector<double> expected(600, 1.0);
  std::fill(expected.begin() + 300, expected.end(), 2.0);
  for (size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(rank);
    CHECK(gathered[rank] == expected);
    CHECK(folded[rank] == std::vector<double>(300, 2.0));
    CHECK(freed[rank] == arena_bytes(300 * 4));
  }
}

TEST_CASE(
    "a collective that fails on the device after the host went on is an error before a value is "
    "read") {
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl");
  struct Case {
    const char* fault;
    const char* part;
  };
  for (const auto& [fault, part] :
       {Case{"1:2:fail",
             "rank 1 failed in step 7, after collective #1, all_gather of 'block.5' (f32, 5 "
             "elements): DeviceError: NCCL: unhandled system error"},
        Case{"1:2:stall",
             " did not finish within 3 s: collective #1, all_gather of 'block.5' (f32, 5 "
             "elements), in step 7"}}) {
    CAPTURE(fault);
    const ScopedVariable plants("ZG_EMULATOR_NCCL", fault);
    std::vector<std::vector<std::string>> said(2);
    std::vector<double> values(2, std::nan(""));
    const auto body = [&](Communicator& comm, const Device& device) {
      const auto rank = static_cast<size_t>(comm.rank());
      comm.set_step(7);
      const Tensor shard = Tensor::full({5}, 1.0, DType::f32, device);
      const Tensor full = Tensor::zeros({10}, DType::f32, device);
      comm.wait_on_device(comm.all_gather(shard, full, "block.4"));
      device.compute().synchronize();
      const auto failing = comm.all_gather(shard, full, "block.5");
      const auto expect_error = [&](const auto& f) {
        said[rank].push_back(message_of<CommError>(f));
      };
      std::optional<PendingItem> item;
      expect_error([&] {
        comm.wait_on_device(failing);  // throws if the emulator has run the collective at once
        item.emplace(full.flat(9, 1));
        device.compute().synchronize();
      });
      if (item) values[rank] = item->value();
      if (item) expect_error([&] { full.to_doubles(); });
      expect_error([&] { comm.wait(failing); });
      expect_error([&] { comm.wait_on_device(failing); });
      expect_error([&] { comm.barrier("after"); });
    };
    run_local(2, body, {.timeout_s = 3, .type = Device::Type::cuda});
    for (size_t rank = 0; rank < 2; ++rank) {
      CHECK(std::isnan(values[rank]));
      CHECK(said[rank].size() >= 4);
      for (const std::string& text : said[rank]) CHECK(contains(text, part));
    }
  }
}

TEST_CASE("a group that stalls after the host went on is named in a collective of another group") {
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl"), plants("ZG_EMULATOR_NCCL", "1:1:stall");
  std::vector<std::string> said(4);
  const auto body = [&](Communicator& comm, const Device& device) {
    comm.set_step(7);
    const Tensor x = Tensor::zeros({5}, DType::f32, device);
    said[static_cast<size_t>(comm.rank())] = message_of<CommError>([&] {
      const int pair[] = {0, 1};
      std::unique_ptr<Communicator> group;
      if (comm.rank() < 2) {
        group = comm.group(pair, "pair");
        group->wait_on_device(group->broadcast(x, 0, "activations"));
      }
      const auto end = comm.barrier("end");
      if (comm.rank() < 2) throw ShapeError("it was queued behind a collective that may fail");
      comm.wait(end);
    });
  };
  run_local(4, body, {.timeout_s = 3, .type = Device::Type::cuda});
  for (const std::string& text : said) {
    CAPTURE(text);
    CHECK(contains(text,
                   " did not finish within 3 s: collective #0, broadcast of 'activations' (f32, 5 "
                   "elements, from rank 0) in group 'pair', in step 7"));
  }
}

TEST_CASE(
    "a group that fails after the host went on and is destroyed is an error before a value is "
    "read") {
  const ScopedVariable wish("ZG_CUDA_COMM", "nccl"), plants("ZG_EMULATOR_NCCL", "1:1:fail");
  std::vector<std::string> said(2);
  const auto body = [&](Communicator& comm, const Device& device) {
    const Tensor x = Tensor::zeros({5}, DType::f32, device);
    const int pair[] = {0, 1};
    std::unique_ptr<Communicator> group = comm.group(pair, "pair");
    said[static_cast<size_t>(comm.rank())] = message_of<CommError>([&] {
      group->wait_on_device(group->broadcast(x, 0, "activations"));
      group = nullptr;
      x.to_doubles();
    });
  };
  run_local(2, body, {.timeout_s = 3, .type = Device::Type::cuda});
  for (const std::string& text : said) {
    CAPTURE(text);
    CHECK(contains(text,
                   "broadcast of 'activations' (f32, 5 elements, from rank 0) in group 'pair'"));
  }
}

TEST_CASE("a collective of host memory is complete when wait_on_device returns") {
  for (const char* way : {"nccl", "direct"}) {
    CAPTURE(way);
    const ScopedVariable wish("ZG_CUDA_COMM", way);
    std::vector<std::vector<float>> values(2);
    const auto body = [&](Communicator& comm, const Device& device) {
      const Tensor shard = Tensor::full({3}, comm.rank() + 1.0, DType::f32, device);
      const Tensor full = Tensor::empty({6}, DType::f32, device, Space::pinned);
      fill_zero(full, device.compute());
      device.compute().synchronize();
      comm.wait_on_device(comm.all_gather(shard, full, "x"));
      const float* const first = full.data<float>();
      values[static_cast<size_t>(comm.rank())].assign(first, first + 6);
    };
    run_local(2, body, {.type = Device::Type::cuda});
    for (const std::vector<float>& each : values)
      CHECK(each == std::vector<float>{1, 1, 1, 2, 2, 2});
  }
}

namespace {

/// A rank whose collectives move nothing. It counts the calls of watch().
class WatchedRank final : public cpu::QueuedCommunicator {
 public:
  explicit WatchedRank(const Device& device)
      : QueuedCommunicator(0, cpu::all_ranks(2), std::make_shared<std::atomic<int64_t>>(0),
                           std::make_shared<cpu::CollectiveLog>(0, 2), device, 5ms) {
    start_worker();
  }
  ~WatchedRank() override {
    end_worker([](bool) {});
  }
  std::unique_ptr<Communicator> group(std::span<const int>, const std::string&) override {
    return nullptr;
  }
  void abort(const std::string&) noexcept override {}
  int watched() const { return watched_; }

 private:
  void run(const cpu::Job&, Ticket) override {}
  void watch() override { ++watched_; }
  void owner_waits(bool) override {}

  std::atomic<int> watched_{0};
};

}  // namespace

TEST_CASE("a rank watches its peers while its device computes the inputs of a collective") {
  const Device device = Device::cuda();
  std::atomic<bool> computed{false};
  const auto blocker = std::make_shared<const emulator::Collective>(
      emulator::Collective{"a long kernel", std::make_shared<std::atomic<bool>>(true)});
  WatchedRank rank(device);
  emulator::enqueue_collective(
      cuda::handle(device.compute()), blocker, [&] { return computed.load(); }, [] {});
  const auto ticket = rank.barrier("after the kernel");
  std::this_thread::sleep_for(50ms);
  const int before = rank.watched();
  const auto limit = std::chrono::steady_clock::now() + 10s;
  while (rank.watched() < before + 3 && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(5ms);
  CHECK(rank.watched() >= before + 3);
  computed = true;
  rank.wait(ticket);
}

TEST_SUITE_END();
