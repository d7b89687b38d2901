#include "zerograd/zero/optimizer/loss_scale.h"

#include <cmath>
#include <set>

#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using zero::LossScaleOptions;
using zero::LossScaler;

namespace {

/// The published rules as a list, kept apart from the code under test: iterations and counters have
/// their original names, and integers are powers of two throughout.
struct Rules {
  double cur_scale, min_scale;
  int64_t scale_window, delayed_shift, cur_hysteresis;
  bool consecutive_hysteresis;
  int64_t cur_iter = 0, last_overflow_iter = -1;

  std::string update(bool overflow) {
    std::string said;
    const std::string start = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: " +
                              std::to_string(static_cast<int64_t>(cur_scale));
    if (overflow && (delayed_shift == 1 || cur_hysteresis == 1)) {
      REQUIRE(cur_scale != min_scale);
      cur_scale = cur_scale / 2 > min_scale ? cur_scale / 2 : min_scale;
      said = start + ", reducing to " + std::to_string(static_cast<int64_t>(cur_scale));
    } else if (overflow) {
      said = start + ", but hysteresis is " + std::to_string(cur_hysteresis) +
             ". Reducing hysteresis to " + std::to_string(cur_hysteresis - 1);
      cur_hysteresis -= 1;
    }
    if (overflow) {
      last_overflow_iter = cur_iter;
    } else {
      if (consecutive_hysteresis) cur_hysteresis = delayed_shift;
      const int64_t stable_interval = (cur_iter - last_overflow_iter) - 1;
      if (stable_interval > 0 && stable_interval % scale_window == 0) {
        if (!consecutive_hysteresis) cur_hysteresis = delayed_shift;
        cur_scale *= 2;
      }
    }
    cur_iter += 1;
    return said;
  }
};

}  // namespace

TEST_CASE(
    "the dynamic loss scale follows DeepSpeed's published rules over a trace with overflows") {
  // Lone overflows, pairs, runs that are long enough for several halvings, and good stretches
  // longer and shorter than the windows.
  const std::set<int> overflows = {0,  1,  5,  6,  7,  20, 33, 34, 35, 36, 50, 52,
                                   54, 70, 71, 72, 73, 74, 75, 76, 77, 90, 91, 99};
  for (const int64_t window : {2, 3, 7, 1000})
    for (const int64_t hysteresis : {1, 2, 3})
      for (const bool consecutive : {false, true}) {
        INFO("window ", window, ", hysteresis ", hysteresis, ", consecutive ", consecutive);
        LossScaler scaler({.window = window,
                           .hysteresis = hysteresis,
                           .consecutive_hysteresis = consecutive,
                           .min_loss_scale = 0x1p-40});
        Rules rules{.cur_scale = 65536.0,
                    .min_scale = 0x1p-40,
                    .scale_window = window,
                    .delayed_shift = hysteresis,
                    .cur_hysteresis = hysteresis,
                    .consecutive_hysteresis = consecutive};
        for (int step = 0; step < 120; ++step) {
          CAPTURE(step);
          CHECK(scaler.update(overflows.count(step) > 0) ==
                rules.update(overflows.count(step) > 0));
          CHECK(scaler.scale() == rules.cur_scale);
          CHECK(scaler.state() == LossScaler::State{rules.cur_scale, rules.cur_hysteresis,
                                                    rules.cur_iter, rules.last_overflow_iter});
        }
      }
}

TEST_CASE("a short trace gives the expected log lines, scale doubling and hysteresis refill") {
  LossScaler scaler({.initial_scale_power = 3, .window = 2});
  const std::string start = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: ";
  CHECK(scaler.update(true) == start + "8, but hysteresis is 2. Reducing hysteresis to 1");
  CHECK(scaler.update(true) == start + "8, reducing to 4");
  CHECK(scaler.update(true) == start + "4, reducing to 2");  // nothing has refilled it
  CHECK(scaler.update(false).empty());
  CHECK(scaler.update(false).empty());
  CHECK(scaler.scale() == 2.0);
  CHECK(scaler.update(false).empty());  // the third in a row: two good ones lie behind
  CHECK(scaler.scale() == 4.0);
  CHECK(scaler.update(true) == start + "4, but hysteresis is 2. Reducing hysteresis to 1");
}

TEST_CASE(
    "a dynamic loss scale that starts at 2^32 skips 19 steps until the gradients fit into f16") {
  // 2.5 * 2^s is finite in f16 (at most 65504) up to s = 14: 18 halvings and one for hysteresis.
  LossScaler scaler({.initial_scale_power = 32});
  int skips = 0;
  const auto overflows = [&] {
    return std::isinf(static_cast<float>(f16(2.5f * static_cast<float>(scaler.scale()))));
  };
  for (int step = 0; step < 100; ++step) {
    const bool overflow = overflows();
    scaler.update(overflow);
    skips += overflow;
    CHECK(overflow == (step < 19));
  }
  CHECK(skips == 19);
  CHECK(scaler.scale() == 0x1p14);
}

TEST_CASE("an overflow at the minimal loss scale throws and leaves the scaler's state unchanged") {
  LossScaler scaler({.initial_scale_power = 2, .hysteresis = 1, .min_loss_scale = 1.5});
  scaler.update(true);
  CHECK(scaler.update(true).ends_with("scale: 2, reducing to 1"));  // 1.5, as int() prints it
  CHECK(scaler.scale() == 1.5);
  const LossScaler::State before = scaler.state();
  CHECK_THROWS_WITH_AS(
      scaler.update(true),
      "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", Error);
  CHECK(scaler.state() == before);
}

TEST_CASE("a static loss scale stays constant, also after overflows and a restore") {
  LossScaler scaler({.loss_scale = 128.0}), one;
  for (int step = 0; step < 3000; ++step) {
    CHECK(scaler.update(step % 2 == 0).empty());
    CHECK(one.update(step % 2 == 0).empty());
  }
  CHECK(scaler.scale() == 128.0);
  CHECK(one.scale() == 1.0);
  scaler.restore({.scale = 4.0});
  CHECK(scaler.scale() == 128.0);
  CHECK_FALSE(scaler.dynamic());
}

TEST_CASE("a restored loss scaler continues like the saved one, and invalid states are refused") {
  const LossScaleOptions options{.window = 3, .hysteresis = 3};
  LossScaler saved(options);
  for (int step = 0; step < 11; ++step) saved.update(step % 4 == 0);
  LossScaler restored(options);
  restored.restore(saved.state());
  for (int step = 0; step < 40; ++step) {
    CHECK(restored.update(step % 9 == 1) == saved.update(step % 9 == 1));
    CHECK(restored.state() == saved.state());
  }
  CHECK_THROWS_AS(restored.restore({.scale = 0.0}), ConfigError);
  CHECK_THROWS_AS(restored.restore({.scale = NAN}), ConfigError);
  CHECK_THROWS_AS(restored.restore({.hysteresis = 0}), ConfigError);
  CHECK_THROWS_AS(restored.restore({.iteration = 3, .last_overflow = 3}), ConfigError);
}

TEST_CASE("loss scale options out of range are refused by name") {
  CHECK_NOTHROW(zero::validate(LossScaleOptions{}));
  CHECK_THROWS_WITH_AS(zero::validate(LossScaleOptions{.window = 0}),
                       "loss scale: window is 0.000000; expected 1 or more", ConfigError);
  CHECK_THROWS_AS(zero::validate(LossScaleOptions{.loss_scale = -1.0}), ConfigError);
  CHECK_THROWS_AS(zero::validate(LossScaleOptions{.loss_scale = INFINITY}), ConfigError);
  CHECK_THROWS_AS(zero::validate(LossScaleOptions{.initial_scale_power = 128}), ConfigError);
  CHECK_THROWS_AS(zero::validate(LossScaleOptions{.hysteresis = 0}), ConfigError);
  CHECK_THROWS_AS(zero::validate(LossScaleOptions{.min_loss_scale = 0.0}), ConfigError);
}
