#include "zerograd/kernels/movement/movement.h"

#include <array>

#include "tests/support/cover.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// N ids below V, some repeated, many absent.
std::vector<int64_t> ids_below(int64_t N, int64_t V, uint64_t seed) {
  std::vector<int64_t> ids;
  for (int64_t n = 0; n < N; ++n) {
    const uint32_t word = Philox::block({static_cast<uint32_t>(n), 0, 0, 0}, seed)[0];
    ids.push_back(static_cast<int64_t>(word) % V);
  }
  return ids;
}

Tensor as_tensor(const std::vector<int64_t>& ids, DType dtype, const Device& device) {
  const Shape shape{static_cast<int64_t>(ids.size())};
  if (dtype == DType::i64) return Tensor::from(ids, shape, device);
  return Tensor::from(std::vector<int32_t>(ids.begin(), ids.end()), shape, device);
}

/// The elements of a row-major matrix.
double at(const std::vector<double>& matrix, int64_t row, int64_t column, int64_t C) {
  return matrix[static_cast<size_t>(row * C + column)];
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("embedding_forward gathers rows and adds positions") {
  constexpr int64_t V = 37, P = 20, T = 13, first = 5, N = 4 * T;
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (DType id_type : {DType::i32, DType::i64})
        for (int64_t C : {1, 33, 48, 1023, 1160}) {
          INFO(level_of(device), ", ", name_of(dtype));
          const std::vector<int64_t> ids = ids_below(N, V, 9);
          EmbeddingForward a{.ids = as_tensor(ids, id_type, device),
                             .weight = random_tensor({V, C}, dtype, device, 1),
                             .y = Tensor::empty({N, C}, dtype, device)};
          const std::vector<double> weight = a.weight.to_doubles();
          std::vector<double> expected;
          for (int64_t n = 0; n < N; ++n)
            for (int64_t c = 0; c < C; ++c)
              expected.push_back(at(weight, ids[static_cast<size_t>(n)], c, C));
          kernels::embedding_forward(a, device.compute());
          CHECK(a.y.to_doubles() == expected);

          a.position = random_tensor({P, C}, dtype, device, 2);
          a.T = T;
          a.first_position = first;
          const std::vector<double> position = a.position.to_doubles();
          for (int64_t n = 0; n < N; ++n)
            for (int64_t c = 0; c < C; ++c)
              expected[static_cast<size_t>(n * C + c)] += at(position, first + n % T, c, C);
          kernels::embedding_forward(a, device.compute());
          // The sum is rounded to the accumulator and then to the dtype.
          CHECK(excess(a.y, expected, 0.0, 1.01 * unit_roundoff(dtype)) <= 1.0);
        }
}

TEST_CASE(
    "embedding_backward sums the tokens of each row in token order and zeroes the other rows") {
  constexpr int64_t P = 20, T = 13, first = 5;
  struct Sizes {
    int64_t C, N = 4 * T, V = 37;
  };
  // A GPU sorts 2048 tokens at once, and a warp searches 32 of these tiles at once.
  const Sizes sizes[] = {{1},
                         {33},
                         {48},
                         {1023},
                         {1160},
                         {.C = 5, .N = 23 * T, .V = 211},
                         {.C = 3, .N = 385 * T, .V = 7},
                         {.C = 1, .N = 5200 * T, .V = 3}};
  const std::vector<DType> dtypes = on_device(floating_dtypes, devices_at_every_level()[0]);
  for (const std::vector<size_t>& choices : cover_rows({dtypes.size(), 2, std::size(sizes)})) {
    const DType dtype = dtypes[choices[0]], id_type = choices[1] ? DType::i64 : DType::i32;
    const auto [C, N, V] = sizes[choices[2]];
    INFO(name_of(dtype), ", C ", C);
    const std::vector<int64_t> ids = ids_below(N, V, 9);
    std::vector<EmbeddingBackward> results;
    for (int threads : {1, 3})
      for (const Device& device : devices_at_every_level(threads)) {
        const DType sums = accumulator(dtype);
        EmbeddingBackward a{.ids = as_tensor(ids, id_type, device),
                            .dy = random_tensor({N, C}, dtype, device, 1),
                            .dweight = Tensor::full({V, C}, NAN, sums, device),
                            .dposition = Tensor::full({P, C}, NAN, sums, device),
                            .T = T,
                            .first_position = first};
        kernels::embedding_backward(a, device.compute());
        results.push_back(a);
        CHECK(same_bits(a.dweight, results[0].dweight));
        CHECK(same_bits(a.dposition, results[0].dposition));
        // Added to other numbers, and to -0: the bits of the sums that are written and then added.
        for (const Tensor& before :
             {random_tensor({V, C}, sums, device, 2), Tensor::full({V, C}, -0.0, sums, device)}) {
          const Tensor total = Tensor::empty({V, C}, sums, device);
          copy(before, total, device.compute());
          kernels::axpby({.x = a.dweight, .y = total, .a = 1.0, .b = 1.0}, device.compute());
          EmbeddingBackward adding = a;
          adding.dweight = before;
          adding.adds = true;
          kernels::embedding_backward(adding, device.compute());
          CHECK(same_bits(adding.dweight, total));
        }
      }
    // The same order in the same precision: the very same sums.
    const std::vector<double> dy = results[0].dy.to_doubles();
    std::vector<double> dweight(static_cast<size_t>(V * C)), dposition(static_cast<size_t>(P * C));
    const auto add = [&](double& sum, double term) {
      sum = dtype == DType::f64 ? sum + term : static_cast<float>(sum) + static_cast<float>(term);
    };
    for (int64_t n = 0; n < N; ++n)
      for (int64_t c = 0; c < C; ++c) {
        const double term = at(dy, n, c, C);
        add(dweight[static_cast<size_t>(ids[static_cast<size_t>(n)] * C + c)], term);
        add(dposition[static_cast<size_t>((first + n % T) * C + c)], term);
      }
    CHECK(results[0].dweight.to_doubles() == dweight);
    CHECK(results[0].dposition.to_doubles() == dposition);
  }
}

TEST_CASE("embedding kernels give the same bits at every alignment of their operands") {
  constexpr int64_t V = 37, P = 20, T = 13, N = 4 * T, C = 48;
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device({DType::f32, DType::bf16}, device)) {
      const auto results = [&](const std::array<int64_t, 6>& begin) {
        const Tensor ids = as_tensor(ids_below(N, V, 9), DType::i64, device);
        const auto matrix = [&](size_t i, int64_t rows, DType of) {
          return moved(random_tensor({rows, C}, of, device, i), begin[i]);
        };
        const EmbeddingForward forward{.ids = ids,
                                       .weight = matrix(0, V, dtype),
                                       .position = matrix(1, P, dtype),
                                       .y = matrix(2, N, dtype),
                                       .T = T,
                                       .first_position = 3};
        const EmbeddingBackward backward{.ids = ids,
                                         .dy = matrix(3, N, dtype),
                                         .dweight = matrix(4, V, DType::f32),
                                         .dposition = matrix(5, P, DType::f32),
                                         .T = T,
                                         .first_position = 3};
        kernels::embedding_forward(forward, device.compute());
        kernels::embedding_backward(backward, device.compute());
        return std::array{forward.y, backward.dweight, backward.dposition};
      };
      const auto expected = results({});
      for (size_t operand = 0; operand < 6; ++operand)
        for (int64_t begin : {1, 2, 4}) {
          INFO(level_of(device), ", operand ", operand, ", begin ", begin);
          std::array<int64_t, 6> begins = {};
          begins[operand] = begin;
          const auto actual = results(begins);
          for (size_t i = 0; i < 3; ++i) CHECK(same_bits(actual[i], expected[i]));
        }
    }
}

TEST_SUITE_END();

TEST_CASE("embedding_backward computes only the gradients that are given a tensor") {
  const Device device = Device::cpu();
  const std::vector<int64_t> ids = {2, 0, 2};
  EmbeddingBackward a{.ids = as_tensor(ids, DType::i64, device),
                      .dy = Tensor::from(std::vector<float>{1, 2, 4}, {3, 1}, device),
                      .dweight = Tensor::full({4, 1}, NAN, DType::f32, device)};
  kernels::embedding_backward(a, device.compute());
  CHECK(a.dweight.to_host<float>() == std::vector<float>{2, 0, 5, 0});
  CHECK(kernels::embedding_backward[Device::Type::cpu].workspace_bytes(a, device.traits()) ==
        (3 + 4) * 8);
  a.dweight = Tensor();
  a.dposition = Tensor::full({3, 1}, NAN, DType::f32, device);
  a.T = 1;
  a.first_position = 1;
  kernels::embedding_backward(a, device.compute());
  CHECK(a.dposition.to_host<float>() == std::vector<float>{0, 7, 0});
  CHECK(kernels::embedding_backward[Device::Type::cpu].workspace_bytes(a, device.traits()) == 0);
}

TEST_CASE("embedding of no tokens gives zero gradients") {
  const Device device = Device::cpu();
  const EmbeddingBackward a{.ids = Tensor::empty({0}, DType::i64, device),
                            .dy = Tensor::empty({0, 3}, DType::f16, device),
                            .dweight = Tensor::full({4, 3}, NAN, DType::f32, device),
                            .dposition = Tensor::full({2, 3}, NAN, DType::f32, device),
                            .T = 2};
  kernels::embedding_backward(a, device.compute());
  CHECK(a.dweight.to_doubles() == std::vector<double>(12));
  CHECK(a.dposition.to_doubles() == std::vector<double>(6));
}

TEST_CASE("embedding refuses ids outside the vocabulary, before it writes") {
  const Device device = Device::cpu();
  for (DType id_type : {DType::i32, DType::i64}) {
    const EmbeddingForward a{.ids = as_tensor({1, 5, 0}, id_type, device),
                             .weight = Tensor::zeros({5, 2}, DType::f32, device),
                             .y = Tensor::full({3, 2}, 7.0, DType::f32, device)};
    CHECK_THROWS_WITH_AS(kernels::embedding_forward(a, device.compute()),
                         "embedding_forward: ids[1] is 5; expected an id in [0, 5)", ShapeError);
    CHECK(a.y.to_doubles() == std::vector<double>(6, 7.0));
    const EmbeddingBackward b{.ids = as_tensor({1, 0, -1}, id_type, device),
                              .dy = Tensor::zeros({3, 2}, DType::f32, device),
                              .dweight = Tensor::full({5, 2}, 7.0, DType::f32, device)};
    CHECK_THROWS_WITH_AS(kernels::embedding_backward(b, device.compute()),
                         "embedding_backward: ids[2] is -1; expected an id in [0, 5)", ShapeError);
    CHECK(b.dweight.to_doubles() == std::vector<double>(10, 7.0));
  }
}

TEST_CASE("embedding refuses wrong shapes and dtypes, and positions out of range") {
  const Device device = Device::meta();
  const auto empty = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, device);
  };
  const EmbeddingForward a{.ids = empty({6}, DType::i32),
                           .weight = empty({5, 2}, DType::bf16),
                           .position = empty({4, 2}, DType::bf16),
                           .y = empty({6, 2}, DType::bf16),
                           .T = 3};
  CHECK_NOTHROW(kernels::embedding_forward(a, device.compute()));
  auto refused = [&](auto change) {
    EmbeddingForward changed = a;
    change(changed);
    kernels::embedding_forward(changed, device.compute());
  };
  CHECK_THROWS_WITH_AS(refused([&](auto& b) { b.ids = empty({5}, DType::i32); }),
                       "embedding_forward: ids has shape [5]; expected [6]", ShapeError);
  CHECK_THROWS_WITH_AS(refused([&](auto& b) { b.ids = empty({6}, DType::f32); }),
                       "embedding_forward: ids holds f32; expected i32 or i64", DTypeError);
  CHECK_THROWS_WITH_AS(
      refused([&](auto& b) {
        b.weight = empty({5, 3}, DType::bf16);
      }),
      "embedding_forward: weight has shape [5, 3]; expected a matrix with 2 columns", ShapeError);
  CHECK_THROWS_WITH_AS(refused([&](auto& b) { b.T = 4; }),
                       "embedding_forward: T (tokens per sequence) is 4; expected a divisor of the "
                       "number of tokens, 6",
                       ShapeError);
  CHECK_THROWS_AS(refused([&](auto& b) { b.T = 0; }), ShapeError);
  CHECK_THROWS_WITH_AS(
      refused([&](auto& b) { b.first_position = 2; }),
      "embedding_forward: 3 positions from 2 are used; expected 0 to 3, the rows of the "
      "position table",
      ShapeError);
  CHECK_THROWS_AS(refused([&](auto& b) { b.first_position = INT64_MAX; }), ShapeError);
  const EmbeddingBackward b{.ids = a.ids, .dy = a.y, .dweight = a.weight};
  CHECK_THROWS_WITH_AS(kernels::embedding_backward(b, device.compute()),
                       "embedding_backward: dweight holds bf16; expected f32", DTypeError);
}
