#include "zerograd/runtime/comm/communicator.h"

#include <sys/resource.h>

#include <latch>

#include "tests/runtime/comm/ranks.h"
#include "tests/support/error_message.h"
#include "zerograd/runtime/device_state.h"

using namespace zg;
using namespace zg::testing;

namespace {

Tensor floats(std::vector<float> values, const Device& device) {
  const auto size = static_cast<int64_t>(values.size());
  return Tensor::from(values, {size}, device);
}

}  // namespace

TEST_CASE("every rank gathers every shard in rank order, at any world size") {
  for (const int ranks : {1, 2, 3, 8}) {
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      const auto r = static_cast<float>(comm.rank());
      const Tensor shard = floats({r, r + 0.5f}, device);
      const Tensor full = Tensor::zeros({2 * ranks}, DType::f32, device);
      comm.wait(comm.all_gather(shard, full, "x"));
      const std::vector<float> values = full.to_host<float>();
      for (int i = 0; i < 2 * ranks; ++i)
        if (const int rank = i / 2; values[static_cast<size_t>(i)] !=
                                    static_cast<float>(rank) + 0.5f * static_cast<float>(i % 2))
          throw ShapeError("element " + std::to_string(i) + " is wrong");
    });
  }
}

TEST_CASE("ranks that wait for others sleep until the last one arrives") {
  // Without sleeps in vain each rank sleeps four times a barrier, and sometimes for a mutex.
  const int ranks = 32, barriers = 50;
  double sleeps = 0.0;
  run_local(ranks, [&](Communicator& comm, const Device&) {
    const auto count = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      return static_cast<double>(usage.ru_nvcsw);
    };
    comm.wait(comm.barrier("begin"));
    const double before = count();
    for (int i = 0; i < barriers; ++i) comm.wait(comm.barrier("b"));
    if (comm.rank() == 0) sleeps = (count() - before) / (barriers * ranks);
  });
  INFO("sleeps of a rank in a barrier: ", sleeps);
  CHECK(sleeps > 0.5);
  CHECK(sleeps < 10.0);
}

TEST_CASE("pieces of gradients are added at the rank that owns the shard, in rank order") {
  // Floats whose sum depends on the order of addition.
  const int ranks = 4;
  const float values[] = {1e8f, 1.0f, -1e8f, 1.0f};
  run_local(ranks, [&](Communicator& comm, const Device& device) {
    const Tensor full = Tensor::full({ranks * 3}, values[comm.rank()], DType::f32, device);
    const Tensor shard = Tensor::full({3}, 5.0, DType::f32, device);
    comm.wait(comm.reduce_scatter(full, shard, /*fresh=*/true, add_floats, "g"));
    const float once = ((1e8f + 1.0f) + -1e8f) + 1.0f;
    if (shard.to_host<float>() != std::vector<float>(3, once)) throw ShapeError("fresh fold");
    comm.wait(comm.reduce_scatter(full, shard, /*fresh=*/false, add_floats, "g"));
    const float twice = (((once + 1e8f) + 1.0f) + -1e8f) + 1.0f;
    if (shard.to_host<float>() != std::vector<float>(3, twice)) throw ShapeError("second fold");
  });
}

TEST_CASE("integers are summed exactly over ranks, and wire counts the received bytes") {
  run_local(3, [&](Communicator& comm, const Device& device) {
    const Tensor x = Tensor::full({2}, comm.rank() + 1.0, DType::i64, device);
    comm.wait(comm.all_reduce(x, "limbs"));
    if (x.to_host<int64_t>() != std::vector<int64_t>{6, 6}) throw ShapeError("sum");
    comm.wait(comm.barrier("end"));
    const WireCounts wire = comm.wire();
    if (wire[static_cast<size_t>(Collective::all_reduce)].bytes != 2 * 16 ||
        wire[static_cast<size_t>(Collective::barrier)].calls != 1)
      throw ShapeError("wire");
    const auto counting = counting_communicator(comm.rank(), 3);
    counting->all_reduce(x, "limbs");
    if (counting->wire()[2].bytes != wire[2].bytes) throw ShapeError("counting");
  });
}

TEST_CASE("pieces of any size reach their rank at any world size, and messages go round a ring") {
  for (const int ranks : {1, 2, 3, 8})
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      check_pieces(comm, device, 3);
      if (ranks > 1) check_messages(comm, device);
    });
}

TEST_CASE("pieces, roots and paths that do not fit are refused before anything is sent") {
  const auto ranks = counting_communicator(1, 2);
  const Device device = Device::cpu();
  const Tensor x = Tensor::zeros({5}, DType::f32, device),
               y = Tensor::zeros({5}, DType::f32, device);
  const auto refused = [&](const Pieces& sent, const Pieces& received) {
    return zg::testing::message_of<Error>([&] { ranks->all_to_all(sent, received, "x"); });
  };
  CHECK(
      refused({x, {2, 2}}, {y, {2, 3}}) ==
      "all_to_all: sent: 5 elements and pieces of [2, 2]; expected one piece of 0 or more elements "
      "for each of 2 ranks, together all elements");
  CHECK(refused({x, {2, 3}}, {y, {5}})
            .starts_with("all_to_all: received: 5 elements and pieces of [5]"));
  CHECK(refused({x, {6, -1}}, {y, {2, 3}})
            .starts_with("all_to_all: sent: 5 elements and pieces of [6, -1]"));
  CHECK(refused({x, {2, 3}}, {{}, {0, 0}}).starts_with("all_to_all: received: 0 elements"));
  CHECK(refused({x, {2, 3}}, {y, {3, 2}}) ==
        "all_to_all: rank 1 sends 3 elements to itself and receives 2; expected as many");
  CHECK(refused({x.flat(0, 3), {2, 1}}, {x.flat(2, 3), {2, 1}}) ==
        "all_to_all: received overlaps what is sent; expected another tensor");
  CHECK(refused({x, {2, 3}}, {Tensor::zeros({5}, DType::i32, device), {2, 3}}) ==
        "all_to_all: received holds i32; expected the f32 that is sent");
  const Tensor in_host = Tensor::empty({5}, DType::f32, Device::meta(0), Space::pinned);
  CHECK(refused({in_host, {2, 3}}, {y, {2, 3}}) ==
        "all_to_all: sent is in pinned memory; expected memory of the ranks' devices");
  CHECK(zg::testing::message_of<ConfigError>([&] { ranks->scatter({}, x, 2, "x"); }) ==
        "scatter: expected a root in [0, 2), got 2");
  const Messages messages(*ranks, std::vector<Messages::Path>{{0, 1}}, "m");
  messages.receive(x, 0, "x").wait();
  CHECK(
      zg::testing::message_of<ConfigError>([&] { messages.send(x, 0, "x"); }) ==
      "message 'x': there is no path from rank 1 to rank 0; expected one of those that were given "
      "to Messages");
}

TEST_CASE("collectives that a rank queues without waiting complete in order") {
  run_local(2, [&](Communicator& comm, const Device& device) {
    std::vector<Tensor> fulls;
    std::vector<Communicator::Ticket> tickets;
    const Tensor shard = floats({static_cast<float>(comm.rank())}, device);
    for (int i = 0; i < 50; ++i) {
      fulls.push_back(Tensor::zeros({2}, DType::f32, device));
      tickets.push_back(comm.all_gather(shard, fulls.back(), "x" + std::to_string(i)));
    }
    comm.wait(tickets.back());
    for (const Tensor& full : fulls)
      if (full.to_host<float>() != std::vector<float>{0, 1}) throw ShapeError("gather");
  });
}

TEST_CASE("a collective is done once every rank has queued it") {
  std::latch seen(1);
  run_local(2, [&](Communicator& comm, const Device&) {
    if (comm.rank() == 1) seen.wait();
    const Communicator::Ticket ticket = comm.barrier("x");
    const bool early = comm.rank() == 0 && comm.is_done(ticket);
    if (comm.rank() == 0) seen.count_down();
    comm.wait(ticket);
    if (early || !comm.is_done(ticket)) throw ShapeError(early ? "done early" : "not done");
  });
}

TEST_CASE(
    "collectives that only a device waits for are confirmed once, or give their error again") {
  UnconfirmedCollectives unconfirmed;
  std::string waits;
  bool fails = true;
  const int one = 1, two = 2, three = 3;
  unconfirmed.add(&one, [&] { waits += "old "; });
  unconfirmed.add(&one, [&] { waits += "one "; });  // is behind the one before
  unconfirmed.add(&two, [&] {
    waits += "two ";
    if (fails) throw CommError("rank 1 failed");
  });
  unconfirmed.confirm(&two);
  CHECK(waits == "one ");
  for (const char* each : {"one two ", "one two two "}) {
    CHECK_THROWS_WITH_AS(unconfirmed.confirm(&three), "rank 1 failed", CommError);
    CHECK(waits == each);
  }
  fails = false;
  unconfirmed.confirm();
  CHECK(waits == "one two two two ");
  CHECK(unconfirmed.empty());
  unconfirmed.add(&one, [&] { waits += "ended "; });
  CHECK(unconfirmed.remove(&one));
  CHECK_FALSE(unconfirmed.remove(&one));
  unconfirmed.confirm();
  CHECK(waits == "one two two two ");
  unconfirmed.fail(std::make_exception_ptr(CommError("rank 0 failed")));
  CHECK_FALSE(unconfirmed.empty());
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH_AS(unconfirmed.confirm(), "rank 0 failed", CommError);
}
