#include "zerograd/zero/optimizer/schedule.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

using namespace zg;
using zero::AnnealingOptions;
using zero::DecayStyle;
using zero::Schedule;
using zero::ScheduleKind;
using zero::ScheduleOptions;
using zero::WarmupType;

namespace {

constexpr double pi = 3.14159265358979323846;

/// 20 rates and more: past the end of everything that ends.
template <class F>
void check_rates(const ScheduleOptions& options, F expected, double highest = 1.0) {
  CAPTURE(name_of(options.kind));
  const Schedule schedule(options);
  for (int k = 0; k < 26; ++k) {
    CAPTURE(k);
    // A few roundings of f64 on values up to `highest` rates.
    CHECK(std::fabs(schedule.rate(k) - expected(k)) <= 1e-15 * highest * options.rate);
  }
}

}  // namespace

TEST_CASE("a function of the step is a schedule, and a rate that it cannot have is refused") {
  const Schedule schedule({.function = [](int64_t k) { return k < 3 ? 0.5 : 1.0 - k; }});
  CHECK(schedule.rate(2) == 0.5);
  CHECK(testing::message_of<ConfigError>([&] { schedule.rate(3); }) ==
        "schedule: the function gives -2 for step 3; expected a finite number from 0");
  CHECK(testing::message_of<ConfigError>([] {
          Schedule({.kind = ScheduleKind::cosine, .function = [](int64_t) { return 1.0; }});
        }) == "schedule: a function is given beside the kind cosine; expected one of the two");
}

TEST_CASE("WarmupLR has the lowest rate in the first two steps, rises, and then stays constant") {
  check_rates({.kind = ScheduleKind::warmup_lr, .rate = 3e-4, .warmup_num_steps = 10}, [](int k) {
    if (k == 0) return 0.0;
    return k - 1 < 10 ? 3e-4 * std::log(k) / std::log(10.0) : 3e-4;
  });
  const ScheduleOptions linear{.kind = ScheduleKind::warmup_lr,
                               .rate = 1.0,
                               .warmup_num_steps = 8,
                               .warmup_type = WarmupType::linear,
                               .warmup_min_lr = 0.25};
  check_rates(linear, [](int k) {
    return k == 0 ? 0.25 : k - 1 < 8 ? 0.25 + 0.75 * (k - 1) / 8.0 : 1.0;
  });
  const Schedule schedule({.kind = ScheduleKind::warmup_lr, .rate = 1.0, .warmup_num_steps = 4});
  CHECK(schedule.rate(0) == 0.0);
  CHECK(schedule.rate(1) == 0.0);
  CHECK(schedule.rate(2) == doctest::Approx(0.5));  // ln 2 / ln 4
  CHECK(schedule.rate(4) == doctest::Approx(1.0));
}

TEST_CASE("WarmupLR takes one warm-up step as two, because the logarithm of 1 is 0") {
  check_rates({.kind = ScheduleKind::warmup_lr, .rate = 0.5, .warmup_num_steps = 1},
              [](int k) { return k < 2 ? 0.0 : 0.5; });
}

TEST_CASE("WarmupDecayLR falls linearly to the lowest rate at the total and stays there") {
  const ScheduleOptions options{.kind = ScheduleKind::warmup_decay_lr,
                                .rate = 2e-3,
                                .warmup_num_steps = 5,
                                .total_num_steps = 17,
                                .warmup_min_lr = 1e-4};
  check_rates(options, [](int k) {
    const int i = k - 1;
    const double share = i < 0    ? 0.0
                         : i < 5  ? std::log(i + 1.0) / std::log(5.0)
                         : i < 17 ? (17.0 - i) / 12.0
                                  : 0.0;
    return 1e-4 + (2e-3 - 1e-4) * share;
  });
  // Less than the warm-up: it drops at its end.
  check_rates({.kind = ScheduleKind::warmup_decay_lr,
               .rate = 1.0,
               .warmup_num_steps = 6,
               .total_num_steps = 4,
               .warmup_type = WarmupType::linear},
              [](int k) { return k >= 1 && k - 1 < 6 ? (k - 1) / 6.0 : 0.0; });
}

TEST_CASE(
    "WarmupCosineLR scales the rate by a warm-up and a cosine ratio and ends at cos_min_ratio") {
  const ScheduleOptions options{.kind = ScheduleKind::warmup_cosine_lr,
                                .rate = 6e-4,
                                .warmup_num_steps = 4,
                                .total_num_steps = 18};
  check_rates(options, [](int k) {
    const int i = k - 1;
    if (i < 0) return 0.0;
    if (i < 4) return 6e-4 * std::log(i + 1.0) / std::log(4.0);
    const double progress = i >= 17 ? 1.0 : (i - 3) / 14.0;
    return 6e-4 * (1e-4 + (1 - 1e-4) * 0.5 * (1 + std::cos(pi * progress)));
  });
  ScheduleOptions linear = options;
  linear.warmup_type = WarmupType::linear;
  linear.warmup_min_ratio = 0.1;
  linear.cos_min_ratio = 0.2;
  check_rates(linear, [](int k) {
    const int i = k - 1;
    if (i < 0) return 0.0;
    if (i < 4) return 6e-4 * (0.1 + 0.9 * i / 4.0);
    return 6e-4 * (0.2 + 0.8 * 0.5 * (1 + std::cos(pi * (i >= 17 ? 1.0 : (i - 3) / 14.0))));
  });
}

TEST_CASE("cosine warms up from above zero and decays to its minimum at the total") {
  check_rates({.kind = ScheduleKind::cosine,
               .rate = 6e-4,
               .warmup_num_steps = 5,
               .total_num_steps = 20,
               .min_rate = 6e-5},
              [](int k) {
                if (k < 5) return 6e-4 * (k + 1) / 6.0;
                const double progress = k > 20 ? 1.0 : (k - 5) / 15.0;
                return 6e-5 + 0.5 * (1 + std::cos(pi * progress)) * (6e-4 - 6e-5);
              });
  check_rates({.kind = ScheduleKind::cosine, .rate = 1.0, .total_num_steps = 10},
              [](int k) { return 0.5 * (1 + std::cos(pi * (k > 10 ? 10 : k) / 10.0)); });
}

TEST_CASE("LRRangeTest rises from its rate for ever, smoothly or in stairs") {
  ScheduleOptions options{.kind = ScheduleKind::lr_range_test,
                          .rate = 1e-4,
                          .range_test = {.step_size = 5, .step_rate = 2.0}};
  check_rates(
      options, [](int k) { return 1e-4 * (1 + 2.0 * k / 5.0); }, 11.0);
  options.range_test.staircase = true;
  check_rates(
      options,
      [](int k) {
        const int stair = k / 5;
        return 1e-4 * (1 + 2.0 * stair);
      },
      11.0);
  CHECK_FALSE(Schedule(options).betas(3));
}

// DeepSpeed 0.19, lr_schedules.py: scale_factor of iteration + 1 in its cycle, then the decay.
TEST_CASE("OneCycle rises to the rate, falls and decays, and its momentum goes the other way") {
  const ScheduleOptions options{.kind = ScheduleKind::one_cycle,
                                .rate = 1e-2,
                                .one_cycle = {.cycle_min_lr = 1e-3,
                                              .decay_lr_rate = 0.5,
                                              .cycle_first_step_size = 4,
                                              .cycle_second_step_size = 8,
                                              .decay_step_size = 3,
                                              .cycle_min_mom = 0.85,
                                              .cycle_max_mom = 0.95,
                                              .decay_mom_rate = 0.001}};
  const auto scale = [](int k) {
    const double x = k % 12 / 12.0, ratio = 4.0 / 12.0;
    return x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  };
  check_rates(options, [&](int k) {
    return k - 1 < 12 ? 1e-3 + 9e-3 * scale(k) : 1e-3 / (1 + 0.5 * ((k - 12) / 3.0));
  });
  const Schedule schedule(options);
  for (int k = 0; k < 26; ++k) {
    CAPTURE(k);
    const double beta1 = k == 0       ? 0.85
                         : k - 1 < 12 ? 0.95 - 0.1 * scale(k)
                                      : 0.95 * (1 + 0.001 * ((k - 12) / 3.0));
    REQUIRE(schedule.betas(k));
    CHECK(schedule.betas(k)->beta1 == doctest::Approx(beta1).epsilon(1e-7));
    CHECK(schedule.betas(k)->beta2 == 0.99f);
  }
  ScheduleOptions fixed = options;
  fixed.one_cycle.cycle_momentum = false;
  fixed.one_cycle.decay_step_size = 0;
  CHECK_FALSE(Schedule(fixed).betas(3));
  CHECK(Schedule(fixed).rate(100) == 1e-3);
}

// Megatron-DeepSpeed, optimizer_param_scheduler.py: get_lr() of num_steps, which are samples.
TEST_CASE("AnnealingLR counts samples, rises linearly from 0 and then follows its decay style") {
  ScheduleOptions options{
      .kind = ScheduleKind::annealing,
      .rate = 1e-3,
      .min_rate = 1e-4,
      .annealing = {
          .lr_warmup_samples = 5, .lr_decay_samples = 20, .lr_decay_style = DecayStyle::cosine}};
  CHECK(zero::counts_samples(options.kind));
  CHECK_FALSE(zero::counts_samples(ScheduleKind::cosine));
  check_rates(options, [](int samples) {
    if (samples <= 5) return 1e-3 * samples / 5.0;
    if (samples > 20) return 1e-4;
    return 1e-4 + 0.5 * (1e-3 - 1e-4) * (1 + std::cos(pi * (samples - 5) / 15.0));
  });
  CHECK(Schedule(options).rate(0) == 0.0);
  CHECK(Schedule(options).rate(5) == 1e-3);
  CHECK(Schedule(options).rate(20) == 1e-4);
  options.annealing.lr_decay_style = DecayStyle::linear;
  check_rates(options, [](int samples) {
    if (samples <= 5) return 1e-3 * samples / 5.0;
    return samples > 20 ? 1e-4 : 1e-4 + (1e-3 - 1e-4) * (1 - (samples - 5) / 15.0);
  });
  options.annealing.lr_decay_style = DecayStyle::constant;
  check_rates(options, [](int samples) { return samples <= 5 ? 1e-3 * samples / 5.0 : 1e-3; });
  options.annealing = {.lr_decay_samples = 20};
  CHECK(Schedule(options).rate(0) == 1e-3);  // no warm-up
}

TEST_CASE("AnnealingLR gives the expected rates for the options of a 13B training run") {
  const Schedule schedule({.kind = ScheduleKind::annealing,
                           .rate = 1e-4,
                           .min_rate = 1e-5,
                           .annealing = {.lr_warmup_samples = 216320,
                                         .lr_decay_samples = 126953125,
                                         .lr_decay_style = DecayStyle::cosine}});
  CHECK(schedule.rate(16) == doctest::Approx(1e-4 * 16 / 216320).epsilon(1e-15));
  CHECK(schedule.rate(216320) == 1e-4);
  // Half of what lies between the warm-up and the end.
  CHECK(schedule.rate(216320 + (126953125 - 216320) / 2) == doctest::Approx(5.5e-5).epsilon(1e-7));
  CHECK(schedule.rate(300000000) == 1e-5);
}

TEST_CASE(
    "AnnealingLR refuses a decay that ends within the warm-up and a minimum rate above its rate") {
  const auto with = [](AnnealingOptions annealing, double min_rate = 0.0) {
    return ScheduleOptions{.kind = ScheduleKind::annealing,
                           .rate = 1e-3,
                           .min_rate = min_rate,
                           .annealing = annealing};
  };
  CHECK_THROWS_WITH_AS(Schedule(with({.lr_warmup_samples = 7, .lr_decay_samples = 7})),
                       "schedule: annealing.lr_decay_samples is 7.000000; expected more than "
                       "lr_warmup_samples",
                       ConfigError);
  CHECK_THROWS_AS(Schedule(with({})), ConfigError);
  CHECK_THROWS_AS(Schedule(with({.lr_warmup_samples = -1, .lr_decay_samples = 7})), ConfigError);
  CHECK_THROWS_AS(Schedule(with({.lr_decay_samples = 7}, 2e-3)), ConfigError);
  CHECK_NOTHROW(Schedule(with({.lr_decay_style = DecayStyle::constant})));
}

TEST_CASE("the schedule none keeps the rate constant") {
  check_rates({.rate = 0.125}, [](int) { return 0.125; });
}

TEST_CASE("schedules have names, and options out of range are refused by name") {
  for (const char* name : {"none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest",
                           "OneCycle", "cosine", "AnnealingLR"})
    CHECK(std::string(name_of(zero::schedule_kind(name))) == name);
  CHECK_THROWS_WITH_AS(zero::schedule_kind("Cyclic"),
                       "schedule: no 'Cyclic'; expected one of none, WarmupLR, WarmupDecayLR, "
                       "WarmupCosineLR, cosine, LRRangeTest, OneCycle, AnnealingLR, hf_linear, "
                       "hf_cosine, hf_cosine_with_restarts, hf_polynomial, hf_constant, "
                       "hf_constant_with_warmup, hf_inverse_sqrt, hf_warmup_stable_decay",
                       ConfigError);
  CHECK_THROWS_WITH_AS(Schedule({.kind = ScheduleKind::warmup_lr}),
                       "schedule: warmup_num_steps is 0.000000; expected 1 or more", ConfigError);
  CHECK_THROWS_AS(Schedule({.kind = ScheduleKind::cosine}), ConfigError);
  CHECK_THROWS_AS(Schedule({.rate = -1.0}), ConfigError);
  CHECK_THROWS_AS(Schedule({.rate = NAN}), ConfigError);
  CHECK_THROWS_AS(Schedule({.cos_min_ratio = 1.5}), ConfigError);
  CHECK_THROWS_AS(Schedule({.warmup_min_ratio = -0.5}), ConfigError);
  CHECK_THROWS_AS(Schedule({.range_test = {.step_size = 0}}), ConfigError);
  CHECK_THROWS_AS(Schedule({.one_cycle = {.cycle_first_step_size = 0}}), ConfigError);
  CHECK_THROWS_AS(Schedule({.one_cycle = {.cycle_max_mom = 1.0}}), ConfigError);
}

// The C library's cos and pow, which transformers calls, differ from ours by at most an ulp of f64.
TEST_CASE("the schedules of transformers have the rates of its get_scheduler(), in f32 exactly") {
  const nlohmann::json file =
      nlohmann::json::parse(testing::read_file(std::string(ZG_FIXTURES) + "schedules.json"));
  const nlohmann::json& cases = file.at("cases");
  CHECK(cases.size() == 30);
  for (const nlohmann::json& item : cases) {
    INFO(item.at("name").get<std::string>(), ", ", item.at("kwargs").dump(), ", ",
         item.at("warmup").get<int>());
    const Schedule schedule(
        {.kind = zero::schedule_kind("hf_" + item.at("name").get<std::string>()),
         .rate = file.at("rate"),
         .warmup_num_steps = item.at("warmup"),
         .total_num_steps = file.at("steps"),
         .lr_scheduler_kwargs = item.at("kwargs").dump()});
    int64_t k = 0;
    for (const double rate : item.at("rates")) {
      CAPTURE(k);
      const double own = schedule.rate(k++);
      CHECK(std::fabs(own - rate) <= 4.5e-16 * rate);
      CHECK(static_cast<float>(own) == static_cast<float>(rate));
    }
  }
}

TEST_CASE("numbers of transformers' schedules that it would not take are refused by name") {
  const auto refusal = [](ScheduleKind kind, const char* kwargs, double rate = 1e-3) {
    return testing::message_of<Error>([&] {
      Schedule({.kind = kind, .rate = rate, .total_num_steps = 9, .lr_scheduler_kwargs = kwargs});
    });
  };
  using enum ScheduleKind;
  CHECK(testing::contains(refusal(hf_warmup_stable_decay, ""),
                          "num_decay_steps is 0.000000; expected 1"));
  CHECK(testing::contains(refusal(hf_polynomial, "", 1e-8),
                          "lr_end is 0.000000; expected less than"));
  CHECK(testing::contains(refusal(hf_cosine, "{num_cycle: 1}"),
                          "lr_scheduler_kwargs:1:2: num_cycle: expected"));
  CHECK(testing::contains(refusal(hf_cosine, "{\"num_cycles\": \"x\"}"), "got 'x'"));
  CHECK(testing::contains(refusal(hf_warmup_stable_decay, "{\"decay_type\": \"cubic\"}"),
                          "1-sqrt as warmup_type or decay_type, got 'cubic'"));
}
