#include "tests/kernels/attention/attention_case.h"

using namespace zg;
using namespace zg::testing;

TEST_SUITE_BEGIN("every device");

TEST_CASE("attention and its gradients follow the definition over sizes, dtypes and levels") {
  // CPU: a device for each instruction set, which these tests call a level. In the tests of CUDA
  // and HPU: a device of that backend. devices_of_every_generation() adds, on CUDA, a device of
  // each GPU generation for which kernels differ.
  const std::vector<Device> devices = devices_at_every_level();
  int turn = 0;  // each case takes another combination of mask, bias, dropout and layout
  for (int64_t T : {1, 3, 11, 33, 130})
    for (int64_t D : {1, 16, 17, 64, 100}) {
      Problem p = {.B = T < 100 ? 2 : 1, .T = T, .keys = T, .D = D};
      p.causal = turn % 4 != 3;
      p.bias_rank = turn % 3 == 0 ? 0 : turn % 3 + 1;
      p.dropout = turn % 2 == 0 ? 0.0f : 0.2f;
      p.form = turn % 5 < 3 ? Form::fused : Form::cache;
      ++turn;
      for (DType dtype : on_device(floating_dtypes, devices.front()))
        check_against_naive(p, dtype, devices);
    }
}

TEST_CASE("attention over a cache takes queries at an offset and more keys than queries") {
  const std::vector<Device> devices = devices_at_every_level();
  for (DType dtype : on_device(floating_dtypes, devices.front())) {
    for (int64_t T : {1, 2, 13})
      for (int64_t D : {16, 100})
        check_against_naive({.T = T, .keys = 40 + T, .offset = 40, .D = D, .form = Form::cache},
                            dtype, devices);
    // Some keys lie beyond every query: their gradients are 0. The second case has no causal mask.
    check_against_naive(
        {.T = 5, .keys = 31, .offset = 7, .D = 17, .dropout = 0.3f, .form = Form::cache}, dtype,
        devices);
    check_against_naive({.T = 1,
                         .keys = 300,
                         .D = 33,
                         .causal = false,
                         .bias_rank = 3,
                         .dropout = 0.3f,
                         .form = Form::cache},
                        dtype, devices);
  }
}

TEST_CASE("attention on queries, keys and values that lie head by head follows the definition") {
  const std::vector<Device> devices = devices_of_every_generation();
  for (DType dtype : on_device(floating_dtypes, devices.front())) {
    for (int64_t D : {1, 16, 17, 100})
      check_against_naive(
          {.H = 3, .T = 33, .keys = 33, .D = D, .dropout = 0.2f, .form = Form::by_head}, dtype,
          devices);
    for (int64_t D : {64, 128})
      check_against_naive(
          {.B = 1, .T = 150, .keys = 150, .D = D, .form = Form::by_head, .alibi = true}, dtype,
          devices);
  }
}

TEST_CASE("attention over several blocks of keys and queries follows the definition") {
  const std::vector<Device> devices = devices_of_every_generation();
  for (DType dtype : {DType::f32, DType::bf16}) {
    check_against_naive({.B = 1, .T = 401, .keys = 401, .D = 24, .dropout = 0.1f}, dtype, devices);
    check_against_naive({.B = 1,
                         .H = 1,
                         .T = 201,
                         .keys = 560,
                         .D = 8,
                         .causal = false,
                         .bias_rank = 2,
                         .form = Form::cache},
                        dtype, devices);
    check_against_naive(
        {.B = 1, .H = 1, .T = 270, .keys = 523, .offset = 253, .D = 256, .form = Form::cache},
        dtype, devices);
    check_against_naive({.B = 1, .H = 2, .T = 33, .keys = 33, .D = 512}, dtype, devices);
  }
}

TEST_CASE("attention over many blocks of keys follows the definition") {
  const std::vector<Device> devices = devices_of_every_generation();
  for (int64_t D : {40, 128})
    for (bool causal : {true, false}) {
      check_against_naive({.B = 1,
                           .H = 1,
                           .T = 70,
                           .keys = 700,
                           .offset = 625,
                           .D = D,
                           .causal = causal,
                           .form = Form::cache},
                          DType::bf16, devices);
      check_against_naive({.B = 1, .H = 1, .T = 400, .keys = 400, .D = D, .causal = causal},
                          DType::bf16, devices);
    }
}

TEST_CASE("attention of head sizes up to 128 follows the definition around whole tiles") {
  const std::vector<Device> devices = devices_of_every_generation();
  for (DType dtype : on_device({DType::bf16, DType::f16}, devices.front()))
    for (int64_t D : {8, 64, 72, 128})
      for (int64_t T : {64, 131}) {
        check_against_naive({.B = 1, .T = T, .keys = T, .D = D}, dtype, devices);
        check_against_naive({.B = 1,
                             .H = 1,
                             .T = T,
                             .keys = 200,
                             .offset = 69,
                             .D = D,
                             .causal = T != 64,
                             .bias_rank = T == 64 ? 3 : 0,
                             .dropout = D < 72 ? 0.0f : 0.2f,
                             .form = Form::cache},
                            dtype, devices);
      }
}

TEST_CASE("attention takes a scale of the scores") {
  const std::vector<Device> devices = devices_at_every_level();
  for (DType dtype : on_device({DType::f64, DType::f32}, devices.front())) {
    Problem p = {.T = 21, .keys = 21, .D = 16};
    for (const Device& device : devices) {
      Tensors t = make(p, dtype, device);
      t.shape.scale = 0.7f;
      const Naive naive(t);
      const Tolerance tolerance(t, naive, device);
      kernels::attention_forward(t.forward(), device.compute());
      kernels::attention_backward(t.backward(), device.compute());
      CHECK(excess(t.out, naive.out, tolerance.out, tolerance.rounding) < 1.0);
      CHECK(excess(t.dq, naive.dq, tolerance.gradient, tolerance.rounding) < 1.0);
    }
  }
}

TEST_SUITE_END();

TEST_CASE("attention has the same bits for one thread and two") {
  for (Isa isa : available_levels())
    for (DType dtype : floating_dtypes)
      for (int64_t T : {11, 401}) {
        INFO(name_of(isa), ", ", name_of(dtype));
        const Problem p = {.B = 1, .T = T, .keys = T, .D = 20, .bias_rank = 2, .dropout = 0.1f};
        std::vector<Tensors> runs;
        for (int threads : {1, 2}) {
          const Device device = Device::cpu(0, {.threads = threads, .isa = isa});
          runs.push_back(make(p, dtype, device));
          kernels::attention_forward(runs.back().forward(), device.compute());
          kernels::attention_backward(runs.back().backward(), device.compute());
        }
        CHECK(same_bits(runs[0].out, runs[1].out));
        CHECK(same_bits(runs[0].log_sum, runs[1].log_sum));
        // The form is fused: dq, dk and dv are one tensor.
        CHECK(same_bits(runs[0].dq, runs[1].dq));
      }
}

TEST_SUITE_BEGIN("every device");

TEST_CASE("attention without log_sum writes the same output") {
  for (const Device& device : devices_at_every_level()) {
    const Problem p = {.T = 14, .keys = 14, .D = 16};
    const Tensors with = make(p, DType::f32, device);
    Tensors without = make(p, DType::f32, device);
    without.log_sum = {};
    kernels::attention_forward(with.forward(), device.compute());
    kernels::attention_forward(without.forward(), device.compute());
    CHECK(same_bits(with.out, without.out));
  }
}

TEST_CASE("a bias of minus infinity hides keys, also whole blocks of them before the first seen") {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    for (const auto& [T, dtype] : {std::pair{2, DType::f32}, {9, DType::f32}, {9, DType::bf16}}) {
      const Problem p = {.B = 1,
                         .T = T,
                         .keys = 600,
                         .D = 16,
                         .causal = false,
                         .bias_rank = 2,
                         .form = Form::cache};
      Tensors t = make(p, dtype, device);
      std::vector<float> hidden(static_cast<size_t>(T) * 600, 0.0f);
      for (size_t i = 0; i < hidden.size(); ++i)
        if (i % 600 < 530 + i / 600 || i % 7 == 0) hidden[i] = -INFINITY;
      t.bias = Tensor::from(hidden, {T, 600}, device);
      const Naive naive(t);
      const Tolerance tolerance(t, naive, device);
      kernels::attention_forward(t.forward(), device.compute());
      kernels::attention_backward(t.backward(), device.compute());
      CHECK(excess(t.out, naive.out, tolerance.out, tolerance.rounding) < 1.0);
      CHECK(excess(t.log_sum, naive.log_sum, tolerance.log_sum) < 1.0);
      CHECK(excess(t.dq, naive.dq, tolerance.gradient, tolerance.rounding) < 1.0);
      CHECK(excess(t.dk, naive.dk, tolerance.gradient, tolerance.rounding) < 1.0);
      CHECK(excess(t.dv, naive.dv, tolerance.gradient, tolerance.rounding) < 1.0);
    }
  }
}

TEST_CASE(
    "attention with a large scale of the scores does not overflow and follows the definition") {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const Problem p = {.B = 1, .H = 1, .T = 3, .keys = 3, .D = 16};
    Tensors t = make(p, DType::f32, device);
    t.shape.scale = 1e4f;
    kernels::attention_forward(t.forward(), device.compute());
    const Naive naive(t);
    // Scores are in the thousands, so the rounding of f32 changes them by roughly 1e-3. In each row
    // one score is larger than the others by much more.
    CHECK(excess(t.out, naive.out, 1e-2) < 1.0);
  }
}

TEST_CASE("attention propagates a NaN to the queries that see it and to no other") {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Problem p = {.B = 1, .H = 1, .T = 20, .keys = 20, .D = 8};
      Tensors t = make(p, dtype, device);
      std::vector<double> keys = t.k.to_doubles();
      keys[place(t.shape.k, 0, 0, 13)] = NAN;
      if (dtype == DType::f32)
        t.q = t.k = t.v =
            Tensor::from(std::vector<float>(keys.begin(), keys.end()), t.k.shape(), device);
      else
        t.q = t.k = t.v =
            Tensor::from(std::vector<bf16>(keys.begin(), keys.end()), t.k.shape(), device);
      kernels::attention_forward(t.forward(), device.compute());
      const std::vector<double> out = t.out.to_doubles();
      for (int64_t i = 0; i < 20; ++i)
        CHECK(std::isnan(out[place(t.shape.out, 0, 0, i)]) == (i >= 13));
    }
  }
}

TEST_CASE("attention of no samples does nothing") {
  for (const Device& device : devices_at_every_level()) {
    Problem p = {.B = 0, .T = 4, .keys = 4, .D = 8};
    const Tensors t = make(p, DType::f32, device);
    kernels::attention_forward(t.forward(), device.compute());
    kernels::attention_backward(t.backward(), device.compute());
  }
}

TEST_SUITE_END();

TEST_CASE("attention scratch grows linearly with the tokens") {
  for (Isa isa : available_levels())
    for (DType dtype : floating_dtypes) {
      const Device device = Device::meta(0, {.threads = 1, .isa = isa});
      const Device::Traits& traits = device.traits();
      auto workspace = [&](int64_t T) {
        const Tensors t = make({.B = 1, .H = 1, .T = T, .keys = T, .D = 16}, dtype, device);
        return std::max(
            kernels::attention_forward[Device::Type::cpu].workspace_bytes(t.forward(), traits),
            kernels::attention_backward[Device::Type::cpu].workspace_bytes(t.backward(), traits));
      };
      CHECK(workspace(1 << 12) <= 2 * workspace(1 << 11));
    }
  const Device meta = Device::meta();
  const Tensors t = make({.B = 3, .H = 2, .T = 77, .keys = 77, .D = 16}, DType::bf16, meta);
  CHECK(kernels::attention_backward[Device::Type::cuda].workspace_bytes(
            t.backward(), meta.traits()) == 3 * 2 * 77 * 4);
}

TEST_CASE("attention refuses wrong shapes, layouts, dtypes, devices and options, by name") {
  const Device device = Device::cpu();
  const Problem p = {.T = 4, .keys = 4, .D = 8};
  auto forward = [&](auto change) {
    Tensors t = make(p, DType::f32, device);
    change(t);
    kernels::attention_forward(t.forward(), device.compute());
  };
  auto backward = [&](auto change) {
    Tensors t = make(p, DType::f32, device);
    change(t);
    kernels::attention_backward(t.backward(), device.compute());
  };
  CHECK_THROWS_WITH_AS(forward([](Tensors& t) { t.shape.keys = 0; }),
                       "attention_forward: shape.keys is 0; expected at least 1", ShapeError);
  CHECK_THROWS_WITH_AS(forward([](Tensors& t) { t.shape.D = 1025; }),
                       "attention_forward: shape.D is 1025; expected a head size from 1 to 1024",
                       ShapeError);
  CHECK_THROWS_WITH_AS(forward([](Tensors& t) { t.shape.k.offset += 17; }),
                       "attention_forward: k has 384 elements, shape [2, 4, 48]; expected at least "
                       "385 elements, which its layout needs",
                       ShapeError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.shape.v.token = -1; }), ShapeError);
  CHECK_THROWS_WITH_AS(
      forward([](Tensors& t) { t.shape.out.head = 7; }),
      "attention_forward: out has a layout in which elements overlap: a stride is 7; expected at "
      "least 8",
      ShapeError);
  CHECK_THROWS_AS(backward([](Tensors& t) { t.shape.k.head = 0; }), ShapeError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.shape.offset = -1; }), ShapeError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.shape.dropout = 1.0f; }), ConfigError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.q = {}; }), ShapeError);
  CHECK_THROWS_AS(backward([](Tensors& t) { t.log_sum = {}; }), ShapeError);
  CHECK_THROWS_AS(forward([&](Tensors& t) {
                    t.bias = Tensor::zeros({4, 5}, DType::f32, device);
                  }),
                  ShapeError);
  CHECK_THROWS_AS(forward([&](Tensors& t) {
                    t.bias = Tensor::zeros({4, 4}, DType::bf16, device);
                  }),
                  DTypeError);
  CHECK_THROWS_WITH_AS(backward([&](Tensors& t) {
                         t.dout = Tensor::zeros({2, 4, 16}, DType::bf16, device);
                       }),
                       "attention_backward: dout holds bf16; expected f32", DTypeError);
  const Device other = Device::cpu(1);
  CHECK_THROWS_AS(forward([&](Tensors& t) {
                    t.out = Tensor::zeros({2, 4, 16}, DType::f32, other);
                  }),
                  DeviceError);
}
