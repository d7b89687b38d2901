#include "tests/kernels/attention/attention_case.h"
#include "tests/support/cover.h"

using namespace zg;
using namespace zg::testing;

TEST_SUITE_BEGIN("every device");

TEST_CASE("attention and its gradients follow the definition over sizes, dtypes and levels") {
  // CPU: a device for each instruction set, which these tests call a level. In the tests of CUDA
  // and HPU: a device of that backend; on CUDA, one of each GPU generation for which kernels
  // differ.
  const std::vector<Device> devices = devices_of_every_generation();
  const int64_t lengths[] = {1, 3, 33, 70, 130}, widths[] = {1, 16, 17, 64, 100};
  const std::pair<int64_t, int64_t> heads[] = {{2, 0}, {12, 0}, {5, 1}, {4, 2}, {6, 3}, {3, 3}};
  const Form forms[] = {Form::fused, Form::by_head, Form::separate, Form::cache, Form::cache};
  const char* const masks[] = {"causal", "full", "window", "documents", "key lengths", "padded"};
  for (const std::vector<size_t>& c : cover_rows({5, 5, 6, 5, 6, 3, 2, 2, 6})) {
    Problem p = {.T = lengths[c[0]], .keys = lengths[c[0]], .D = widths[c[1]]};
    p.B = p.T < 70 ? 2 : 1;
    std::tie(p.H, p.kv_heads) = heads[c[2]];
    const std::string mask = masks[c[4]];
    p.form = p.kv_heads > 0 ? forms[2 + c[3] % 3] : forms[c[3]];
    p.bias_rank = std::vector{0, 2, 3}[c[5]];
    p.dropout = c[6] == 0 ? 0.0f : 0.2f;
    p.alibi = c[7] == 1;
    p.causal = mask != "full" && mask != "padded";
    if (p.form == Form::cache && mask != "documents") {  // the second has keys beyond every query
      p.offset = c[3] % 2 == 0 ? 40 : 7;
      p.keys += c[3] % 2 == 0 ? 40 : 26;
    }
    if (mask == "window") p.window = std::vector<int64_t>{1, 2, 31, 32, p.T, p.T + 5}[c[8]];
    if (mask == "documents") {
      const int64_t first = std::vector<int64_t>{1, 2, 31, 32, p.T, p.T / 2}[c[8]];
      for (int64_t left = p.T; left > 0; left -= p.documents.back())
        p.documents.push_back(std::clamp<int64_t>(first, 1, left));
    }
    if (mask == "key lengths" || mask == "padded") {
      p.B = 4;
      p.key_lengths = {0, 1, static_cast<int32_t>(p.keys), static_cast<int32_t>(p.keys / 2)};
    }
    check_against_naive(p, devices);
  }
}

TEST_CASE("attention over several blocks of keys and queries follows the definition") {
  using enum Form;
  const Problem problems[] = {
      {.B = 1, .T = 401, .keys = 401, .D = 24, .dropout = 0.1f},
      {.B = 1,
       .H = 1,
       .T = 201,
       .keys = 560,
       .D = 8,
       .causal = false,
       .bias_rank = 2,
       .form = cache},
      {.B = 1, .H = 1, .T = 140, .keys = 523, .offset = 383, .D = 256, .form = cache},
      {.B = 1, .T = 33, .keys = 33, .D = 512},
      {.B = 1, .H = 1, .T = 70, .keys = 700, .offset = 625, .D = 40, .form = cache},
      {.B = 1, .H = 1, .T = 70, .keys = 700, .D = 128, .causal = false, .form = cache},
      {.B = 1, .H = 1, .T = 400, .keys = 400, .D = 40, .causal = false},
      {.B = 1, .H = 1, .T = 400, .keys = 400, .D = 128},
      {.B = 1, .T = 150, .keys = 150, .D = 128, .form = by_head, .alibi = true},
      // Around whole tiles.
      {.B = 1, .T = 131, .keys = 131, .D = 8},
      {.B = 1, .T = 64, .keys = 64, .D = 72},
      {.B = 1, .H = 1, .T = 131, .keys = 200, .offset = 69, .D = 64, .form = cache},
      {.B = 1,
       .H = 1,
       .T = 64,
       .keys = 200,
       .D = 128,
       .causal = false,
       .bias_rank = 3,
       .dropout = 0.2f,
       .form = cache},
      // ALiBi; the last is one query.
      {.B = 1, .H = 3, .T = 131, .keys = 131, .D = 64, .causal = false, .alibi = true},
      {.B = 1,
       .H = 1,
       .T = 70,
       .keys = 333,
       .offset = 263,
       .D = 128,
       .dropout = 0.2f,
       .form = cache,
       .alibi = true},
      {.B = 1, .H = 3, .T = 33, .keys = 33, .D = 300, .alibi = true},
      {.B = 1, .H = 3, .T = 1, .keys = 601, .offset = 600, .D = 32, .form = cache, .alibi = true},
      // Grouped queries.
      {.B = 1, .H = 5, .T = 131, .keys = 131, .D = 64, .form = separate, .kv_heads = 1},
      {.B = 1, .T = 70, .keys = 333, .offset = 263, .D = 128, .form = cache, .kv_heads = 1},
      {.B = 1, .H = 4, .T = 2, .keys = 265, .offset = 263, .D = 128, .form = cache, .kv_heads = 2},
      {.B = 1, .H = 4, .T = 33, .keys = 33, .D = 300, .form = separate, .kv_heads = 2},
      // Windows.
      {.B = 1, .H = 1, .T = 801, .keys = 801, .D = 8, .window = 50},
      {.B = 1, .H = 1, .T = 140, .keys = 663, .offset = 523, .D = 64, .form = cache, .window = 1},
      {.B = 1, .H = 1, .T = 140, .keys = 663, .offset = 523, .D = 64, .form = cache, .window = 256},
      {.B = 1, .T = 5, .keys = 528, .offset = 523, .D = 64, .form = cache, .window = 100},
      {.B = 1, .T = 1, .keys = 524, .offset = 523, .D = 64, .form = cache, .window = 300},
      {.B = 1, .T = 5, .keys = 528, .offset = 523, .D = 64, .form = cache, .window = 700},
      {.B = 3,
       .T = 75,
       .keys = 75,
       .D = 64,
       .form = separate,
       .documents = {5, 40, 30},
       .key_lengths = {3, 50, 75}}};
  const std::vector<Device> devices = devices_of_every_generation();
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  for (const Problem& problem : problems) check_against_naive(problem, devices, dtypes);
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
  CHECK_THROWS_WITH_AS(forward([](Tensors& t) { t.shape.dropout_key.axis = 2; }),
                       "attention_forward: shape.dropout_key.axis is 2; expected axis 1, because "
                       "tensor ranks divide heads",
                       ShapeError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.shape.dropout_key.whole = 1; }), ShapeError);
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
