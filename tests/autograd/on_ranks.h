#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "tests/autograd/op_check.h"
#include "zerograd/runtime/comm/communicator.h"

// Helpers for tests of ops between ranks.
namespace zg::testing {

/// A function of replicated inputs with a replicated result.
using OnRanks = std::function<Var(Tape&, Vars, Communicator&)>;

/// On 1, 2 and 4 ranks: compares the result with `whole`, and gradients with central differences.
inline void check_on_ranks(const OnRanks& function, const std::function<Var(Vars, int)>& whole,
                           const std::vector<Shape>& shapes) {
  for (int count : {1, 2, 4}) {
    CAPTURE(count);
    std::vector<std::vector<double>> results(static_cast<size_t>(count)), expected = results;
    std::vector<GradcheckResult> checks(static_cast<size_t>(count));
    run_local(count, [&](Communicator& ranks, const Device& device) {
      std::vector<Tensor> inputs;
      std::vector<Var> constants;
      for (const Shape& shape : shapes) {
        inputs.push_back(random_tensor(shape, DType::f64, device, inputs.size() + 1));
        constants.emplace_back(inputs.back());
      }
      const auto place = static_cast<size_t>(ranks.rank());
      Tape tape(device);
      results[place] = values_of(function(tape, constants, ranks));
      expected[place] = values_of(whole(constants, count));
      checks[place] = gradcheck([&](Tape& on, Vars x) { return function(on, x, ranks); }, inputs,
                                {.step = 1e-6, .tolerance = 1e-6});
    });
    for (size_t rank = 0; rank < results.size(); ++rank) {
      CAPTURE(rank);
      CHECK(results[rank] == results[0]);
      REQUIRE(results[rank].size() == expected[rank].size());
      for (size_t i = 0; i < results[rank].size(); ++i)
        CHECK(results[rank][i] == doctest::Approx(expected[rank][i]).epsilon(1e-14));
      INFO(checks[rank].report);
      CHECK(checks[rank].ok);
    }
  }
}

/// Bytes of a device, and calls and bytes of a communicator's collectives.
struct Account {
  int64_t peak, live;
  std::vector<std::pair<int64_t, int64_t>> wire = {};
  bool operator==(const Account&) const = default;

  Account(const Device& device, const Communicator& ranks)
      : peak(device.memory().peak()), live(device.memory().live()) {
    for (const WireCount& count : ranks.wire()) wire.emplace_back(count.calls, count.bytes);
  }
};

/// `account(ranks, device)` is the same on a meta device as on a real one, on each of `count`
/// ranks.
template <class F>
void check_account_on_meta(int count, const F& account) {
  std::vector<std::optional<Account>> real(static_cast<size_t>(count));
  run_local(count,
            [&](Communicator& ranks, const Device& device) {
              real[static_cast<size_t>(ranks.rank())] = account(ranks, device);
            },
            {.device = {.threads = 1}});
  for (int rank = 0; rank < count; ++rank) {
    CAPTURE(rank);
    const auto ranks = counting_communicator(rank, count);
    CHECK((account(*ranks, Device::meta(0, {.threads = 1})) == real[static_cast<size_t>(rank)]));
  }
}

}  // namespace zg::testing
