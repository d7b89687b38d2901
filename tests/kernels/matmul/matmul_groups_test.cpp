#include <cmath>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

void multiply(const Matmul& m) { kernels::matmul(m, m.a.device().compute()); }

/// Group g alone: a plain product of its elements, or, if they are in several blocks, the product
/// of one group.
Tensor leaf_of(const Matmul& m, int64_t g) {
  Matmul leaf = m;
  leaf.bias = {};
  leaf.c = Tensor::empty(m.c.shape(), accumulator(m.a.dtype()), m.c.device());
  leaf.groups = {.count = 1};
  std::vector<Var> a, b;
  int64_t first = 0;
  leaf.K = 0;
  for (size_t i = 0; i < m.groups.blocks.size(); ++i) {
    const auto& [size, extent] = m.groups.blocks[i];
    const int64_t begin = std::min(g * extent, size), count = std::min(extent, size - begin);
    const auto part = [&](const Tensor& x, const Shape& shape, int axis) {
      return slice(Var(x.view(shape)), axis, first + begin, first + begin + count);
    };
    a.push_back(part(m.a, m.transpose_a ? Shape{m.K, m.M} : Shape{m.M, m.K}, !m.transpose_a));
    b.push_back(part(m.b, m.transpose_b ? Shape{m.N, m.K} : Shape{m.K, m.N}, m.transpose_b));
    leaf.groups.blocks[i] = {count, count};
    leaf.K += count;
    first += size;
  }
  if (m.groups.blocks[1].size == 0) leaf.groups = {};
  leaf.a = concat(a, !m.transpose_a).value();
  leaf.b = concat(b, m.transpose_b).value();
  multiply(leaf);
  return leaf.c;
}

/// The tree of groups [first, first + count) by a plain loop.
Tensor tree_of(const Matmul& m, int64_t first, int64_t count) {
  if (count == 1) return leaf_of(m, first);
  const Tensor left = tree_of(m, first, count / 2),
               right = tree_of(m, first + count / 2, count / 2);
  kernels::binary({BinaryOp::add, left, right, left}, m.c.device().compute());
  return left;
}

struct GroupedSize {
  int64_t M, N;
  ReductionGroups groups;
};

Matmul grouped(const GroupedSize& size, DType dtype, const Device& device, int transposes) {
  int64_t K = 0;
  for (const auto& block : size.groups.blocks) K += block.size;
  return {.a = random_tensor({size.M, K}, dtype, device, 1),
          .b = random_tensor({K, size.N}, dtype, device, 2),
          .c = random_tensor({size.M, size.N}, accumulator(dtype), device, 3),
          .M = size.M,
          .N = size.N,
          .K = K,
          .transpose_a = (transposes & 1) != 0,
          .transpose_b = (transposes & 2) != 0,
          .groups = size.groups};
}

const std::vector<GroupedSize> grouped_sizes = {
    {37, 64, {.count = 4, .blocks = {{{64, 16}}}}},
    {130, 350, {.count = 8, .blocks = {{{760, 95}}}}},  // a large b
    {5, 70, {.count = 4, .blocks = {{{270, 70}}}}},
    {300, 520, {.count = 2, .blocks = {{{1200, 600}}}}},
    {41, 50, {.count = 4, .blocks = {{{48, 12}, {24, 6}, {24, 6}}}}},
    {41, 50, {.count = 8, .blocks = {{{9, 2}, {18, 3}}}}},
    {33, 40, {.count = 1, .blocks = {{{48, 48}, {48, 48}, {48, 48}}}}}};

}  // namespace

TEST_CASE("the groups of a product meet in a balanced tree of plain products, bit by bit") {
  for (const Device& device : devices_at_every_level())
    for_cover(
        [&](DType dtype, const GroupedSize& size, int transposes) {
          const Matmul m = grouped(size, dtype, device, transposes);
          INFO(level_of(device), ", ", name_of(dtype), ", M ", m.M, ", N ", m.N, ", K ", m.K,
               ", groups ", m.groups.count, ", transposes ", transposes);
          multiply(m);
          CHECK(same_bits(m.c, tree_of(m, 0, m.groups.count)));
          Matmul whole = m;
          whole.c = Tensor::empty(m.c.shape(), m.c.dtype(), device);
          whole.groups = {};
          multiply(whole);
          CHECK(excess(m.c, whole.c.to_doubles(), 1e-5 * std::sqrt(m.K)) < 1.0);
        },
        on_device(floating_dtypes, device), grouped_sizes, std::array{0, 1, 2, 3});
}

TEST_CASE("a grouped product adds the bias to the root of its tree and rounds once") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device({DType::f32, DType::bf16, DType::f16}, device))
      for (const size_t size : {1, 2}) {  // the second has few rows
        Matmul m = grouped(grouped_sizes[size], dtype, device, 2);
        m.c = Tensor::empty({m.M, m.N}, dtype, device);
        m.bias = random_tensor({m.N}, dtype, device, 4);
        multiply(m);
        const Tensor root = tree_of(m, 0, m.groups.count),
                     bias = Tensor::empty({m.N}, DType::f32, device);
        kernels::cast({m.bias, bias}, device.compute());
        kernels::binary({BinaryOp::add, root, bias, root}, device.compute());
        const Tensor rounded = Tensor::empty(root.shape(), dtype, device);
        kernels::cast({root, rounded}, device.compute());
        INFO(level_of(device), ", ", name_of(dtype), ", M ", m.M);
        CHECK(same_bits(m.c, rounded));
      }
}

TEST_CASE("matmul refuses groups that do not divide K") {
  const Device device = Device::cpu();
  Matmul m = grouped(grouped_sizes[0], DType::f32, device, 0);
  m.groups.count = 3;
  CHECK_ERROR(ShapeError, "matmul: 3 groups; expected a power of two", multiply(m));
  m.groups = {.count = 4, .blocks = {{{64, 15}}}};
  CHECK_ERROR(ShapeError, "matmul: 4 groups of 15 do not cover a block of 64", multiply(m));
  m.groups = {.count = 4, .blocks = {{{60, 15}}}};
  CHECK_ERROR(ShapeError, "matmul: the blocks of groups have 60 elements; expected K, 64",
              multiply(m));
  m.groups = grouped_sizes[0].groups;
  m.accumulate = true;
  CHECK_ERROR(Unsupported, "matmul: groups with accumulate; expected one product that overwrites c",
              multiply(m));
}
