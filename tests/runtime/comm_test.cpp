#include "runtime/comm.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "runtime/error.h"

using namespace zg;

namespace {

Tensor floats(std::vector<float> values, const Device& device) {
  const auto size = static_cast<int64_t>(values.size());
  return Tensor::from(values, {size}, device);
}

void add_floats(const Tensor& piece, const Tensor& shard, bool first, Stream&) {
  for (int64_t i = 0; i < shard.numel(); ++i)
    shard.data<float>()[i] =
        first ? piece.data<float>()[i] : shard.data<float>()[i] + piece.data<float>()[i];
}

/// What each rank threw, by rank; run_local's own rethrow is swallowed.
std::vector<std::string> errors_of(int ranks, double timeout_s,
                                   const std::function<void(Communicator&, const Device&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  try {
    run_local(ranks,
              [&](Communicator& comm, const Device& device) {
                try {
                  body(comm, device);
                } catch (const std::exception& error) {
                  errors[static_cast<size_t>(comm.rank())] = error.what();
                  throw;
                }
              },
              {.timeout_s = timeout_s});
  } catch (const std::exception&) {
  }
  return errors;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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
        if (values[static_cast<size_t>(i)] != static_cast<float>(i / 2) + 0.5f * (i % 2))
          throw ShapeError("element " + std::to_string(i) + " is wrong");
    });
  }
}

TEST_CASE("pieces are combined at their owner in rising rank") {
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

TEST_CASE("integers are summed exactly, and everything received is counted") {
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

TEST_CASE("collectives run ahead of the rank that queued them, in order") {
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

TEST_CASE("a rank that throws ends the others with its cause") {
  const auto errors = errors_of(4, 30, [](Communicator& comm, const Device& device) {
    comm.set_step(7);
    if (comm.rank() == 2) throw ShapeError("planted");
    const Tensor x = Tensor::zeros({1}, DType::i64, device);
    comm.wait(comm.all_reduce(x, "limbs"));
  });
  CHECK(errors[2] == "planted");
  for (const int rank : {0, 1, 3}) {
    CAPTURE(rank);
    CHECK(contains(errors[static_cast<size_t>(rank)], "rank 2 failed in step 7"));
    CHECK(contains(errors[static_cast<size_t>(rank)], "ShapeError: planted"));
  }
}

TEST_CASE("a rank that returns early is named with the collective the others wait in") {
  const auto errors = errors_of(3, 30, [](Communicator& comm, const Device& device) {
    comm.set_step(3);
    if (comm.rank() == 1) return;
    const Tensor x = Tensor::zeros({3}, DType::f32, device);
    comm.wait(comm.all_gather(x.flat(0, 1), x, "block.5"));
  });
  for (const int rank : {0, 2}) {
    const std::string& text = errors[static_cast<size_t>(rank)];
    CHECK(contains(text, "rank 1 returned early, in step 3"));
    CHECK(contains(text, "collective #0, all_gather of 'block.5' (f32, 1 elements)"));
  }
}

TEST_CASE("a rank that stays away is named after the timeout") {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_of(3, 0.3, [](Communicator& comm, const Device&) {
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
    comm.wait(comm.barrier("end of step"));
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < 0.3 + 2.0);  // the promise itself: timeout + 2 s
  for (const int rank : {0, 2})
    CHECK(contains(errors[static_cast<size_t>(rank)],
                   "rank 1 did not arrive within 0.3 s: collective #0, barrier of 'end of step'"));
  CHECK(errors[1] != "");
}

TEST_CASE("different calls at one place are an error that shows both") {
  const auto errors = errors_of(2, 30, [](Communicator& comm, const Device& device) {
    const Tensor x = Tensor::zeros({4}, DType::f32, device);
    if (comm.rank() == 0)
      comm.wait(comm.all_gather(x.flat(0, 2), x, "a"));
    else
      comm.wait(comm.all_gather(x.flat(0, 2), x, "b"));
  });
  for (const std::string& text : errors) {
    CHECK(contains(text, "ranks disagree at collective #0"));
    CHECK(contains(text, "all_gather of 'a'"));
    CHECK(contains(text, "all_gather of 'b'"));
  }
}
