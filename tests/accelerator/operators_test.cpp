#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "tests/support/tested_type.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

// Compares the operators of Var on an accelerator with the CPU. tests/autograd compares the CPU's
// results with doubles and with central differences.
namespace {

using TwoOperands = Var (*)(const Var&, const Var&);

struct Operator {
  const char* name;
  TwoOperands f;
  bool divides_by_operand = false;  ///< else gradients are products, sums and differences
};

const Operator operators[] = {
    {"x + y", [](const Var& x, const Var& y) { return x + y; }},
    {"x - y", [](const Var& x, const Var& y) { return x - y; }},
    {"x * y", [](const Var& x, const Var& y) { return x * y; }},
    {"x / y", [](const Var& x, const Var& y) { return x / y; }, true},
    {"-x", [](const Var& x, const Var&) { return -x; }},
    {"x + 2.3", [](const Var& x, const Var&) { return x + 2.3; }},
    {"2.3 + x", [](const Var& x, const Var&) { return 2.3 + x; }},
    {"x - 2.3", [](const Var& x, const Var&) { return x - 2.3; }},
    {"2.3 - x", [](const Var& x, const Var&) { return 2.3 - x; }},
    {"x * 0.3", [](const Var& x, const Var&) { return x * 0.3; }},
    {"0.3 * x", [](const Var& x, const Var&) { return 0.3 * x; }},
    {"x / 3", [](const Var& x, const Var&) { return x / 3; }},
    {"3 / x", [](const Var& x, const Var&) { return 3 / x; }, true},
    {"x + tensor", [](const Var& x, const Var& y) { return x + y.value(); }},
    {"tensor - x", [](const Var& x, const Var& y) { return y.value() - x; }},
    {"tensor * x", [](const Var& x, const Var& y) { return y.value() * x; }},
    {"tensor / x", [](const Var& x, const Var& y) { return y.value() / x; }, true},
    {"+= -= *= with tensors",
     [](const Var& x, const Var& y) {
       Var z = x;
       z += y;
       z -= -0.25 * x;  // so that both gradients of x have one sign
       return z *= y;
     }},
    {"+= -= *= /= with numbers",
     [](const Var& x, const Var&) {
       Var z = x;
       z += 1;
       z -= 0.3;
       z *= 0.7;
       return z /= 3;
     }},
    {"reshape with -1",
     [](const Var& x, const Var& y) {
       return reshape(x * y, {-1, 1, y.shape()[-1]}) * 0.3;
     }},
};

struct OperandShapes {
  Shape x, y;
};
const OperandShapes same_shapes{{3, 31}, {3, 31}};
const OperandShapes broadcast_shapes[] = {{{3, 4, 5}, {5}}, {{7, 1}, {1, 33}}, {{}, {2, 9}}};

struct Result {
  Tensor z, dx, dy;
  int64_t peak;
};

/// f(x, y), and its gradients for a given gradient of z, with the bytes that they took.
Result evaluate(TwoOperands f, const OperandShapes& shapes, DType dtype, const Device& device) {
  device.memory().reset_peaks();
  Tape tape(device);
  const Var x = tape.variable(random_tensor(shapes.x, dtype, device, 1, 0.5, 2.0));
  const Var y = tape.variable(random_tensor(shapes.y, dtype, device, 2, 0.5, 2.0));
  const Var z = f(x, y);
  const Tensor dz = random_tensor(z.shape(), dtype, device, 3, 0.5, 2.0);
  tape.backward(std::vector{z}, std::vector{dz});
  device.compute().synchronize();
  return {z.value(), tape.gradient(x), tape.gradient(y), device.memory().peak()};
}

void check_equal(const Tensor& actual, const Tensor& expected) {
  REQUIRE(static_cast<bool>(actual) == static_cast<bool>(expected));
  if (!expected) return;
  CHECK(actual.to_doubles() == expected.to_doubles());
  CHECK(same_bits(actual, expected));
}

void check_relative(const Tensor& actual, const Tensor& expected, double relative) {
  REQUIRE(static_cast<bool>(actual) == static_cast<bool>(expected));
  if (!expected) return;
  CHECK(actual.dtype() == expected.dtype());
  CHECK(actual.shape() == expected.shape());
  INFO(actual.to_doubles(), ", ", expected.to_doubles());
  CHECK(excess(actual, expected.to_doubles(), 0.0, relative) <= 1.0);
}

/// Gradients that were added up over broadcast axes, or come from quotients: their terms have one
/// sign, so roundings of terms and sums stay relative. A term has at most 6 roundings in f32 and
/// one to its dtype on each side; a sum of n terms n in f32 and one to the dtype.
double tolerance(int64_t terms, DType dtype) {
  return 4 * unit_roundoff(dtype) + 2 * static_cast<double>(6 + terms) * unit_roundoff(DType::f32);
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE(
    "operators of Var on an accelerator give the CPU's bits, gradients of divisions up to "
    "rounding") {
  const Device cpu = Device::cpu(0, {.threads = 1});
  const Device device = device_of_rank(tested_type, 0, {});
  for (const DType dtype : on_device(floating_dtypes, device))
    for (const Operator& op : operators) {
      INFO("name ", op.name, ", ", name_of(dtype));
      const Result expected = evaluate(op.f, same_shapes, dtype, cpu);
      const Result actual = evaluate(op.f, same_shapes, dtype, device);
      check_equal(actual.z, expected.z);
      if (op.divides_by_operand) {
        check_relative(actual.dx, expected.dx, tolerance(1, dtype));
        check_relative(actual.dy, expected.dy, tolerance(1, dtype));
      } else {
        check_equal(actual.dx, expected.dx);
        check_equal(actual.dy, expected.dy);
      }
    }
}

TEST_CASE(
    "operators of Var on an accelerator broadcast as on the CPU and sum gradients over broadcast "
    "axes") {
  const Device cpu = Device::cpu(0, {.threads = 1});
  const Device device = device_of_rank(tested_type, 0, {});
  for (const DType dtype : on_device(floating_dtypes, device))
    for (const Operator& op : operators)
      for (const OperandShapes& shapes : broadcast_shapes) {
        INFO("name ", op.name, ", ", name_of(dtype), ", ", shapes.x.str(), ", ", shapes.y.str());
        const Result expected = evaluate(op.f, shapes, dtype, cpu);
        const Result actual = evaluate(op.f, shapes, dtype, device);
        check_equal(actual.z, expected.z);
        check_relative(actual.dx, expected.dx, tolerance(expected.z.numel(), dtype));
        check_relative(actual.dy, expected.dy, tolerance(expected.z.numel(), dtype));
      }
}

TEST_CASE("operators of Var have the same memory peak on a meta device as on the accelerator") {
  const Device device = device_of_rank(tested_type, 0, {});
  const Device meta = Device::meta(0, {}, tested_type);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Operator& op : operators) {
      INFO("name ", op.name, ", ", name_of(dtype));
      const OperandShapes shapes{{64, 1, 32}, {16, 1}};
      const Result actual = evaluate(op.f, shapes, dtype, device);
      const Result planned = evaluate(op.f, shapes, dtype, meta);
      CHECK(planned.peak == actual.peak);
      CHECK(planned.z.shape() == actual.z.shape());
      CHECK(planned.z.dtype() == actual.z.dtype());
      CHECK(static_cast<bool>(planned.dy) == static_cast<bool>(actual.dy));
      CHECK(planned.z.to_doubles() ==
            std::vector<double>(static_cast<size_t>(planned.z.numel()), 0.0));
    }
  CHECK(device.memory().live() == 0);
  CHECK(meta.memory().live() == 0);
}

TEST_CASE("operators refuse operands on two devices, the CPU and an accelerator") {
  const Tensor here = Tensor::full({2}, 1.0, DType::f32, device_of_rank(tested_type, 0, {}));
  const Tensor there = Tensor::full({2}, 1.0, DType::f32, Device::cpu());
  const std::string two =
      "tensors on two devices, " + tested_name() + ":0 and cpu:0; copy one over first";
  CHECK(message_of<DeviceError>([&] { Var(here) + there; }) == "add: " + two);
  CHECK(message_of<DeviceError>([&] { here - Var(there); }) == "sub: " + two);
  CHECK(message_of<DeviceError>([&] { Var(here) * there; }) == "mul: " + two);
  CHECK(message_of<DeviceError>([&] { Var(here) / there; }) == "div: " + two);
  CHECK(message_of<DeviceError>([&] { Var(here) < there; }) == "less: " + two);
  CHECK(message_of<DeviceError>([&] { Var(here) == there; }) == "equal: " + two);
}

TEST_SUITE_END();
