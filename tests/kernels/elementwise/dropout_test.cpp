#include "zerograd/kernels/elementwise/dropout.h"

#include <limits>
#include <tuple>

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/text/format.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr DropoutKey key = {.seed = 0x123456789abcdef0u,
                            .step = 77,
                            .sample = 5,
                            .site = static_cast<uint32_t>(hash_name("block0.attention"))};

// As runtime/random.h defines it.
bool kept(const DropoutKey& key, uint32_t sample, int64_t element, float probability) {
  const Philox::Block words = Philox::block(
      {static_cast<uint32_t>(element / 4), key.sample + sample, key.step, key.site}, key.seed);
  return uniform(words[static_cast<size_t>(element % 4)]) >= probability;
}

// Sums and products of the accumulator type, rounded once at the end: exactly what the kernel does.
template <class T>
std::vector<T> expected_dropout(const std::vector<T>& x, const std::vector<T>& residual,
                                int64_t elements, const DropoutKey& key, float probability) {
  using A = accumulator_t<T>;
  const A scale = A(1) / (A(1) - static_cast<A>(probability));
  std::vector<T> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t index = static_cast<int64_t>(i);
    const bool keep =
        kept(key, static_cast<uint32_t>(index / elements), index % elements, probability);
    const A value = keep ? static_cast<A>(x[i]) * scale : A(0);
    y[i] = T(residual.empty() ? value : value + static_cast<A>(residual[i]));
  }
  return y;
}

template <class T>
void check_bits(const Device& device, const Shape& shape, float probability, bool with_residual) {
  const Tensor x = random_tensor(shape, dtype_of<T>, device, 1, -3.0, 3.0);
  const Tensor residual =
      with_residual ? random_tensor(shape, dtype_of<T>, device, 2, -3.0, 3.0) : Tensor();
  const Tensor y = Tensor::empty(shape, dtype_of<T>, device);
  kernels::dropout({.x = x, .residual = residual, .y = y, .probability = probability, .key = key},
                   device.compute());
  const std::vector<T> want =
      expected_dropout(x.to_host<T>(), with_residual ? residual.to_host<T>() : std::vector<T>(),
                       shape.numel() / shape[0], key, probability);
  CHECK(same_bits(y, Tensor::from(want, shape, device)));
}

/// Items [begin, begin + count) of an axis.
Tensor slice_of(const Tensor& x, int axis, int64_t begin, int64_t count) {
  int64_t outer = 1;
  for (int i = 0; i < axis; ++i) outer *= x.extent(i);
  const int64_t row = x.numel() / outer, inner = row / x.extent(axis);
  const Tensor y = Tensor::empty(x.shape().with(axis, count), x.dtype(), x.device());
  kernels::strided_copy({.x = x,
                         .y = y,
                         .extents = {outer, count * inner},
                         .x_strides = {row, 1},
                         .y_strides = {count * inner, 1},
                         .x_offset = begin * inner},
                        x.device().compute());
  return y;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("dropout of a slice of any axis has the mask of the slice in the whole tensor") {
  struct Cut {
    Shape whole;
    int axis;
    int64_t begin, count;
  };
  // The last ones are longer than a task of a CPU thread.
  const Cut cuts[] = {
      {{3, 7, 22}, 1, 3, 2},       {{3, 7, 22}, 2, 9, 11},  {{2, 7, 22}, 2, 21, 1},
      {{2, 5, 96}, 2, 32, 40},     {{2, 5, 96}, 2, 30, 33}, {{2, 6, 5, 9}, 1, 1, 5},
      {{2, 6, 5, 9}, 2, 2, 3},     {{2, 6, 5, 9}, 3, 4, 4}, {{2, 3, 4, 8}, 1, 2, 1},
      {{2, 3, 4, 8}, 2, 0, 3},     {{2, 61}, 1, 7, 50},     {{1, 3, 40000}, 2, 8, 19000},
      {{1, 3, 30001}, 2, 5, 20003}};
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (const auto& [shape, axis, begin, count] : cuts) {
        INFO(level_of(device), ", ", name_of(dtype), ", ", shape.str(), ", axis ", axis, ", begin ",
             begin, ", count ", count);
        const auto dropped = [&](const Tensor& x, const Tensor& residual, const DropoutKey& of) {
          const Tensor y = Tensor::empty(x.shape(), dtype, device);
          kernels::dropout({.x = x, .residual = residual, .y = y, .probability = 0.3f, .key = of},
                           device.compute());
          return y;
        };
        const Tensor x = random_tensor(shape, dtype, device, 1);
        const Tensor residual = random_tensor(shape, dtype, device, 2);
        DropoutKey part = key;
        part.axis = axis, part.begin = begin, part.whole = shape[axis];
        CHECK(same_bits(
            dropped(slice_of(x, axis, begin, count), slice_of(residual, axis, begin, count), part),
            slice_of(dropped(x, residual, key), axis, begin, count)));
      }
}

TEST_CASE("dropout keeps exactly the elements of a scalar Philox reference, at every level") {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 31}, Shape{2, 33}, Shape{5, 11, 48},
                               Shape{7, 1023}, Shape{2, 16391}})
      for (float probability : {0.0f, 0.1f, 0.5f, 0.999f}) {
        INFO(shape.str(), ", probability ", probability);
        for (bool residual : {false, true}) {
          if (device.type() == Device::Type::cpu)
            check_bits<double>(device, shape, probability, residual);
          check_bits<float>(device, shape, probability, residual);
          check_bits<bf16>(device, shape, probability, residual);
          if (device.type() != Device::Type::hpu)
            check_bits<f16>(device, shape, probability, residual);
        }
      }
  }
}

TEST_CASE(
    "dropout with probabilities near 0, 1/2 and 1 keeps the elements of the scalar reference") {
  // Neighbours of 0 and 1, and k / 2^24 with its neighbours, where a word decides.
  const float half_way = 0x1p-1f, below_one = 1.0f - 0x1p-24f;
  for (const Device& device : devices_at_every_level())
    for (float probability :
         {std::numeric_limits<float>::denorm_min(), 0x1p-24f, half_way,
          std::nextafter(half_way, 0.0f), std::nextafter(half_way, 1.0f), below_one}) {
      INFO(level_of(device), ", probability ", probability);
      check_bits<float>(device, {3, 4097}, probability, false);
    }
}

TEST_CASE("dropout gives the same bits at every alignment of its tensors") {
  const Shape shape = {3, 1000};
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device({DType::f32, DType::bf16}, device)) {
      const auto dropped = [&](int64_t x_begin, int64_t residual_begin, int64_t y_begin) {
        const Tensor y = moved(Tensor::empty(shape, dtype, device), y_begin);
        kernels::dropout({.x = moved(random_tensor(shape, dtype, device, 1), x_begin),
                          .residual = moved(random_tensor(shape, dtype, device, 2), residual_begin),
                          .y = y,
                          .probability = 0.3f,
                          .key = key},
                         device.compute());
        return y;
      };
      const Tensor expected = dropped(0, 0, 0);
      for (int64_t begin : {1, 2, 4, 8}) {
        INFO(level_of(device), ", begin ", begin);
        CHECK(same_bits(dropped(begin, 0, 0), expected));
        CHECK(same_bits(dropped(0, begin, 0), expected));
        CHECK(same_bits(dropped(0, 0, begin), expected));
      }
    }
}

TEST_SUITE_END();

TEST_CASE("dropout keeps the mean of its input") {
  const Device device = Device::cpu();
  const float p = 0.25f;
  const int64_t n = 1 << 16;
  const Tensor y = Tensor::empty({1, n}, DType::f32, device);
  kernels::dropout(
      {.x = Tensor::full({1, n}, 1.0, DType::f32, device), .y = y, .probability = p, .key = key},
      device.compute());
  double sum = 0.0;
  for (double value : y.to_doubles()) sum += value;
  // A kept element is 1 / (1 - p): the variance of one is p / (1 - p). Five standard deviations.
  CHECK(std::fabs(sum / n - 1.0) < 5.0 * std::sqrt(p / (1.0 - p) / n));
}

TEST_CASE("dropout of a slice of a batch gives the bits of the same slice in the whole batch") {
  const Device device = Device::cpu();
  const Shape shape = {6, 257};
  const Tensor x = random_tensor(shape, DType::f32, device, 3);
  const Tensor whole = Tensor::empty(shape, DType::f32, device);
  const Tensor parts = Tensor::empty(shape, DType::f32, device);
  kernels::dropout({.x = x, .y = whole, .probability = 0.3f, .key = key}, device.compute());
  for (int64_t sample = 0; sample < 6; sample += 2) {
    DropoutKey part = key;
    part.sample += static_cast<uint32_t>(sample);
    kernels::dropout({.x = x.slice(sample, sample + 2),
                      .y = parts.slice(sample, sample + 2),
                      .probability = 0.3f,
                      .key = part},
                     device.compute());
  }
  CHECK(same_bits(whole, parts));
}

TEST_CASE("dropout works in place, with any number of threads, and on no samples") {
  for (Isa isa : available_levels())
    for (DType dtype : floating_dtypes) {
      const Device one = Device::cpu(0, {.threads = 1, .isa = isa});
      const Device two = Device::cpu(0, {.threads = 2, .isa = isa});
      const Shape shape = {3, 40001};
      const Tensor x = random_tensor(shape, dtype, one, 4);
      const Tensor y = Tensor::empty(shape, dtype, one);
      kernels::dropout({.x = x, .residual = x, .y = y, .probability = 0.1f, .key = key},
                       one.compute());
      const Tensor in_place = random_tensor(shape, dtype, two, 4);
      kernels::dropout(
          {.x = in_place, .residual = in_place, .y = in_place, .probability = 0.1f, .key = key},
          two.compute());
      CHECK(same_bits(y, in_place));
      const Tensor none = Tensor::empty({0, 5}, dtype, one);
      kernels::dropout({.x = none, .y = none, .probability = 0.1f, .key = key}, one.compute());
    }
}

TEST_CASE("dropout writes 0 for a dropped infinity or NaN" * doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    for (DType dtype : on_device(floating_dtypes, device))
      for (double value : {double{INFINITY}, double{NAN}}) {
        const int64_t n = 67;
        const Tensor x = Tensor::full({1, n}, value, dtype, device);
        kernels::dropout({.x = x, .y = x, .probability = 0.5f, .key = key}, device.compute());
        const std::vector<double> y = x.to_doubles();
        for (int64_t i = 0; i < n; ++i) {
          const double got = y[static_cast<size_t>(i)];
          CHECK(kept(key, 0, i, 0.5f) == !(got == 0.0));
        }
      }
  }
}

TEST_CASE("dropout refuses wrong shapes, dtypes, devices and probabilities, by name") {
  const Device device = Device::cpu();
  const Tensor x = Tensor::zeros({2, 3}, DType::f32, device);
  auto run = [&](const Dropout& a) { kernels::dropout(a, device.compute()); };
  const Tensor wide = Tensor::zeros({2, 4}, DType::f32, device);
  const Tensor half = Tensor::zeros({2, 3}, DType::bf16, device);
  const Tensor integers = Tensor::zeros({2, 3}, DType::i32, device);
  CHECK_THROWS_WITH_AS(run({.x = x, .y = wide}), "dropout: y has shape [2, 4]; expected [2, 3]",
                       ShapeError);
  CHECK_THROWS_WITH_AS(run({.x = x, .residual = half, .y = x}),
                       "dropout: residual holds bf16; expected f32", DTypeError);
  CHECK_THROWS_AS(run({.x = integers, .y = integers}), DTypeError);
  CHECK_THROWS_AS(run({.y = x}), ShapeError);
  for (float probability : {1.0f, -0.1f, NAN})
    CHECK_THROWS_AS(run({.x = x, .y = x, .probability = probability}), ConfigError);
  const Device other = Device::cpu(1);
  CHECK_THROWS_AS(run({.x = x, .y = Tensor::zeros({2, 3}, DType::f32, other)}), DeviceError);
  const Device meta = Device::meta();
  const Tensor huge = Tensor::empty({1, max_dropout_elements + 1}, DType::bf16, meta);
  CHECK_THROWS_AS(kernels::dropout({.x = huge, .y = huge, .probability = 0.1f}, meta.compute()),
                  ShapeError);
  // A slice counts as much as the whole.
  const auto run_slice = [&](int axis, int64_t begin, int64_t whole) {
    run({.x = x,
         .y = x,
         .probability = 0.1f,
         .key = {.axis = axis, .begin = begin, .whole = whole}});
  };
  run_slice(1, max_dropout_elements - 3, max_dropout_elements);
  CHECK_ERROR(ShapeError, "a sample has 17179869185 elements; expected at most 2^34",
              run_slice(1, 0, max_dropout_elements + 1));
  for (const auto& [axis, begin, whole] :
       {std::tuple(0, 0, 4), {2, 0, 4}, {1, 2, 4}, {1, -1, 4}, {1, 1, 0}, {-1, 0, 4}})
    CHECK_ERROR(ShapeError,
                fmt::format("dropout: key.axis {}, key.begin {} and key.whole {} do not fit shape "
                            "[2, 3]; expected a slice of an axis after axis 0",
                            axis, begin, whole),
                run_slice(axis, begin, whole));
}
