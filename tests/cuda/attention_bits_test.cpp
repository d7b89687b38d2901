#include <cmath>

#include "tests/fakes/cuda/block.h"
#include "tests/kernels/attention/attention_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// The norm of the difference over the norm of `expected`.
double relative_distance(const Tensor& got, const std::vector<double>& y) {
  const std::vector<double> x = got.to_doubles();
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("attention on tensor cores is that of its definition in double, in the norm" *
          doctest::test_suite("every device")) {
  // A step of keys that is left out, or a wrong D_t, changes sums of many terms by less than the
  // rounding that a test of each element must allow.
  // Several tiles of 64 or 128 rows and a part of one, by width, mask, groups and slopes in pairs.
  using enum Form;
  const Problem problems[] = {
      {.T = 65},
      {.T = 200, .causal = false, .alibi = true},
      {.T = 260, .D = 128},
      {.T = 130, .D = 128, .causal = false},
      {.T = 130, .D = 40, .alibi = true},
      {.H = 8, .T = 131, .D = 40, .causal = false, .kv_heads = 1},
      {.H = 4, .T = 131, .D = 128, .alibi = true, .kv_heads = 2},
      {.H = 1, .T = 401, .window = 17},
      {.H = 4, .T = 301, .D = 128, .kv_heads = 1, .window = 70},
      {.H = 8, .T = 201, .alibi = true, .kv_heads = 2, .window = 130},
      {.H = 1, .T = 140, .offset = 523, .D = 128, .form = cache, .window = 256},
      {.H = 2, .T = 161, .D = 128, .alibi = true, .documents = {161}},
      {.H = 2, .T = 394, .kv_heads = 1, .documents = {64, 1, 129, 200}},
      {.H = 4, .T = 331, .D = 128, .kv_heads = 2, .window = 40, .documents = {3, 130, 1, 69, 128}},
      {.H = 8, .T = 193, .D = 40, .kv_heads = 1, .window = 64, .documents = {1, 65, 127}}};
  const std::vector<Device> devices = devices_of_every_generation();
  size_t number = 0;
  for (Problem p : problems) {
    p.B = 1, p.keys = p.T + p.offset;
    if (p.D == 1) p.D = 64;
    if (p.form != cache) p.form = separate;
    const DType dtype = number++ % 3 == 1 ? DType::f16 : DType::bf16;
    INFO(p.str(), ", ", name_of(dtype));
    const Naive expected(make(p, dtype, devices.front()));
    for (const Device& device : devices) {
      CAPTURE(level_of(device));
      const Tensors t = make(p, dtype, device);
      run(t, device);
      CHECK(relative_distance(t.out, expected.out) < 0.01);
      CHECK(relative_distance(t.dq, expected.dq) < 0.01);
      CHECK(relative_distance(t.dk, expected.dk) < 0.01);
      CHECK(relative_distance(t.dv, expected.dv) < 0.01);
    }
  }
}

TEST_CASE("attention on cuda has the same bits whichever thread runs first" *
          doctest::test_suite("every device")) {
  const Problem problems[] = {{.B = 1, .T = 150, .keys = 150, .D = 40},
                              {.B = 1, .T = 150, .keys = 150, .D = 128},
                              {.B = 1,
                               .H = 4,
                               .T = 150,
                               .keys = 150,
                               .D = 64,
                               .form = Form::separate,
                               .kv_heads = 2,
                               .window = 50,
                               .documents = {5, 145}}};
  for (const Device& device : devices_of_every_generation())
    for (DType dtype : {DType::f32, DType::bf16})
      for (const Problem& p : problems) {
        INFO(p.str(), ", ", name_of(dtype), ", ", level_of(device));
        const Tensors first = make(p, dtype, device);
        run(first, device);
        device.compute().synchronize();
        for (uint64_t seed : {1, 2}) {
          const Tensors again = make(p, dtype, device);
          emulator::set_schedule(seed);
          run(again, device);
          device.compute().synchronize();
          emulator::set_schedule(0);
          CHECK(same_bits(first.out, again.out));
          CHECK(same_bits(first.log_sum, again.log_sum));
          CHECK(same_bits(first.dq, again.dq));
          CHECK(same_bits(first.dk, again.dk));
          CHECK(same_bits(first.dv, again.dv));
        }
      }
}
