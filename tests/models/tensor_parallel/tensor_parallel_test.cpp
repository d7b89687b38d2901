#include "zerograd/models/tensor_parallel/tensor_parallel.h"

#include <algorithm>
#include <cmath>

#include "tests/autograd/on_ranks.h"
#include "tests/models/tensor_parallel/parallel_training.h"
#include "zerograd/autograd/collective.h"
#include "zerograd/runtime/text/format.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

/// From a replicated x to its layout between the split layers.
Var between(const Var& x, const TensorParallel& parallel) {
  return parallel.sequence ? part_of_rank(x, 1, *parallel.ranks) : x;
}
Var back(const Var& x, const TensorParallel& parallel) {
  return parallel.sequence ? join_parts(x, 1, *parallel.ranks) : x;
}

/// This rank's rows of a replicated weight. The ranks need not divide the rows.
Var own_rows(const Var& weight, const TensorParallel& parallel) {
  const auto [begin, count] = rows_of_rank(weight.shape()[0], parallel);
  return slice(copy_to_ranks(weight, *parallel.ranks), 0, begin, begin + count);
}

Tensor tokens(const std::vector<int32_t>& ids, const Device& device) {
  return Tensor::from(ids, {2, 4}, device);
}

const std::vector<int32_t> eight_ids{1, 0, 1, 1, 0, 0, 1, 0};

}  // namespace

TEST_CASE("column and row parallel layers match the whole layers in values and gradients") {
  for (bool sequence : {false, true}) {
    CAPTURE(sequence);
    const std::vector<Shape> shapes{{2, 4, 3}, {8, 3}, {8}, {3, 8}, {3}};
    check_on_ranks(
        [=](Tape&, Vars x, Communicator& ranks) {
          const TensorParallel parallel{&ranks, sequence};
          const Var in = part_of_rank(x[1], 0, ranks), in_bias = part_of_rank(x[2], 0, ranks);
          const Var out = part_of_rank(x[3], 1, ranks), out_bias = parallel.shared({&x[4], 1})[0];
          const Var start = between(x[0], parallel);
          const Var hidden = gelu(column_parallel_linear(start, in, in_bias, parallel));
          return back(row_parallel_linear(hidden, out, out_bias, parallel), parallel);
        },
        [](Vars x, int) { return linear(gelu(linear(x[0], x[1], x[2])), x[3], x[4]); }, shapes);
    check_on_ranks(
        [=](Tape&, Vars x, Communicator& ranks) {
          const TensorParallel parallel{&ranks, sequence};
          const Var in = part_of_rank(x[1], 0, ranks), in_bias = part_of_rank(x[2], 0, ranks);
          const Var out = part_of_rank(x[3], 1, ranks), out_bias = parallel.shared({&x[4], 1})[0];
          const Var start = between(x[0], parallel);
          return back(parallel_feed_forward(start, in, in_bias, out, out_bias, parallel), parallel);
        },
        [](Vars x, int) { return feed_forward(x[0], x[1], x[2], x[3], x[4]); }, shapes);
  }
}

TEST_CASE(
    "parallel_embedding matches the whole embedding, also with uneven and empty vocabulary parts") {
  for (bool sequence : {false, true})
    for (int64_t vocabulary : {9, 5, 2}) {
      INFO("sequence ", sequence, ", vocabulary ", vocabulary);
      std::vector<int32_t> ids{0, 8, 4, 5, 3, 3, 7, 1};
      for (int32_t& id : ids) id = static_cast<int32_t>(id % vocabulary);
      check_on_ranks(
          [=](Tape& tape, Vars x, Communicator& ranks) {
            const TensorParallel parallel{&ranks, sequence};
            const Var rows = own_rows(x[0], parallel);
            const Tensor batch = tokens(ids, tape.device());
            return back(parallel_embedding(batch, rows, vocabulary, parallel), parallel);
          },
          [=](Vars x, int) { return embedding(tokens(ids, x[0].device()), x[0]); },
          {{vocabulary, 3}});
    }
}

TEST_CASE(
    "join_vocabulary joins the logits of all ranks, also with uneven and empty vocabulary parts") {
  for (int64_t vocabulary : {9, 5, 2}) {
    CAPTURE(vocabulary);
    check_on_ranks(
        [=](Tape&, Vars x, Communicator& ranks) {
          const TensorParallel parallel{&ranks};
          const Var rows = own_rows(x[1], parallel);
          return join_vocabulary(column_parallel_linear(x[0], rows, {}, parallel), vocabulary,
                                 parallel);
        },
        [](Vars x, int) { return linear(x[0], x[1]); }, {{2, 4, 3}, {vocabulary, 3}});
  }
}

TEST_CASE(
    "the vocabulary-parallel loss matches the whole loss, also with ignored targets and empty "
    "parts") {
  for (bool sequence : {false, true})
    for (int64_t vocabulary : {9, 5, 2}) {
      INFO("sequence ", sequence, ", vocabulary ", vocabulary);
      std::vector<int32_t> targets{0, 8, -1, 5, 4, 3, -1, 1};
      for (int32_t& target : targets)
        if (target >= 0) target = static_cast<int32_t>(target % vocabulary);
      check_on_ranks(
          [=](Tape& tape, Vars x, Communicator& ranks) {
            const TensorParallel parallel{&ranks, sequence};
            const Var rows = own_rows(x[1], parallel), start = between(x[0], parallel);
            return parallel_projection_cross_entropy(start, rows, tokens(targets, tape.device()),
                                                     vocabulary, parallel);
          },
          [=](Vars x, int) {
            return projection_cross_entropy(x[0], x[1], tokens(targets, x[0].device()));
          },
          {{2, 4, 3}, {vocabulary, 3}});
    }
}

TEST_CASE(
    "parallel_cross_entropy matches cross_entropy, with label smoothing, biases and empty parts") {
  for (const double smoothing : {0.0, 0.2})
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none})
      for (int64_t vocabulary : {9, 5, 2}) {
        INFO("smoothing ", smoothing, ", ", static_cast<int>(reduction), ", vocabulary ",
             vocabulary);
        std::vector<int32_t> targets{0, 8, -100, 5, 4, 3, -100, 1};
        for (int32_t& target : targets)
          if (target >= 0) target = static_cast<int32_t>(target % vocabulary);
        const CrossEntropyOptions options{
            .ignore_index = -100, .label_smoothing = smoothing, .reduction = reduction};
        check_on_ranks(
            [=](Tape& tape, Vars x, Communicator& ranks) {
              const TensorParallel parallel{&ranks};
              const Var rows = own_rows(x[1], parallel), bias = own_rows(x[2], parallel);
              const Var logits = column_parallel_linear(x[0], rows, bias, parallel);
              return parallel_cross_entropy(logits, tokens(targets, tape.device()), vocabulary,
                                            parallel, options);
            },
            [=](Vars x, int) {
              const Var logits = linear(x[0], x[1], x[2]);
              return cross_entropy(logits, tokens(targets, x[0].device()), options);
            },
            {{2, 4, 3}, {vocabulary, 3}, {vocabulary}});
      }
}

TEST_CASE("parallel_cross_entropy refuses targets, columns and a smoothing out of range") {
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const TensorParallel parallel{&ranks};
    const Tensor logits = random_tensor({2, 4, 3}, DType::f32, device, 1);
    const auto loss = [&](const std::vector<int32_t>& ids, int64_t vocabulary, double smoothing) {
      parallel_cross_entropy(Var(logits), tokens(ids, device), vocabulary, parallel,
                             {.label_smoothing = smoothing});
    };
    const auto refuses = [](const auto& call, const std::string& part) {
      try {
        call();
      } catch (const Error& error) {
        if (std::string(error.what()).find(part) != std::string::npos) return;
        raise<Error>("expected {}, got {}", part, error.what());
      }
      throw Error("expected an error: " + part);
    };
    loss(eight_ids, 6, 0.1);
    refuses([&] { loss({0, 6, 1, 1, 0, 0, 1, 0}, 6, 0.0); }, "6");
    refuses([&] { loss({0, -2, 1, 1, 0, 0, 1, 0}, 6, 0.0); }, "-2");
    refuses([&] { loss(eight_ids, 8, 0.0); }, "parallel_cross_entropy: logits has shape [2, 4, 3]");
    refuses([&] { loss(eight_ids, 6, 1.5); }, "parallel_cross_entropy: label_smoothing is 1.5");
  });
}

TEST_CASE("the vocabulary-parallel loss can ignore a valid id, also if all targets have it") {
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const TensorParallel parallel{&ranks};
    const Tensor x = random_tensor({2, 4, 3}, DType::f32, device, 1);
    const Tensor weight = random_tensor({2, 3}, DType::f32, device, 2);
    const Tensor targets = tokens(eight_ids, device);
    const auto own = rows_of_rank(2, parallel);
    for (const Tensor& wanted : {targets, Tensor::full({2, 4}, 1, DType::i32, device)}) {
      Tape tape(device), whole_tape(device);
      const Var rows = tape.variable(weight.slice(own.begin, own.begin + own.count));
      const Var loss = parallel_projection_cross_entropy(Var(x), rows, wanted, 2, parallel, 1);
      const Var all = whole_tape.variable(weight);
      const Var whole = projection_cross_entropy(Var(x), all, wanted, 1);
      tape.backward(loss);
      whole_tape.backward(whole);
      const double value = loss.value().item(), expected = whole.value().item();
      const std::vector<double> gradient = tape.gradient(rows).to_doubles();
      const std::vector<double> whole_gradient =
          whole_tape.gradient(all).slice(own.begin, own.begin + own.count).to_doubles();
      bool near = std::isnan(expected) ? std::isnan(value) : std::fabs(value - expected) < 1e-6;
      for (size_t i = 0; i < gradient.size(); ++i)
        near = near && std::fabs(gradient[i] - whole_gradient[i]) < 1e-6;
      if (!near) throw Error("the split loss is not the whole one");
    }
  });
}

namespace {

/// Errors: of the loss, and the largest error of each gradient relative to the largest gradient.
struct Distance {
  double loss, dx, dweight;
};

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0.0, far = 0.0;
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(b[i]));
    far = std::max(far, std::fabs(a[i] - b[i]));
  }
  return far / most;
}

/// Errors of the loss on two ranks against one rank, in `dtype`, for x up to `largest`.
Distance distance_of_loss(DType dtype, int64_t tokens, int64_t width, int64_t vocabulary,
                          double largest = 1.0) {
  std::vector<double> losses(2), gradients[2], weights[2], whole, whole_weights;
  double whole_loss = 0.0;
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const TensorParallel parallel{&ranks};
    const Tensor x = random_tensor({1, tokens, width}, dtype, device, 1, -largest, largest);
    const Tensor weight = random_tensor({vocabulary, width}, dtype, device, 2);
    const Tensor targets =
        random_tensor({1, tokens}, DType::i32, device, 3, 0.0, static_cast<double>(vocabulary));
    const auto rank = static_cast<size_t>(ranks.rank());
    const auto [begin, count] = rows_of_rank(vocabulary, parallel);
    Tape tape(device);
    const Var in = tape.variable(x), rows = tape.variable(weight.slice(begin, begin + count));
    const Var loss = parallel_projection_cross_entropy(in, rows, targets, vocabulary, parallel);
    losses[rank] = loss.value().item();
    tape.backward(loss, 1024.0);
    gradients[rank] = tape.gradient(in).to_doubles();
    weights[rank] = tape.gradient(rows).to_doubles();
    if (rank > 0) return;
    Tape on(device);
    const Var all = on.variable(x), matrix = on.variable(weight);
    const Var expected = projection_cross_entropy(all, matrix, targets);
    whole_loss = expected.value().item();
    on.backward(expected, 1024.0);
    whole = on.gradient(all).to_doubles();
    whole_weights = on.gradient(matrix).to_doubles();
  });
  CHECK(losses[0] == losses[1]);
  CHECK(gradients[0] == gradients[1]);
  weights[0].insert(weights[0].end(), weights[1].begin(), weights[1].end());
  return {std::fabs(losses[0] - whole_loss) / whole_loss, relative_distance(gradients[0], whole),
          relative_distance(weights[0], whole_weights)};
}

}  // namespace

TEST_CASE("the vocabulary-parallel loss is close to the whole loss in f32, f16 and bf16") {
  // A few units of each dtype's rounding: each rank rounds its term of dx before they are added.
  for (auto [dtype, rounding] :
       {std::pair{DType::f32, 1e-6}, std::pair{DType::f16, 4e-3}, std::pair{DType::bf16, 3e-2}}) {
    CAPTURE(name_of(dtype));
    const Distance far = distance_of_loss(dtype, 33, 16, 101);
    CHECK(far.loss < 1e-6);
    CHECK(far.dx < rounding);
    CHECK(far.dweight < rounding);
  }
}

TEST_CASE("the vocabulary-parallel loss matches the whole loss where exp of a logit overflows") {
  const Distance far = distance_of_loss(DType::f32, 33, 16, 101, 1000.0);
  CHECK(far.loss < 1e-6);
  CHECK(far.dx < 1e-3);
  CHECK(far.dweight < 1e-3);
}

TEST_CASE(
    "the vocabulary-parallel loss matches the whole loss when computed in several blocks of rows") {
  // 64 columns on each rank: two blocks of rows.
  const Distance far = distance_of_loss(DType::f32, (int64_t{10} << 20) / 64 + 5, 4, 12);
  CHECK(far.loss < 1e-6);
  CHECK(far.dx < 1e-5);
  CHECK(far.dweight < 1e-4);  // over 163,845 tokens, added in another order
}

TEST_CASE(
    "parallel embedding and loss refuse every id outside the vocabulary, also one just past its "
    "end") {
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const TensorParallel parallel{&ranks};
    const Var rows(random_tensor({rows_of_rank(5, parallel).count, 3}, DType::f32, device, 1));
    const Var x(random_tensor({2, 4, 3}, DType::f32, device, 2));
    for (int32_t outside : {-2, 5, 6, 1000}) {
      std::vector<int32_t> ids = eight_ids;
      ids[3] = outside;
      const Tensor bad = tokens(ids, device);
      int refused = 0;
      try {
        parallel_embedding(bad, rows, 5, parallel);
      } catch (const ShapeError&) {
        ++refused;
      }
      try {
        parallel_projection_cross_entropy(x, rows, bad, 5, parallel);
      } catch (const ShapeError&) {
        ++refused;
      }
      if (refused != 2) throw Error("an id outside the vocabulary was taken");
    }
  });
}

TEST_CASE("parallel_embedding refuses a weight whose shape is not that of the rank's rows") {
  const auto ranks = counting_communicator(1, 2);
  const TensorParallel parallel{ranks.get()};
  const Device device = Device::meta();
  const Var weight(Tensor::empty({3, 4}, DType::f32, device));
  CHECK_THROWS_WITH_AS(
      parallel_embedding(Tensor::empty({1, 2}, DType::i32, device), weight, 5, parallel),
      "parallel_embedding: weight has shape [3, 4]; expected [2, C]: the rows of rank 1 of a "
      "vocabulary of 5",
      ShapeError);
}

TEST_CASE("ParallelStore's parts tile each whole parameter and start with its initial values") {
  const Device device = Device::cpu(0, {.threads = 1});
  ParameterStore whole;
  const Unit& unit = whole.unit("layer");
  const Init init = Init::normal(1.0f);
  const Parameter* wholes[] = {
      &whole.add(unit, "qkv", {12, 4}, init), &whole.add(unit, "qkv.bias", {12}, init),
      &whole.add(unit, "out", {4, 8}, init), &whole.add(unit, "tokens", {7, 2}, init),
      &whole.add(unit, "norm", {4}, init)};
  for (int count : {1, 2, 4}) {
    CAPTURE(count);
    std::map<std::string, std::vector<int>> seen;
    for (int rank = 0; rank < count; ++rank) {
      const auto ranks = counting_communicator(rank, count);
      ParameterStore store;
      const ParallelStore describe{store, {ranks.get()}};
      const Unit& own = store.unit("layer");
      describe.rows(own, "qkv", {12, 4}, init, {.decay = true}, 3);
      describe.rows(own, "qkv.bias", {12}, init, {}, 3);
      describe.columns(own, "out", {4, 8}, init);
      describe.rows(own, "tokens", {7, 2}, init);
      const Parameter& norm = describe.whole(own, "norm", {4}, init);
      CHECK((norm.copy == Copy::replica) == (rank > 0));
      CHECK(store.find("qkv")->decay);
      for (const Parameter* of : wholes) {
        CAPTURE(of->name);
        const Parameter& part = *store.find(of->name);
        CHECK(part.whole == of->shape);
        std::vector<float> all(static_cast<size_t>(of->shape.numel()));
        std::vector<float> values(static_cast<size_t>(part.shape.numel()));
        initialise(*of, 7, 0, all);
        initialise(part, 7, 0, values);
        seen[of->name].resize(all.size());
        for (size_t i = 0; i < values.size(); ++i) {
          const auto at = static_cast<size_t>(part.slice.whole_index(static_cast<int64_t>(i)));
          CHECK(values[i] == all[at]);
          if (part.copy == Copy::own) ++seen[of->name][at];
        }
      }
    }
    for (const auto& [name, times] : seen)
      CHECK(std::ranges::all_of(times, [](int n) { return n == 1; }));
  }
}

namespace {

Account account_of_a_pass(Communicator& ranks, const Device& device, bool sequence) {
  const TensorParallel parallel{&ranks, sequence};
  const Tensor ids = Tensor::full({2, 8}, 6, DType::i32, device);
  Tape tape(device);
  const auto made = [&](const Shape& shape) {
    return tape.variable(Tensor::full(shape, 0.5, DType::bf16, device));
  };
  const Var table = made({rows_of_rank(7, parallel).count, 16}), in = made({8 / ranks.size(), 16});
  const Var in_bias = made({8 / ranks.size()}), out = made({16, 8 / ranks.size()});
  const Var parameters[] = {made({16})};
  const std::vector<Var> shared = parallel.shared(parameters);
  const Var x = parallel_embedding(ids, table, 7, parallel);
  const Var y = parallel_feed_forward(x, in, in_bias, out, shared[0], parallel);
  tape.backward(parallel_projection_cross_entropy(y, table, ids, 7, parallel));
  return {device, ranks};
}

}  // namespace

TEST_CASE("tensor parallel layers on a meta device count the memory and messages of real ones") {
  for (int count : {1, 2, 4})
    for (bool sequence : {false, true}) {
      INFO("count ", count, ", sequence ", sequence);
      check_account_on_meta(count, [&](Communicator& ranks, const Device& device) {
        return account_of_a_pass(ranks, device, sequence);
      });
    }
}
