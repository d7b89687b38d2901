#include "zerograd/autograd/convolution.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/op.h"
#include "tests/autograd/op_check.h"

// Convolutions, pooling and group_norm. bench/window_ops.cpp has their rows in the table of ops,
// from which their gradients, dtypes, devices and threads are tested.
using namespace zg;
using namespace zg::testing;

namespace {

using nlohmann::json;

Pair2d pair_of(const json& numbers) { return {numbers[0].get<int64_t>(), numbers[1]}; }

/// The op of a case of tests/reference/make_convolution_fixtures.py.
Var called(const json& c, Vars in) {
  const std::string op = c.at("op");
  const json& n = c.at("numbers");
  const Var bias = in.size() > 2 ? in[2] : Var();
  if (op == "causal")
    return conv1d(in[0], in[1], bias, {.dilation = 2, .groups = 3, .causal = true});
  if (op == "conv1d") return conv1d(in[0], in[1], bias, {n[0], n[1], n[2], n[3]});
  if (op == "conv2d")
    return conv2d(in[0], in[1], bias, {pair_of(n[0]), pair_of(n[1]), pair_of(n[2]), n[3]});
  if (op == "conv_transpose1d")
    return conv_transpose1d(in[0], in[1], bias, {n[0], n[1], n[4], n[2], n[3]});
  if (op == "conv_transpose2d")
    return conv_transpose2d(in[0], in[1], bias,
                            {pair_of(n[0]), pair_of(n[1]), pair_of(n[4]), pair_of(n[2]), n[3]});
  if (op == "avg_pool2d")
    return avg_pool2d(in[0], pair_of(n[0]), pair_of(n[1]), pair_of(n[2]), n[4]);
  if (op == "max_pool2d")
    return max_pool2d(in[0], pair_of(n[0]), pair_of(n[1]), pair_of(n[2]), pair_of(n[3]));
  return group_norm(in[0], n[0], in[1], in[2], 0x1p-16f);
}

Shape shape_in(const json& from) {
  const auto extents = from.at("shape").get<std::vector<int64_t>>();
  return Shape(std::span(extents));
}

Var zeros_of(const Shape& shape, DType dtype = DType::f32) {
  return Var(Tensor::zeros(shape, dtype, shared_device()));
}

}  // namespace

TEST_CASE("convolutions, pooling and group_norm have PyTorch's values and gradients") {
  std::ifstream file(ZG_FIXTURES "convolution.json");
  const json cases = json::parse(file);
  CHECK(cases.size() == 14);
  for (const json& c : cases) {
    const std::string name = c.at("op").get<std::string>() + " " + c.at("numbers").dump();
    CAPTURE(name);
    Tape tape(shared_device());
    std::vector<Var> in;
    for (const json& input : c.at("inputs")) {
      const auto values = input.at("values").get<std::vector<double>>();
      in.push_back(tape.variable(Tensor::from(values, shape_in(input), shared_device())));
    }
    const Var y = called(c, in);
    CHECK(y.shape().str() == shape_in(c.at("output")).str());
    CHECK(excess(y.value(), c.at("output").at("values"), 1e-13) < 1.0);
    std::vector<double> weights(static_cast<size_t>(y.shape().numel()));
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i] = (static_cast<double>(i * 7 % 5) - 2.0) / 4.0;
    const Tensor dy = Tensor::from(weights, y.shape(), shared_device());
    tape.backward({&y, 1}, {&dy, 1});
    for (size_t i = 0; i < in.size(); ++i) {
      CAPTURE(i);
      CHECK(excess(tape.gradient(in[i]), c.at("gradients")[i], 1e-12) < 1.0);
    }
  }
}

TEST_CASE(
    "a convolution in parts has the values and gradients of each sample, and of turned images") {
  // Parts of 32 samples, and parts of some rows of each sample.
  for (const Shape& shape : {Shape{40, 2, 40, 41}, Shape{2, 8, 300, 90}})
    for (const bool transposed : {false, true}) {
      INFO(shape.str(), transposed ? ", transposed" : "");
      const auto function = [&](const Var& x, const Var& w) {
        return transposed ? conv_transpose2d(x, w) : conv2d(x, w);
      };
      /// y, and the gradients of x and w.
      const auto results = [&](const Tensor& x, const Tensor& w, const Tensor& dy) {
        Tape tape(shared_device());
        const Var in[] = {tape.variable(x), tape.variable(w)};
        const Var y = function(in[0], in[1]);
        tape.backward({&y, 1}, {&dy, 1});
        return std::vector<Tensor>{y.value(), tape.gradient(in[0]), tape.gradient(in[1])};
      };
      const Tensor x = doubles(shape, 1), w = doubles({shape[1], shape[1], 3, 2}, 2);
      const Tensor dy = doubles(function(Var(x), Var(w)).shape(), 3);
      const std::vector<Tensor> whole = results(x, w, dy);
      std::vector<double> weight_gradient(static_cast<size_t>(w.numel()));
      for (int64_t n = 0; n < shape[0]; ++n) {
        const auto turned = [](const Tensor& t) { return transpose(Var(t), 2, 3).value(); };
        const Tensor sample = turned(x.slice(n, n + 1)), of_y = turned(dy.slice(n, n + 1));
        const std::vector<Tensor> parts = results(sample, turned(w), of_y);
        for (const size_t i : {0, 1})
          CHECK(excess(turned(parts[i]), whole[i].slice(n, n + 1).to_doubles(), 1e-12) < 1.0);
        const std::vector<double> gradient = turned(parts[2]).to_doubles();
        for (size_t i = 0; i < gradient.size(); ++i) weight_gradient[i] += gradient[i];
      }
      CHECK(excess(whole[2], weight_gradient, 1e-10) < 1.0);
    }
}

TEST_CASE("convolutions and pools have the same bits on every instruction set") {
  for (const bench::Op& op : bench::window_ops())
    for (const bench::OpKernel& kernel : op.kernels) {
      std::vector<bench::Call> calls;
      for (const Device& device : devices_at_every_level()) {
        INFO(op.name, ", ", level_of(device));
        calls.push_back(kernel.call({device, DType::f32}, op.tested.back()));
        calls.back().run();
        for (size_t i = 0; i < calls[0].results.size(); ++i)
          CHECK(same_bits(calls.back().results[i].tensor, calls[0].results[i].tensor));
      }
    }
}

TEST_CASE("convolutions and pools take as many bytes on a meta device as on the CPU") {
  for (const bench::Op& op : bench::window_ops()) {
    CAPTURE(op.name);
    const auto peak = [&](const Device& device) {
      const bench::Call call =
          op.kernels[0].call({device, DType::bf16}, op.tested[op.tested.size() - 2]);
      call.run();
      return device.memory().peak();
    };
    const DeviceOptions options{.threads = 1, .separate = true};
    CHECK(peak(Device::meta(0, options)) == peak(Device::cpu(0, options)));
  }
}

TEST_CASE("an empty batch has an empty convolution and gradients of 0") {
  for (const int64_t groups : {1, 4}) {
    Tape tape(shared_device());
    const Var x = tape.variable(Tensor::zeros({0, 4, 5}, DType::f32, shared_device()));
    const Var weight =
        tape.variable(Tensor::full({4, 4 / groups, 3}, 1, DType::f32, shared_device()));
    const Var bias = tape.variable(Tensor::full({4}, 1, DType::f32, shared_device()));
    const Var y = conv1d(x, weight, bias, {.padding = 1, .groups = groups});
    CHECK(y.shape() == Shape{0, 4, 5});
    tape.backward(sum(y));
    CHECK(tape.gradient(x).shape() == Shape{0, 4, 5});
    CHECK(tape.gradient(weight).to_doubles() == std::vector<double>(48 / groups, 0.0));
    CHECK(tape.gradient(bias).to_doubles() == std::vector<double>(4, 0.0));
  }
}

TEST_CASE("group_norm of bf16 is that of the same numbers in f32, rounded once") {
  const auto narrow = [](const Shape& shape, uint64_t seed) {
    return cast(Var(doubles(shape, seed)), DType::bf16);
  };
  const auto wide = [](const Var& x) { return cast(x, DType::f32); };
  const Var x = narrow({2, 6, 3}, 1), gamma = narrow({6}, 2), beta = narrow({6}, 3);
  const Var y = group_norm(x, 2, gamma, beta);
  CHECK(y.dtype() == DType::bf16);
  CHECK(values_of(y) ==
        values_of(cast(group_norm(wide(x), 2, wide(gamma), wide(beta)), DType::bf16)));
  CHECK(avg_pool2d(doubles({1, 6, 7}, 1), {2, 3}).shape() == Shape{1, 3, 2});
}

TEST_CASE("gradients of a convolution have gradients by other ops") {
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    const auto slopes = [&](Tape&, Vars in) {
      const Var y = transposed ? conv_transpose1d(in[0], in[1], {}, {.padding = 1, .groups = 2})
                               : conv1d(in[0], in[1], {}, {.padding = 1, .groups = 2});
      const std::vector<Var> found =
          grad({&y, 1}, in.first(2), {.create_graph = true, .cotangents = {in[2]}});
      return concat({reshape(found[0], {-1}), reshape(found[1], {-1})}, 0);
    };
    const Shape weight = transposed ? Shape{4, 3, 3} : Shape{6, 2, 3};
    check_composed(slopes, {doubles({2, 4, 5}, 1), doubles(weight, 2), doubles({2, 6, 5}, 3)});
  }
}

TEST_CASE(
    "a maximum ignores padding, is NaN where an element is, and passes its gradient to the first") {
  const Tensor x = Tensor::from(std::vector<double>{-3, -2, NAN, -infinity, -infinity, -infinity},
                                {1, 6}, shared_device());
  const std::vector<double> y = values_of(max_pool1d(Var(x), 3, 1, 1));
  CHECK(excess(Tensor::from(y, {6}, shared_device()), {-2, NAN, NAN, NAN, -infinity, -infinity},
               1e-300) < 1.0);
  const auto gradient = [](const std::vector<double>& values) {
    Tape tape(shared_device());
    const auto n = static_cast<int64_t>(values.size());
    const Var in = tape.variable(Tensor::from(values, {1, n}, shared_device()));
    tape.backward(sum(max_pool1d(in, 3, 1, 1)));
    return tape.gradient(in).to_doubles();
  };
  CHECK(gradient(x.to_doubles()) == std::vector<double>{0, 1, 3, 1, 1, 0});
  CHECK(gradient({-infinity, -infinity, -infinity}) == std::vector<double>{2, 1, 0});
  CHECK(gradient({NAN, 1, NAN, 2}) == std::vector<double>{2, 0, 2, 0});
}

TEST_CASE("convolutions, pools and group_norm refuse wrong operands, and say what fits") {
  const Var x = zeros_of({2, 4, 5}), image = zeros_of({2, 4, 5, 5}), kernel = zeros_of({6, 4, 3});
  CHECK_ERROR(ShapeError, "conv1d: x has shape [2, 4, 5, 5]; expected [N, channels, T]",
              conv1d(image, kernel));
  CHECK_ERROR(ShapeError,
              "conv1d: weight has shape [6, 4, 3]; expected [out, 2, K] for x [2, 4, 5], and a "
              "multiple of 2 groups",
              conv1d(x, kernel, {}, {.groups = 2}));
  CHECK_ERROR(ConfigError, "conv1d: 3 groups of x [2, 4, 5]; expected a divisor of its 4 channels",
              conv1d(x, kernel, {}, {.groups = 3}));
  CHECK_ERROR(ShapeError, "conv1d: bias has shape [4]; expected [6]",
              conv1d(x, kernel, zeros_of({4})));
  CHECK_ERROR(ShapeError,
              "conv1d: a kernel of 3 with dilation 4 makes 0 elements of 5 and padding 2; expected "
              "1 or more",
              conv1d(x, kernel, {}, {.padding = 1, .dilation = 4}));
  CHECK_ERROR(ConfigError, "conv1d: causal with padding 1; expected 0",
              conv1d(x, kernel, {}, {.padding = 1, .causal = true}));
  CHECK_ERROR(ConfigError, "conv2d: stride 0, dilation 1, padding 0, output_padding 0; expected",
              conv2d(image, zeros_of({6, 4, 3, 3}), {}, {.stride = {1, 0}}));
  CHECK_ERROR(DTypeError, "conv2d: x holds f32 and weight holds bf16; expected one dtype; try cast",
              conv2d(image, zeros_of({6, 4, 3, 3}, DType::bf16)));
  CHECK_ERROR(ShapeError,
              "conv_transpose2d: weight has shape [3, 4, 3, 3]; expected [4, out / groups, rows, "
              "columns] for x [2, 4, 5, 5]",
              conv_transpose2d(image, zeros_of({3, 4, 3, 3})));
  CHECK_ERROR(ConfigError, "output_padding 2; expected a stride",
              conv_transpose1d(x, zeros_of({4, 4, 3}), {}, {.stride = 2, .output_padding = 2}));
  CHECK_ERROR(ShapeError, "makes -1 elements of 5 and padding 8; expected 1 or more",
              conv_transpose1d(x, zeros_of({4, 4, 3}), {}, {.padding = 4}));
  CHECK_ERROR(ConfigError, "max_pool1d: padding 2 of a kernel of 2; expected a kernel of 1",
              max_pool1d(x, 2, 0, 2));
  CHECK_ERROR(ConfigError, "avg_pool1d: padding 0 of a kernel of -1; expected", avg_pool1d(x, -1));
  CHECK_ERROR(ShapeError, "avg_pool2d: a kernel of 6 with dilation 1 makes 0 elements of 5",
              avg_pool2d(x, {2, 6}));
  CHECK_ERROR(ConfigError, "group_norm: 3 groups of x [2, 4, 5]; expected a divisor of its 4",
              group_norm(x, 3));
  CHECK_ERROR(ShapeError, "group_norm: gamma has shape [5]; expected [4]",
              group_norm(x, 2, zeros_of({5})));
}
