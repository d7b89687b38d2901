#include "zerograd/autograd/collective.h"

#include "tests/autograd/fake_source.h"
#include "tests/autograd/on_ranks.h"
#include "tests/runtime/comm/ranks.h"
#include "zerograd/autograd/grad.h"
#include "zerograd/runtime/trace.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// Multiplies by another factor on every rank, so that the summed values differ.
Var scaled_by_rank(const Var& x, const Communicator& ranks) {
  return mul(x, 0.25 + 0.125 * ranks.rank());
}

/// The sum of the factors of all ranks.
double sum_of_factors(int ranks) {
  const int sum_of_ranks = ranks * (ranks - 1) / 2;
  return 0.25 * ranks + 0.125 * sum_of_ranks;
}

}  // namespace

TEST_CASE("copy_to_ranks and a sum over ranks match the whole computation and pass gradcheck") {
  check_on_ranks(
      [](Tape&, Vars x, Communicator& ranks) {
        return all_reduce(scaled_by_rank(exp(copy_to_ranks(x[0], ranks)), ranks), ranks);
      },
      [](Vars x, int count) { return mul(exp(x[0]), sum_of_factors(count)); }, {{3, 5}});
}

TEST_CASE("a gradient shared by two calls of copy_to_ranks is summed over ranks for each of them") {
  check_on_ranks(
      [](Tape&, Vars x, Communicator& ranks) {
        const Var a = copy_to_ranks(x[0], ranks), b = copy_to_ranks(x[1], ranks);
        return all_reduce(add(a, b), ranks);
      },
      [](Vars x, int count) { return mul(add(x[0], x[1]), count); }, {{8}, {8}});
}

TEST_CASE("copy_to_ranks of several tensors passes gradcheck, also when one of them is unused") {
  check_on_ranks(
      [](Tape&, Vars x, Communicator& ranks) {
        const std::vector<Var> copies = copy_to_ranks(x, ranks);
        return all_reduce(scaled_by_rank(mul(exp(copies[0]), copies[1]), ranks), ranks);
      },
      [](Vars x, int count) { return mul(mul(exp(x[0]), x[1]), sum_of_factors(count)); },
      {{7}, {1}, {3}});
}

TEST_CASE("copy_to_ranks sums the gradient of x while that of the weight is computed") {
  const int64_t n = 128;
  const std::vector<std::function<Var(const Var&, const Var&)>> ops{
      [](const Var& x, const Var& w) { return linear(x, w); },
      [](const Var& x, const Var& w) { return feed_forward(x, w, {}, w, {}); },
      [](const Var& x, const Var& w) { return gated_feed_forward(x, w, w, w, Gate::silu); }};
  for (size_t op = 0; op < ops.size(); ++op) {
    int64_t queued_ns = 0, last_product_ns = 0;
    run_local(2, [&](Communicator& ranks, const Device& device) {
      const auto trace = std::make_shared<Trace>();
      Tape tape(device);
      const Var x = tape.variable(Tensor::full({n, n}, 0.25, DType::f32, device));
      const Var w = tape.variable(Tensor::full({n, n}, 0.5, DType::f32, device));
      const Var y = sum(ops[op](copy_to_ranks(x, ranks), w));
      device.set_trace(trace);
      tape.backward(y);
      device.set_trace(nullptr);
      if (ranks.rank() > 0) return;
      for (const Trace::Span& span : trace->spans()) {
        if (span.name == "matmul") last_product_ns = std::max(last_product_ns, span.end_ns);
        if (span.name == "reduce_scatter copy_to_ranks gradient")
          queued_ns = span.begin_ns - 1000 * std::get<int64_t>(*span.find("queued_us"));
      }
    });
    INFO("op ", op, ": queued at ", queued_ns, " ns; the last product ended at ", last_product_ns);
    CHECK(queued_ns > 0);
    CHECK(queued_ns < last_product_ns);
  }
}

TEST_CASE("copy_to_ranks sums a gradient that is complete only after that of the weight") {
  check_on_ranks(
      [](Tape&, Vars x, Communicator& ranks) {
        const Var copy = copy_to_ranks(x[0], ranks);
        return all_reduce(scaled_by_rank(linear(copy, copy), ranks), ranks);
      },
      [](Vars x, int count) { return mul(linear(x[0], x[0]), sum_of_factors(count)); }, {{4, 4}});
}

TEST_CASE("copy_to_ranks sums the gradients of both operands of a product, in either order") {
  for (const bool swapped : {false, true})
    check_on_ranks(
        [swapped](Tape&, Vars x, Communicator& ranks) {
          const Var a = exp(copy_to_ranks(x[0], ranks)), b = copy_to_ranks(x[1], ranks);
          return all_reduce(scaled_by_rank(swapped ? linear(b, a) : linear(a, b), ranks), ranks);
        },
        [swapped](Vars x, int count) {
          const Var a = exp(x[0]);
          return mul(swapped ? linear(x[1], a) : linear(a, x[1]), sum_of_factors(count));
        },
        {{4, 4}, {4, 4}});
}

TEST_CASE("grad() gives a rank's own gradient of what copy_to_ranks returned") {
  run_local(2, [](Communicator& ranks, const Device& device) {
    for (const bool of_x : {false, true}) {
      Tape tape(device);
      const Var x = tape.variable(Tensor::full({2, 4}, 1.0, DType::f32, device));
      const Var copy = copy_to_ranks(x, ranks);
      const Var w = tape.variable(Tensor::full({3, 4}, 1.0 + ranks.rank(), DType::f32, device));
      const std::vector<Var> inputs = of_x ? std::vector{copy, x} : std::vector{copy};
      const std::vector<Var> slopes = grad(std::vector{sum(linear(copy, w))}, inputs);
      CHECK(slopes[0].value().to_host<float>() ==
            std::vector<float>(8, 3.0f + 3.0f * static_cast<float>(ranks.rank())));
      if (of_x) CHECK(slopes[1].value().to_host<float>() == std::vector<float>(8, 9.0f));
    }
  });
}

TEST_CASE("parts of ranks are gathered, joined and scattered along any axis, and pass gradcheck") {
  for (int axis : {0, 1, -1}) {
    CAPTURE(axis);
    const std::vector<Shape> shapes{{4, 8, 4}};
    check_on_ranks(
        [=](Tape&, Vars x, Communicator& ranks) {
          return join_parts(exp(part_of_rank(x[0], axis, ranks)), axis, ranks);
        },
        [](Vars x, int) { return exp(x[0]); }, shapes);
    check_on_ranks(
        [=](Tape&, Vars x, Communicator& ranks) {
          const Var whole = all_gather(exp(part_of_rank(x[0], axis, ranks)), axis, ranks);
          return all_reduce(scaled_by_rank(whole, ranks), ranks);
        },
        [](Vars x, int count) { return mul(exp(x[0]), sum_of_factors(count)); }, shapes);
    check_on_ranks(
        [=](Tape&, Vars x, Communicator& ranks) {
          const Var term = scaled_by_rank(copy_to_ranks(x[0], ranks), ranks);
          return join_parts(exp(reduce_scatter(term, axis, ranks)), axis, ranks);
        },
        [](Vars x, int count) { return exp(mul(x[0], sum_of_factors(count))); }, shapes);
  }
}

TEST_CASE("all_to_all moves rows of unequal number to any rank, and gradients back") {
  const auto rows = [](int from, int to) { return int64_t{(from + 2 * to) % 3}; };
  for (const int count : {1, 2, 4})
    run_local(count, [&](Communicator& ranks, const Device& device) {
      const int own = ranks.rank();
      std::vector<int64_t> sent, received;
      std::vector<double> x, y, gradient;
      for (int rank = 0; rank < count; ++rank) {
        sent.push_back(rows(own, rank));
        received.push_back(count == 1 ? sent[0] : rows(rank, own));
        for (int64_t i = 0; i < 2 * sent.back(); ++i) {
          x.push_back(100 * own + 10 * rank + double(i));
          gradient.push_back(count == 1 ? 1 : 1 + rank);
        }
        for (int64_t i = 0; i < 2 * received.back(); ++i)
          y.push_back(100 * rank + 10 * own + double(i));
      }
      Tape tape(device);
      const Shape shape({int64_t(x.size() / 2), 2});
      const Var sender = tape.variable(Tensor::from(x, shape, device));
      const Var moved = all_to_all(sender, ranks, sent, received);
      expect(moved.value().to_doubles() == y, "values");
      tape.backward(sum(mul(moved, 1.0 + own)));
      expect(tape.gradient(sender).to_doubles() == gradient, "gradients");

      const Tensor numbers = Tensor::full({2 * count}, own, DType::i64, device);
      const std::vector<int64_t> equal = all_to_all(numbers, ranks).value().to_host<int64_t>();
      for (int rank = 0; rank < count; ++rank)
        expect(equal[static_cast<size_t>(2 * rank + 1)] == rank, "equal parts of integers");
    });
}

TEST_CASE("sums of bf16 over ranks are computed in f32 and rounded once") {
  std::vector<double> sums(4), parts(4);
  run_local(4, [&](Communicator& ranks, const Device& device) {
    // Above 256 a bf16 accumulator stops changing when 1 is added. 256 + 1 + 1 + 1 = 259 is a tie
    // and rounds to 260.
    const Tensor x = Tensor::full({4}, ranks.rank() == 0 ? 256 : 1, DType::bf16, device);
    const auto rank = static_cast<size_t>(ranks.rank());
    sums[rank] = all_reduce(Var(x), ranks).value().to_doubles()[3];
    parts[rank] = reduce_scatter(Var(x), 0, ranks).value().to_doubles()[0];
  });
  CHECK(sums == std::vector<double>(4, 260.0));
  CHECK(parts == std::vector<double>(4, 260.0));
}

TEST_CASE("gradients of bf16 parameters copied to ranks are accumulated and summed in f32") {
  ParameterStore store;
  const Unit& unit = store.unit("layer");
  const Parameter& weight = store.add(unit, "weight", {1, 1}, Init::ones());
  const Parameter& bias = store.add(unit, "bias", {1}, Init::zeros());
  std::vector<double> gradients(2);
  std::vector<DType> dtypes(2, DType::u8);
  run_local(2, [&](Communicator& ranks, const Device& device) {
    FakeSource source(store, device, DType::bf16);
    Tape tape(device, &source);
    Var loss;
    {
      Tape::Use use(tape, unit);
      const Var parameters[] = {tape.parameter(weight), tape.parameter(bias)};
      const std::vector<Var> copies = copy_to_ranks(parameters, ranks);
      const Var x(Tensor::full({257, 1}, 1.0, DType::bf16, device));
      loss = sum(linear(x, copies[0], copies[1]));
    }
    tape.backward(loss);
    gradients[static_cast<size_t>(ranks.rank())] = source.gradients[&bias][0];
    dtypes[static_cast<size_t>(ranks.rank())] = source.gradient_dtypes[&bias];
  });
  // 257 rows on each rank; bf16 cannot represent 257.
  CHECK(gradients == std::vector<double>{514.0, 514.0});
  CHECK(dtypes == std::vector<DType>{DType::f32, DType::f32});
}

namespace {

/// Runs every op once, forward and backward, on extents that the ranks divide and do not divide.
Account account_of_a_pass(Communicator& ranks, const Device& device) {
  Tape tape(device);
  const auto made = [&](const Shape& shape) {
    return tape.variable(Tensor::full(shape, 0.5, DType::bf16, device));
  };
  const Var odd = made({3, 5}), x = made({2, 8, 32}), gamma = made({32}), beta = made({32});
  const Var parameters[] = {gamma, beta};
  const std::vector<Var> copies = copy_to_ranks(parameters, ranks);
  const Var part = layer_norm(part_of_rank(x, 1, ranks), copies[0], copies[1]);
  const Var segment_input[] = {part};
  const Var mixed = checkpoint(tape, segment_input, [&ranks](Tape&, Vars inputs) {
    return reduce_scatter(exp(all_gather(inputs[0], 1, ranks)), 1, ranks);
  });
  const int64_t rows = ranks.size();
  std::vector<int64_t> sent(static_cast<size_t>(rows)), received = sent;
  sent[static_cast<size_t>((ranks.rank() + 1) % rows)] = 3;
  received[static_cast<size_t>((ranks.rank() + rows - 1) % rows)] = 3;
  const Var moved = all_to_all(odd, ranks, sent, received);
  const Var summed = all_reduce(mul(copy_to_ranks(moved, ranks), 0.5), ranks);
  tape.backward(add(sum(join_parts(mixed, -1, ranks)), sum(summed)));
  return {device, ranks};
}

}  // namespace

TEST_CASE("collectives on a meta device count the same memory, calls and bytes sent as real ones") {
  for (int count : {1, 2, 4}) {
    CAPTURE(count);
    check_account_on_meta(count, account_of_a_pass);
  }
}

namespace {

/// Keeps a copy of each tensor, and counts their bytes.
class CopyingStore final : public ActivationStore {
 public:
  Tensor keep(const Tensor& tensor, Stream& stream) override {
    bytes += tensor.bytes();
    return copied(tensor, stream);
  }
  Tensor fetch(const Tensor& kept, Stream& stream) override { return copied(kept, stream); }
  int64_t bytes = 0;

 private:
  static Tensor copied(const Tensor& tensor, Stream& stream) {
    const Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device());
    zg::copy(tensor, copy, stream);
    return copy;
  }
};

struct Gathering {
  int64_t live, calls;
  std::vector<double> gradient;  // gradient of the weight
  bool operator==(const Gathering&) const = default;
};

/// Memory that a linear on gathered x keeps for backward, which reads all of x.
Gathering gathering(Communicator& ranks, const Device& device, ActivationStore* store) {
  const Tensor x = random_tensor({2, 128, 8}, DType::f32, device, 3);
  const Tensor matrix = random_tensor({4, 8}, DType::f32, device, 4);
  Tape tape(device, nullptr, TapeMode::record, store);
  const Var weight = tape.variable(matrix);
  const Var y = linear(all_gather(tape.variable(x), 1, ranks), weight);
  Gathering result{.live = device.memory().live()};
  for (const Tensor& held : {x, matrix, y.value()}) result.live -= arena_bytes(held.bytes());
  tape.backward(sum(mul(y, 0.5)));
  result.calls = ranks.wire()[static_cast<size_t>(Collective::all_gather)].calls;
  result.gradient = tape.gradient(weight).to_doubles();
  return result;
}

}  // namespace

TEST_CASE("all_gather keeps only the rank's own part for backward and gathers again there") {
  std::vector<Gathering> kept(2), stored(2), expected(2);
  std::vector<int64_t> stored_bytes(2);
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const auto rank = static_cast<size_t>(ranks.rank());
    kept[rank] = gathering(ranks, device, nullptr);
    CopyingStore store;
    stored[rank] = gathering(ranks, device, &store);
    stored_bytes[rank] = store.bytes;

    Tape plain(device);
    const Var weight = plain.variable(random_tensor({4, 8}, DType::f32, device, 4));
    const Tensor x = random_tensor({2, 128, 8}, DType::f32, device, 3);
    plain.backward(sum(mul(linear(Var(gathered("x", x, 1, ranks)), weight), 0.5)));
    expected[rank] = {0, 2, plain.gradient(weight).to_doubles()};
  });
  CHECK(kept == expected);
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(stored[rank].gradient == expected[rank].gradient);
    CHECK(stored_bytes[rank] == 2 * 128 * 8 * 4 + 4 * 8 * 4);  // this rank's x, and the weight
  }
}

TEST_CASE("on one rank the ops between ranks return their input and send nothing") {
  const auto ranks = counting_communicator(0, 1);
  Tape tape(shared_device());
  const Var x = tape.variable(doubles({2, 4}, 1));
  const auto is_x = [&](const Var& y) { return y.value().raw() == x.value().raw(); };
  CHECK(is_x(copy_to_ranks(x, *ranks)));
  CHECK(is_x(copy_to_ranks(std::span(&x, 1), *ranks)[0]));
  CHECK(is_x(all_reduce(x, *ranks)));
  CHECK(is_x(all_gather(x, 1, *ranks)));
  CHECK(is_x(all_to_all(x, *ranks)));
  CHECK(is_x(reduce_scatter(x, 1, *ranks)));
  CHECK(is_x(part_of_rank(x, 1, *ranks)));
  CHECK(is_x(join_parts(x, 1, *ranks)));
  for (const WireCount& count : ranks->wire()) CHECK(count.calls == 0);
}

TEST_CASE("a checkpointed segment repeats its collectives and gives the same bits") {
  std::vector<std::vector<double>> plain(2), again(2);
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const Tensor start = random_tensor({2, 4, 3}, DType::f32, device, 5);
    for (bool checkpointing : {false, true}) {
      Tape tape(device);
      const Var x = tape.variable(start);
      const auto run = [&ranks](Tape&, Vars inputs) {
        const Var term = scaled_by_rank(exp(copy_to_ranks(inputs[0], ranks)), ranks);
        return all_gather(reduce_scatter(term, 1, ranks), 1, ranks);
      };
      const Var y = checkpointing ? checkpoint(tape, {&x, 1}, run) : run(tape, {&x, 1});
      tape.backward(sum(mul(y, y)));
      (checkpointing ? again : plain)[static_cast<size_t>(ranks.rank())] =
          tape.gradient(x).to_doubles();
    }
  });
  CHECK(plain == again);
}

TEST_CASE(
    "a collective refuses an axis its ranks do not divide, an axis out of range and an integer "
    "dtype") {
  const auto ranks = counting_communicator(0, 4);
  const Device device = Device::meta();
  const Var x(Tensor::empty({2, 6}, DType::f32, device));
  CHECK_THROWS_WITH_AS(reduce_scatter(x, 1, *ranks),
                       "reduce_scatter: x has shape [2, 6]; expected an axis 1 that 4 ranks divide",
                       ShapeError);
  CHECK_THROWS_WITH_AS(part_of_rank(x, -2, *ranks),
                       "part_of_rank: x has shape [2, 6]; expected an axis 0 that 4 ranks divide",
                       ShapeError);
  CHECK_THROWS_AS(all_gather(x, 2, *ranks), ShapeError);
  CHECK_THROWS_AS(all_reduce(Var(Tensor::empty({4}, DType::i32, device)), *ranks), DTypeError);
}
