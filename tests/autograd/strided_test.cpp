#include "tests/autograd/fake_source.h"
#include "tests/autograd/op_check.h"
#include "zerograd/runtime/launches.h"

using namespace zg;
using namespace zg::testing;

namespace {

using OfVar = std::function<Var(const Var&)>;

/// An op of a view and of another operand. The view of x has other strides than a tensor of its
/// own.
struct StridedCase {
  const char* name;
  Shape x;
  OfVar view;
  Shape other;
  std::function<Var(const Var&, const Var&)> op;
};

Var swapped(const Var& x) { return transpose(x, -1, -2); }
Var heads_first(const Var& x) { return permute(x, {0, 2, 1, 3}); }
Var matmul_pair(const Var& a, const Var& b) { return matmul(a, b); }
Var left_times(const Var& a, const Var& b) { return matmul(b, a); }

const StridedCase strided_cases[] = {
    {"rows", {5, 17}, swapped, {5, 11}, matmul_pair},
    {"columns", {9, 12}, swapped, {10, 12}, left_times},
    {"columns of few rows", {9, 12}, swapped, {3, 12}, left_times},
    {"both",
     {12, 10},
     swapped,
     {13, 12},
     [](const Var& a, const Var& b) { return matmul(a, swapped(b)); }},
    {"heads", {2, 5, 3, 4}, heads_first, {2, 3, 4, 7}, matmul_pair},
    {"heads of the right", {2, 12, 3, 4}, heads_first, {2, 3, 9, 12}, left_times},
    {"heads, turned",
     {2, 12, 3, 4},
     [](const Var& x) {
       return permute(x, {0, 2, 3, 1});
     },
     {2, 3, 9, 4},
     left_times},
    {"heads, turned, few rows",
     {2, 12, 3, 4},
     [](const Var& x) {
       return permute(x, {0, 2, 3, 1});
     },
     {2, 3, 2, 4},
     left_times},
    {"scores",
     {2, 12, 3, 4},
     heads_first,
     {2, 12, 3, 4},
     [](const Var& q, const Var& k) { return matmul(q, swapped(heads_first(k))); }},
    {"neither axis",
     {3, 4, 5},
     [](const Var& x) {
       return permute(x, {1, 2, 0});
     },
     {3, 6},
     matmul_pair},
    {"rows of one product",
     {3, 4, 5},
     [](const Var& x) { return transpose(x, 0, 1); },
     {5, 6},
     matmul_pair},
    {"shared by all", {5, 6}, swapped, {4, 9, 6}, left_times},
    {"shared by an axis", {1, 9, 3, 5}, heads_first, {4, 1, 5, 2}, matmul_pair},
    {"one row", {5, 1}, swapped, {5, 3}, matmul_pair},
    {"one column", {7, 1, 3}, [](const Var& x) { return transpose(x, 0, 2); }, {2, 1}, left_times},
    {"no rows", {5, 0}, swapped, {5, 3}, matmul_pair},
    {"no sums", {0, 5}, swapped, {0, 3}, matmul_pair},
    {"no batch", {0, 3, 4, 5}, heads_first, {5, 2}, matmul_pair},
    {"five axes",
     {2, 3, 2, 11, 4},
     [](const Var& x) {
       return permute(x, {2, 0, 1, 4, 3});
     },
     {11, 3},
     matmul_pair},
    {"vectors", {4, 6}, swapped, {4}, matmul_pair},
    {"itself", {9, 9}, swapped, {1}, [](const Var& a, const Var&) { return matmul(a, a); }},
    {"a reshaped view",
     {2, 9, 3, 4},
     [](const Var& x) { return unsqueeze(heads_first(x), 1); },
     {4, 7},
     matmul_pair},
    {"divided axes",
     {6, 20},
     [](const Var& x) {
       return reshape(swapped(x), {4, 5, 2, 3});
     },
     {3, 2},
     matmul_pair},
    {"merged axes",
     {2, 3, 4},
     [](const Var& x) {
       return reshape(permute(x, {2, 0, 1}), {4, 6});
     },
     {6, 3},
     matmul_pair},
    {"sums",
     {2, 5, 3, 8},
     heads_first,
     {2, 3, 5, 8},
     [](const Var& a, const Var& b) { return a + b; }},
    {"differences",
     {2, 5, 3, 8},
     heads_first,
     {2, 3, 5, 8},
     [](const Var& a, const Var& b) { return b - a; }},
    {"products of rows",
     {2, 5, 3, 8},
     heads_first,
     {8},
     [](const Var& a, const Var& b) { return a * b; }},
    {"products of columns",
     {5, 4},
     swapped,
     {4, 5},
     [](const Var& a, const Var& b) { return b * a; }},
    {"quotients",
     {2, 5, 3, 8},
     heads_first,
     {3, 1, 8},
     [](const Var& a, const Var& b) { return a / (b * b + 1.0); }},
    {"divisors",
     {2, 5, 3, 1},
     heads_first,
     {2, 3, 5, 4},
     [](const Var& a, const Var& b) { return b / (a * a + 1.0); }},
    {"fewer axes than the other",
     {3, 4, 2},
     [](const Var& x) { return transpose(x, 0, 1); },
     {5, 4, 3, 2},
     [](const Var& a, const Var& b) { return a * b; }},
    {"maxima",
     {3, 4, 2},
     [](const Var& x) { return transpose(x, 0, 1); },
     {4, 3, 2},
     [](const Var& a, const Var& b) { return maximum(a, maximum(b, a * 0.5)); }},
    {"choices",
     {2, 5, 3, 8},
     heads_first,
     {2, 3, 5, 8},
     [](const Var& a, const Var& b) { return where(less(a, b), a, where(greater(a, 0.5), b, a)); }},
    {"numbers",
     {2, 5, 3, 8},
     heads_first,
     {8},
     [](const Var& a, const Var& b) { return add(2.0 - a, b); }},
    {"repeated rows",
     {1, 8},
     [](const Var& x) {
       return broadcast_to(x, {3, 8});
     },
     {3, 8},
     [](const Var& a, const Var& b) { return a * b - a; }},
    {"repeated columns",
     {4, 1},
     [](const Var& x) {
       return broadcast_to(x, {2, 4, 5});
     },
     {4, 5},
     [](const Var& a, const Var& b) { return a * b / 3.0; }},
    {"repeated matrices",
     {1, 9, 4},
     [](const Var& x) {
       return broadcast_to(x, {3, 9, 4});
     },
     {3, 4, 2},
     matmul_pair},
    {"repeated matrices of the right",
     {9, 4},
     [](const Var& x) {
       return broadcast_to(x, {3, 9, 4});
     },
     {2, 1, 5, 9},
     left_times},
    {"a repeated view",
     {4, 1, 3},
     [](const Var& x) {
       return broadcast_to(transpose(x, 0, 2), {3, 5, 4});
     },
     {4, 2},
     matmul_pair},
    {"largest of rows",
     {2, 5, 3, 8},
     heads_first,
     {2, 3, 5},
     [](const Var& a, const Var& b) { return max(a, {-1}) * b; }},
    {"largest of turned axes",
     {4, 1, 7, 3},
     [](const Var& x) {
       return permute(x, {3, 1, 2, 0});
     },
     {3, 4},
     [](const Var& a, const Var& b) {
       return max(a, {1, 2}) * b;
     }},
    {"parts",
     {2, 5, 3, 8},
     heads_first,
     {2, 3, 5, 2},
     [](const Var& a, const Var& b) {
       return concat({b, a, b}, -1);
     }},
    {"parts of the first axis",
     {4, 6},
     swapped,
     {3, 4},
     [](const Var& a, const Var& b) {
       return concat({b, a}, 0);
     }},
    {"a slice",
     {2, 5, 3, 8},
     heads_first,
     {2, 3, 2, 8},
     [](const Var& a, const Var& b) { return slice(a, 2, 1, 3) * b; }},
    {"slices of each axis",
     {4, 6},
     swapped,
     {3, 2},
     [](const Var& a, const Var& b) { return slice(slice(a, 0, 2, 5), 1, 1, 3) * b; }},
    {"no slice",
     {4, 6},
     swapped,
     {6, 0},
     [](const Var& a, const Var& b) { return slice(a, 1, 4, 4) * b; }},
    {"halves",
     {6, 4},
     swapped,
     {4, 3},
     [](const Var& a, const Var& b) {
       const int64_t sizes[] = {2, 1, 3};
       const std::vector<Var> parts = split(a, sizes, 1);
       return parts[2] * b - parts[1];
     }},
    {"uneven axes",
     {2, 3, 4},
     [](const Var& x) {
       return reshape(permute(x, {1, 0, 2}), {3, 8});
     },
     {8, 3},
     matmul_pair},
};

std::vector<double> all_of(const Tensor& x) { return x ? x.to_doubles() : std::vector<double>(); }

/// y, the gradients of both operands, and the gradients of a function of these by grad().
struct Derivatives {
  std::vector<double> y, of_view, of_other, second_of_view, second_of_other;
};

/// `values`: x, or the values of the view, which are then an operand of their own.
Derivatives derivatives_of(const StridedCase& c, const Tensor& values, bool is_view,
                           const Tensor& other) {
  Derivatives found;
  const auto seed_like = [](const Var& y) {
    return random_tensor(y.shape(), y.dtype(), y.device(), 7);
  };
  for (const int order : {1, 2}) {
    Tape tape(values.device());
    const Var x = tape.variable(values), right = tape.variable(other);
    const Var a = is_view ? c.view(x) : x, y = c.op(a, right);
    if (order == 1) {
      found.y = all_of(y.value());
      const std::vector<Var> by_value =
          grad({&y, 1}, std::vector{a, right}, {.cotangents = {seed_like(y)}});
      found.of_view = all_of(by_value[0].value());
      found.of_other = all_of(by_value[1].value());
      continue;
    }
    const std::vector<Var> first =
        grad({&y, 1}, std::vector{a, right}, {.create_graph = true, .cotangents = {seed_like(y)}});
    Var squares = sum(mul(first[0], first[0]));
    squares = squares + sum(mul(first[1], first[1]));
    if (!squares.needs_gradient()) continue;  // the op is linear
    const std::vector<Var> second = grad({&squares, 1}, std::vector{a, right});
    found.second_of_view = all_of(second[0].value());
    found.second_of_other = all_of(second[1].value());
  }
  return found;
}

}  // namespace

TEST_CASE("ops of strided operands give the bits of copied ones, also in both derivatives") {
  for (const int threads : {1, 2})
    for (const Device& device : devices_at_every_level(threads))
      for (const DType dtype : on_device({DType::f64, DType::f32, DType::bf16}, device))
        for (const StridedCase& c : strided_cases) {
          INFO(c.name, ", ", name_of(dtype), ", ", level_of(device), ", ", threads, " threads");
          const Tensor x = random_tensor(c.x, dtype, device, 1);
          const Tensor other = random_tensor(c.other, dtype, device, 2);
          const Tensor copied = c.view(Var(x)).value();
          const Derivatives strided = derivatives_of(c, x, true, other);
          const Derivatives expected = derivatives_of(c, copied, false, other);
          CHECK(same_bits(strided.y, expected.y));
          CHECK(same_bits(strided.of_view, expected.of_view));
          CHECK(same_bits(strided.of_other, expected.of_other));
          CHECK(same_bits(strided.second_of_view, expected.second_of_view));
          CHECK(same_bits(strided.second_of_other, expected.second_of_other));
        }
}

TEST_CASE("gradients through views are those of central differences") {
  for (const StridedCase& c : strided_cases) {
    INFO(c.name);
    check_gradient([&](Tape&, Vars in) { return c.op(c.view(in[0]), in[1]); },
                   {doubles(c.x, 1), doubles(c.other, 2)});
  }
}

TEST_CASE("a view takes no memory until its elements are read in order") {
  const Device device = Device::cpu(0, {.threads = 1, .separate = true});
  const auto made = [&](const Shape& shape) {
    return Tensor::full(shape, 0.5, DType::f32, device);
  };
  Tape tape(device);
  const Var x = tape.variable(made({64, 32})), w = tape.constant(made({64, 16}));
  const int64_t before = device.memory().live();
  const Var y = transpose(x, 0, 1);
  CHECK(y.shape() == Shape{32, 64});
  CHECK(y.dtype() == DType::f32);
  CHECK(y.device() == device);
  CHECK(y);
  CHECK(y.needs_gradient());
  CHECK(transpose(y, 0, 1).value().buffer() == x.value().buffer());
  const Var z = matmul(y, w);
  CHECK(device.memory().live() == before + z.value().bytes());
  const Var copy_of_view = y, constant = detach(y);
  CHECK_FALSE(constant.needs_gradient());
  const Tensor read = copy_of_view.value();
  CHECK(device.memory().live() == before + z.value().bytes() + read.bytes());
  CHECK(y.value().buffer() == read.buffer());
  CHECK(constant.value().buffer() == read.buffer());
}

TEST_CASE("products of many small heads are few calls of the kernel") {
  const Device device = Device::cpu(0, {.threads = 1, .count_launches = true, .separate = true});
  const auto products = [&] {
    int64_t calls = 0;
    for (const LaunchRow& row : device.launches()->counts().rows)
      if (row.op == "matmul") calls += row.launches;
    return calls;
  };
  Tape tape(device);
  const Var x = tape.variable(random_tensor({100, 3, 2, 4}, DType::f32, device, 1));
  const Var y = tape.variable(random_tensor({100, 2, 4, 5}, DType::f32, device, 2));
  const Var z = matmul(heads_first(x), y);
  CHECK(products() == 2);
  tape.backward(sum(z));
  CHECK(products() <= 5);
}

TEST_CASE("attention of transposed heads takes less memory than with copies, as planned") {
  const auto peak_of = [](const Device& device, bool copies, bool trains) {
    Tape tape(device, nullptr, trains ? TapeMode::record : TapeMode::inference);
    std::vector<Var> parts, views;
    for (const double value : {0.5, 0.25, 1.0}) {
      parts.push_back(tape.variable(Tensor::full({2, 16, 4, 8}, value, DType::f32, device)));
      const Var view = heads_first(parts.back());
      views.push_back(copies ? tape.constant(view.value()) : view);
    }
    const Var p = softmax(matmul(views[0], swapped(views[1])));
    const Var y = matmul(p, views[2]);
    if (trains) tape.backward(sum(y));
    return device.memory().peak();
  };
  const DeviceOptions options{.threads = 1};
  const auto peak = [&](bool copies, bool trains) {
    const int64_t planned = peak_of(Device::meta(0, options), copies, trains);
    CHECK(planned == peak_of(Device::cpu(0, options), copies, trains));
    return planned;
  };
  constexpr int64_t bytes_of_heads = 2 * 16 * 4 * 8 * 4;
  // Three copies less, but more scratch of matmul.
  CHECK(peak(false, false) + bytes_of_heads < peak(true, false));
  CHECK(peak(false, true) > 0);
}

TEST_CASE("einsum reads heads where they are, with the bits of matmul") {
  const auto run = [](const Device& device, bool is_einsum) {
    const Var x = random_tensor({2, 9, 3, 4}, DType::f32, device, 1);
    const Var w = random_tensor({2, 11, 3, 4}, DType::f32, device, 2);
    const Var y = is_einsum ? einsum("bthd,bshd->bhts", {x, w})
                            : matmul(heads_first(x), swapped(heads_first(w)));
    return std::pair(y.value(), device.memory().peak());
  };
  const DeviceOptions options{.threads = 1, .separate = true};
  const auto [by_einsum, peak] = run(Device::cpu(0, options), true);
  const auto [by_matmul, expected_peak] = run(Device::cpu(0, options), false);
  CHECK(same_bits(by_einsum, by_matmul));
  CHECK(peak == expected_peak);
}

TEST_CASE("grad() of a moved intermediate value passes nothing on to its operand") {
  Tape tape(shared_device());
  const Var x = tape.variable(doubles({2, 3}, 1)), y = swapped(x), z = matmul(y, x);
  CHECK(values_of(grad(sum(z), y)).size() == 6);
}

TEST_CASE("the operand of a view may not change until the view is read") {
  const Device& device = shared_device();
  const auto write = [&](const Tensor& x) { fill_zero(x, device.compute()); };
  const Tensor values = doubles({3, 4}, 1), w = doubles({3, 2}, 2);
  Tape tape(device);
  const Var y = transpose(tape.constant(values), 0, 1), z = transpose(tape.constant(values), 0, 1);
  const std::vector<double> before = values_of(z);
  write(values);
  const char* const message =
      "transpose: the operand [3, 4] f64 was changed in place before the result [4, 3] was read";
  CHECK_ERROR(TapeError, message, y.value());
  CHECK_ERROR(TapeError, message, matmul(y, Var(w)));
  CHECK(values_of(z) == before);
  const Var product = matmul(z, Var(w));  // of the copy
  CHECK(values_of(product) == values_of(matmul(Var(z.value()), Var(w))));
  CHECK(y.shape() == Shape{4, 3});

  const Var changed = transpose(tape.constant(doubles({3, 4}, 1)), 0, 1);
  write(changed.value());
  CHECK(values_of(matmul(changed, Var(w))) == std::vector<double>(8, 0.0));

  Tape recording(device);
  const Tensor saved = doubles({3, 4}, 1);
  const Var loss = sum(matmul(transpose(recording.constant(saved), 0, 1), recording.variable(w)));
  write(saved);
  CHECK_ERROR(TapeError, "matmul: backward needs the tensor [3, 4] f64", recording.backward(loss));

  run_local(2, [](Communicator& ranks, const Device& own) {
    const Tensor x = Tensor::full({2, 3}, ranks.rank(), DType::f32, own);
    const Var turned = transpose(Var(x), 0, 1);
    ranks.wait(ranks.broadcast(x, 0, "x"));
    if (ranks.rank() == 0) CHECK(turned.value().to_doubles() == std::vector<double>(6, 0.0));
    if (ranks.rank() == 1) CHECK_ERROR(TapeError, "transpose: the operand", turned.value());
  });
}

TEST_CASE("views outlive their tape, and pass through checkpoint() and an inference tape") {
  const Tensor values = doubles({5, 9}, 1), w = doubles({5, 3}, 2);
  const std::vector<double> expected =
      values_of(matmul(Var(transpose(Var(values), 0, 1).value()), Var(w)));
  Var y;
  {
    Tape tape(shared_device(), nullptr, TapeMode::inference);
    y = transpose(tape.variable(values), 0, 1);
  }
  CHECK(values_of(matmul(y, Var(w))) == expected);
  const auto gradient_with = [&](bool is_checkpointed) {
    Tape tape(shared_device());
    const Var x = tape.variable(values), view = transpose(x, 0, 1);
    const auto segment = [&](const Var& in) { return matmul(swapped(swapped(in)), Var(w)); };
    tape.backward(sum(is_checkpointed ? checkpoint(view, segment) : segment(view)));
    return tape.gradient(x).to_doubles();
  };
  CHECK(gradient_with(true) == gradient_with(false));
}

TEST_CASE("the transpose of a parameter outlives its unit") {
  ParameterStore store;
  const Unit& unit = store.unit("layer");
  const Parameter& weight = store.add(unit, "weight", {4, 3}, Init::normal(1.0f));
  FakeSource source(store, shared_device());
  Tape tape(shared_device(), &source);
  const Var x = tape.variable(doubles({2, 3}, 1));
  Var turned, reshaped;
  {
    const Tape::Use use(tape, unit);
    turned = transpose(tape.parameter(weight), 0, 1);
    reshaped = transpose(reshape(tape.parameter(weight), {2, 2, 3}), 1, 2);
  }
  for (const double value : values_of(matmul(x, turned))) CHECK(std::isfinite(value));
  for (const double value : values_of(reshaped)) CHECK(std::isfinite(value));
}
