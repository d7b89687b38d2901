#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"

// Shared by tests of collectives and of ranks that stall.
namespace zg::testing {

/// Ends the rank with an error: CHECK is for the main thread.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw ShapeError(what);
}

using Body = std::function<void(Communicator&, const Device&)>;

/// The error of each rank, by rank.
inline std::vector<std::string> errors_of(int ranks, const Body& body, double timeout = 240) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  const auto rank_body = [&](Communicator& comm, const Device& device) {
    try {
      body(comm, device);
    } catch (const std::exception& error) {
      errors[static_cast<size_t>(comm.rank())] = error.what();
      throw;
    }
  };
  try {
    run_local(ranks, rank_body, {.timeout_s = timeout});
  } catch (const std::exception&) {
  }
  return errors;
}

/// The sum of a reduce_scatter, in f32.
inline void add_floats(const Tensor& piece, const Tensor& shard, bool first, Stream&) {
  for (int64_t i = 0; i < shard.numel(); ++i)
    shard.data<float>()[i] =
        first ? piece.data<float>()[i] : shard.data<float>()[i] + piece.data<float>()[i];
}

/// Exchanges pieces of unequal size, some of them empty, and scatters from each root; throws where
/// a value is wrong. `factor` makes the pieces larger.
inline void check_pieces(Communicator& comm, const Device& device, int64_t factor) {
  const int size = comm.size(), own = comm.rank();
  const auto numel = [&](int from, int to) { return (from + 2 * to) % 4 * factor + to % 2; };
  const auto value = [](int from, int to, int64_t i) { return 100 * from + 10 * to + i % 7; };
  const auto pieces = [&](const auto& ends_of, bool filled) {
    Pieces all;
    std::vector<int64_t> values;
    for (int peer = 0; peer < size; ++peer) {
      const auto [from, to] = ends_of(peer);
      all.counts.push_back(numel(from, to));
      for (int64_t i = 0; i < all.counts.back(); ++i)
        values.push_back(filled ? value(from, to, i) : -1);
    }
    all.tensor = Tensor::from(values, {static_cast<int64_t>(values.size())}, device);
    return all;
  };
  const auto to_peer = [&](int peer) { return std::pair(own, peer); };
  const auto from_peer = [&](int peer) { return std::pair(peer, own); };
  const Pieces sent = pieces(to_peer, true), received = pieces(from_peer, false);
  comm.wait(comm.all_to_all(sent, received, "tokens"));
  expect(received.tensor.to_host<int64_t>() == pieces(from_peer, true).tensor.to_host<int64_t>(),
         "all_to_all: wrong values");
  for (int root = 0; root < size; ++root) {
    const Tensor x = Tensor::full({numel(root, own)}, -1.0, DType::i64, device);
    comm.wait(comm.scatter(own == root ? sent : Pieces(), x, root, "parts"));
    const std::vector<int64_t> values = x.to_host<int64_t>();
    for (size_t i = 0; i < values.size(); ++i)
      expect(values[i] == value(root, own, static_cast<int64_t>(i)), "scatter: wrong values");
  }
}

/// Every rank sends to the next one and receives from the one before, both at one time.
inline void check_messages(Communicator& comm, const Device& device) {
  const int size = comm.size(), own = comm.rank(), next = (own + 1) % size;
  const int before = (own + size - 1) % size;
  std::vector<Messages::Path> ring;
  for (int rank = 0; rank < size; ++rank) ring.push_back({rank, (rank + 1) % size});
  const Messages messages(comm, ring, "ring");
  for (int turn = 0; turn < 3; ++turn) {
    const Tensor x = Tensor::full({5}, own + 10 * turn, DType::i64, device),
                 y = Tensor::empty({5}, DType::i64, device);
    const Messages::Message sent = messages.send(x, next, "turn");
    messages.receive(y, before, "turn").wait();
    sent.wait();
    expect(y.to_host<int64_t>() == std::vector<int64_t>(5, before + 10 * turn), "message");
  }
  expect(messages.wire()[static_cast<size_t>(Collective::broadcast)] == WireCount{6, 3 * 5 * 8},
         "bytes of messages");
}

/// A rank that never returns ends its whole process, so a test of one runs its binary again, with
/// the case in this variable and this limit. The limit lets a loaded machine start all ranks.
inline constexpr const char* stall_variable = "ZG_TEST_STALL";
inline constexpr double stall_timeout_s = 4.0;

}  // namespace zg::testing
