#include "zerograd/zero/config.h"

#include <doctest/doctest.h>

#include <cmath>

#include "zerograd/runtime/error.h"

using namespace zg;
using zero::Config;

TEST_CASE("a config out of range is refused by the name of the field") {
  CHECK_NOTHROW(zero::validate(Config{}));
  CHECK_NOTHROW(zero::validate(Config{.compute = DType::bf16, .clip_norm = 0.0f}));
  CHECK_THROWS_WITH_AS(zero::validate(Config{.stage = 4}),
                       "config: stage is 4; expected 0, 1, 2 or 3", ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.stage = 2, .reduce_at_boundary = true}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.reduce_bucket_size = 0}), ConfigError);
  CHECK_NOTHROW(zero::validate(Config{.compute = DType::f16}));
  CHECK_THROWS_AS(zero::validate(Config{.loss_scaling = {.window = 0}}), ConfigError);
  CHECK_THROWS_WITH_AS(zero::validate(Config{.compute = DType::i32}),
                       "config: compute is i32; expected f32, bf16 or f16", ConfigError);
  CHECK_THROWS_WITH_AS(zero::validate(Config{.adam = {.beta1 = 1.0f}}),
                       "config: adam.beta1 is 1.000000; expected a number in [0, 1)", ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.adam = {.beta2 = -0.1f}}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.adam = {.epsilon = NAN}}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.adam = {.weight_decay = -1.0f}}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.clip_norm = INFINITY}), ConfigError);
}
