#include "tools/run/advise.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "tests/tools/command.h"
#include "zerograd/runtime/text/format.h"

namespace zg::testing {
namespace {

using zero::PlannedSetting;
using zero::Setting;
using zero::SpaceBytes;

tools::Run run_of(const std::string& flags) {
  tools::TrainOptions options;
  tools::parse_flags(words_of(flags), options);
  tools::complete(options);
  options.only_planned = true;
  return tools::prepare_run(options);
}

/// Draws one of the values.
struct Drawing {
  std::mt19937 engine;
  size_t below(size_t count) { return engine() % count; }
  template <class T>
  T of(const std::vector<T>& values) {
    return values[below(values.size())];
  }
  /// Some of the values, in their order, at least one.
  template <class T>
  std::vector<T> some(const std::vector<T>& values, size_t most) {
    std::vector<T> left = values;
    while (left.size() > most || (left.size() > 1 && below(3) == 0))
      left.erase(left.begin() + static_cast<int64_t>(below(left.size())));
    return left;
  }
};

std::string drawn_run(Drawing& draw) {
  const int64_t ranks = draw.of<int64_t>({1, 2, 2, 4});
  return fmt::format(
      "--n-layer {} --n-head 2 --n-embd {} --vocab-size {} --block-size {} --precision {} --ranks "
      "{} --batch-size {} --threads 1 --optimizer {} --param-persistence-threshold {}{}",
      draw.of<int>({1, 2, 3}), draw.of<int>({64, 512, 2048}), draw.of<int>({11, 30000}),
      draw.of<int>({16, 256}), draw.of<std::string>({"f32", "bf16", "f16", "fsdp-memory"}), ranks,
      draw.of<int>({1, 2, 4, 6}), draw.of<std::string>({"adamw", "lion", "sgd", "muon"}),
      draw.of<int>({0, 100, 100000}), draw.of<std::string>({"", " --tied"}));
}

zero::Choices drawn_choices(Drawing& draw) {
  const std::vector<Space> places = {Space::device, Space::host, Space::file};
  return {.stages = draw.some<int>({0, 1, 2, 3}, 2),
          .recomputes = draw.some<bool>({false, true}, 2),
          .optimizer = draw.some(places, 2),
          .gradient = draw.some(places, 1),
          .parameter = draw.some(places, 2),
          .activation = draw.some(places, 1),
          .ratios = draw.some<double>({1.0, 0.5, 0.25}, 1),
          .buckets = draw.below(3) == 0,
          .batches = draw.below(2) == 0,
          .axes = draw.below(3) == 0};
}

bool within(const SpaceBytes& bytes, const SpaceBytes& limits) {
  return (limits.device == 0 || bytes.device <= limits.device) &&
         (limits.host == 0 || bytes.host <= limits.host) &&
         (limits.file == 0 || bytes.file <= limits.file);
}

std::string sizes_text(const SpaceBytes& bytes) {
  return fmt::format("device {} host {} file {}", bytes.device, bytes.host, bytes.file);
}

}  // namespace

TEST_CASE(
    "a search finds the settings that fit among those of 200 random spaces, the fastest first") {
  Drawing draw{std::mt19937(24)};
  size_t planned_settings = 0, fitting_settings = 0, nothing_fits = 0, bounded = 0,
         fastest_first = 0;
  for (int space = 0; space < 200; ++space) {
    const std::string flags = drawn_run(draw);
    const tools::Run run = run_of(flags);
    const int64_t ranks = run.options.ranks;
    const zero::ModelSizes model = tools::model_sizes(run);
    std::vector<Setting> settings =
        zero::settings_of(tools::setting_of(run), drawn_choices(draw), model, ranks);
    std::ranges::shuffle(settings, draw.engine);
    settings.resize(std::min<size_t>(settings.size(), 10));
    CAPTURE(space);
    CAPTURE(flags);
    // Every setting is planned, and its bytes are at least its bound.
    std::map<std::string, PlannedSetting> plans;
    for (const Setting& setting : settings) {
      PlannedSetting plan;
      try {
        plan = tools::plan_setting(run, setting, model, {}, nullptr);
      } catch (const ConfigError&) {
        continue;
      }
      const std::string name = join(flags_of(setting, run), " ");
      const SpaceBytes least = zero::least_bytes(setting, model, ranks);
      CAPTURE(name);
      CAPTURE(sizes_text(least));
      CAPTURE(sizes_text(plan.bytes));
      CHECK(least.device <= plan.bytes.device);
      CHECK(least.host <= plan.bytes.host);
      CHECK(least.file <= plan.bytes.file);
      plans[name] = plan;
    }
    if (plans.empty()) continue;
    planned_settings += plans.size();
    // Limits near those of one of the settings.
    auto one = plans.begin();
    std::advance(one, draw.below(plans.size()));
    const auto near = [&](int64_t bytes) {
      return draw.below(3) == 0 ? 0
                                : std::max<int64_t>(1, bytes * draw.of<int>({50, 99, 100}) / 100);
    };
    const SpaceBytes limits = {near(one->second.bytes.device), near(one->second.bytes.host),
                               near(one->second.bytes.file)};
    CAPTURE(sizes_text(limits));
    std::set<std::string> expected, found;
    double fastest = INFINITY;
    for (const auto& [name, plan] : plans) {
      if (!within(plan.bytes, limits)) continue;
      expected.insert(name);
      fastest = std::min(fastest, zero::step_seconds(plan.setting, model, ranks, {}));
    }
    const auto plan_again = [&](const Setting& setting) {
      const auto plan = plans.find(join(flags_of(setting, run), " "));
      if (plan == plans.end()) throw ConfigError("refused");
      return plan->second;
    };
    const zero::Search all =
        zero::find_fitting(settings, model, ranks, {.limits = limits}, plan_again);
    for (const PlannedSetting& fit : all.fitting)
      found.insert(join(flags_of(fit.setting, run), " "));
    CHECK(all.complete);
    CHECK(found == expected);
    fitting_settings += expected.size();
    nothing_fits += expected.empty();
    bounded += all.bounded;
    const zero::Search first =
        zero::find_fitting(settings, model, ranks, {.limits = limits, .enough = 1}, plan_again);
    REQUIRE(first.fitting.empty() == expected.empty());
    if (!expected.empty()) fastest_first += first.fitting.front().seconds == fastest;
  }
  MESSAGE("planned ", planned_settings, ", fit ", fitting_settings, ", bounded ", bounded,
          ", nothing fits in ", nothing_fits, " spaces, the fastest was first in ", fastest_first);
  CHECK(planned_settings > 1000);
  CHECK(fitting_settings > 200);
  CHECK(bounded > 100);
  CHECK(nothing_fits > 10);
  CHECK(fastest_first * 100 >= (200 - nothing_fits) * 90);
}

TEST_CASE(
    "a bound allows for whole units of states that a ratio offloads, of small parameters, too") {
  const tools::Run run = run_of(
      "--n-layer 2 --n-head 2 --n-embd 64 --vocab-size 500 --block-size 32 --batch-size 4 "
      "--precision bf16");
  const zero::ModelSizes model = tools::model_sizes(run);
  for (const int stage : {0, 3})
    for (const double ratio : {0.25, 0.5, 0.75}) {
      Setting setting = tools::setting_of(run);
      setting.engine.stage = stage;
      setting.engine.offload = {.parameter = stage == 3 ? Space::host : Space::device,
                                .optimizer = Space::host,
                                .optimizer_ratio = ratio};
      const auto plan = tools::plan_setting(run, setting, model, {}, nullptr);
      CAPTURE(ratio);
      CHECK(zero::least_bytes(setting, model, 1).device <= plan.bytes.device);
      CHECK(zero::least_bytes(setting, model, 1).host <= plan.bytes.host);
    }
}

TEST_CASE("where nothing fits, the reasons for which settings were refused are said") {
  const tools::Run run = run_of("--model-type gpt-nano --data sort --device-memory 1MiB");
  const std::vector<Setting> settings(3, tools::setting_of(run));
  size_t plans = 0;
  const zero::Search search = zero::find_fitting(settings, {}, 1, {.limits = {.device = 1 << 30}},
                                                 [&](const Setting&) -> PlannedSetting {
                                                   if (++plans == 2)
                                                     throw Unsupported("no kernel; try bf16");
                                                   throw ConfigError("heads: expected 4");
                                                 });
  CHECK(search.fitting.size() + search.rest.size() + search.unplanned == 0);
  CHECK(search.refused ==
        std::map<std::string, size_t>{{"heads: expected 4", 2}, {"no kernel; try bf16", 1}});
  CHECK(smallest_fitting(run, &search).none.ends_with("; refused, 2 of them: heads: expected 4"));
  CHECK(tools::refusals_of(search, 9).ends_with("; refused, 1 of them: no kernel; try bf16"));
}

TEST_CASE("the seconds of plans decide which settings are planned next") {
  constexpr int64_t numel = 1'000'000;
  const zero::ModelSizes model{.units = {{{numel}}}, .parameters = numel, .trainable = numel};
  const std::vector<Setting> settings =
      zero::settings_of({.micro_batch = 2},
                        {.stages = {0},
                         .recomputes = {false},
                         .optimizer = {Space::device, Space::host},
                         .gradient = {Space::device},
                         .activation = {Space::device}},
                        model, 1);
  REQUIRE(settings.size() == 10);  // two micro-batches, in five places of optimizer states
  // By bytes and operations two samples at once are faster, and the place makes more difference.
  const zero::Search search = zero::find_fitting(
      settings, model, 1, {.limits = {.device = 1 << 30}, .enough = 5}, [&](const Setting& one) {
        return PlannedSetting{
            .bytes = {.device = 1 << 20},
            .seconds = zero::step_seconds(one, model, 1, {}) + (one.micro_batch == 2 ? 1.0 : 0.0)};
      });
  REQUIRE(search.fitting.size() == 6);
  for (const PlannedSetting& one : search.fitting)
    CHECK(one.setting.micro_batch == (&one == &search.fitting.back() ? 2 : 1));
}

TEST_CASE("ranks that are on several nodes receive at the rate of the network") {
  constexpr int64_t numel = 1'000'000, ranks = 16;
  const zero::ModelSizes model{
      .units = {{{numel}}}, .parameters = numel, .trainable = numel, .layers = 4};
  // Rates that leave the time of one kind of bytes: 2 ms or more per byte between nodes.
  const auto seconds = [&](int64_t tensor, int64_t pipeline, int64_t node_ranks) {
    return zero::step_seconds({.tensor = tensor, .pipeline = pipeline}, model, ranks,
                              {.wire = 1e6, .network = 1e3, .node_ranks = node_ranks});
  };
  CHECK(seconds(2, 2, 0) == seconds(2, 2, 16));
  CHECK(seconds(2, 4, 8) < 1.01 * seconds(2, 4, 0) + 0.02);  // only messages between stages
  CHECK(seconds(2, 2, 4) > 100.0 * seconds(2, 2, 0));        // gradients of eight ranks
  CHECK(seconds(16, 1, 16) == seconds(16, 1, 0));
  CHECK(seconds(16, 1, 8) > seconds(16, 1, 16));  // activations
}

TEST_CASE("one setting of a hundred thousand that fits is found within a few plans") {
  const tools::Run run = run_of(
      "--model-type llama --n-layer 8 --n-head 16 --n-embd 512 --vocab-size 4096 --block-size 512 "
      "--precision bf16 --ranks 8 --device-memory 60MiB --host-memory 200MiB");
  const zero::Search search = tools::search_settings(
      run, tools::choices_of(run), {.rates = tools::rates_of(run), .enough = 1, .seconds = 60.0});
  const size_t planned = search.fitting.size() + search.rest.size();
  CAPTURE(search.bounded);
  CAPTURE(search.unplanned);
  CHECK(search.bounded + search.unplanned > 100000);
  CHECK(!search.fitting.empty());
  MESSAGE("planned ", planned);
  CHECK(planned < 100);
}

TEST_CASE("a setting for adapters that needs a pipeline is found within a few plans") {
  const tools::Run run = run_of(
      "--model-type qwen2 --n-layer 6 --n-head 8 --n-embd 512 --num-query-groups 2 "
      "--intermediate-size 1408 --vocab-size 32000 --block-size 1024 --tied --lora 4 --ranks 2 "
      "--precision f16 --batch-size 6 --device-memory 92MiB --threads 1");
  const zero::Search search = tools::search_settings(
      run, tools::choices_of(run), {.rates = tools::rates_of(run), .enough = 1, .seconds = 60.0});
  const size_t planned = search.fitting.size() + search.rest.size();
  MESSAGE("planned ", planned);
  CHECK(!search.fitting.empty());
  CHECK(planned < 250);  // 1214 when embeddings counted as trained
}

TEST_CASE("tensor ranks are not tried where an attention layer refuses them") {
  for (const char* model : {"phi3 --num-query-groups 2", "olmo2", "llama"}) {
    const tools::Run run = run_of(std::string("--n-layer 2 --n-head 4 --n-embd 64 --vocab-size 99 "
                                              "--block-size 8 --ranks 2 --model-type ") +
                                  model);
    CAPTURE(model);
    CHECK(tools::model_sizes(run).heads == (model == std::string("llama") ? 4 : 1));
  }
}

TEST_CASE("the bytes of a pipeline that was found are those of all micro-batches of a step") {
  bool grows = false;  // which width does so depends on the instruction set
  for (const char* sizes : {"--n-embd 320 --block-size 128", "--n-embd 384 --block-size 64",
                            "--n-embd 448 --block-size 128"}) {
    CAPTURE(sizes);
    const std::string flags =
        std::string(sizes) +
        " --model-type bloom --n-layer 4 --n-head 4 --vocab-size 300 --ranks 8 --tensor-parallel 2 "
        "--pipeline-parallel 4 --batch-size 1 --grad-accum 24 --precision bf16 --steps 3";
    const int64_t peak = std::stoll(line_after(checked(called("plan " + flags)).out, "peak "));
    const auto run_within = [&](int64_t mebibytes) {
      return run_of(flags + " --device-memory " + std::to_string(mebibytes) + "MiB");
    };
    const tools::Run run = run_within(2 * peak);
    const zero::PlannedSetting found =
        tools::plan_setting(run, tools::setting_of(run), tools::model_sizes(run), {}, nullptr);
    const std::optional<zero::PlannedSetting> whole = tools::exact(run_within(peak), found);
    REQUIRE(whole.has_value());
    CHECK(whole->bytes.device == peak << 20);
    CHECK(whole->load == 1.0);
    CHECK(!tools::exact(run_within(peak - 1), found).has_value());
    grows = grows || found.bytes.device < whole->bytes.device;  // found: six micro-batches
  }
  CHECK(grows);
}

TEST_CASE("a setting of another stage has the bytes of its flags, with a config, too") {
  const TemporaryFolder folder;
  for (const char* overlap : {"", R"(, "overlap_comm": false)", R"(, "overlap_comm": true)"}) {
    CAPTURE(overlap);
    std::ofstream(folder / "ds.json")
        << R"({"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2)"
        << overlap << "}}";
    const std::string flags =
        "--n-layer 3 --n-head 4 --n-embd 256 --vocab-size 2000 --block-size 32 --ranks 2 "
        "--config " +
        (folder / "ds.json");
    const tools::Run run = run_of(flags), other = run_of(flags + " --zero-stage 3");
    Setting setting = tools::setting_of(run);
    setting.engine.stage = 3;
    const SpaceBytes found = tools::plan_setting(run, setting, {}, {}, nullptr).bytes,
                     given = tools::plan_setting(other, tools::setting_of(other), {}, {}, nullptr)
                                 .bytes;
    CHECK(sizes_text(found) == sizes_text(given));
  }
}

TEST_CASE("settings that plan --advise prints fit by plan, and train in the planned bytes") {
  const TemporaryFolder folder;
  const std::string run =
      "--data sort --n-layer 3 --n-head 2 --n-embd 96 --ranks 2 --batch-size 8 --threads 1 --steps "
      "3 --score-samples 0 --log-interval 0 --nvme-path " +
      folder.path() + " --device-memory 4MiB";
  REQUIRE(called("plan " + run).status == 3);
  const Outcome advised = checked(called("plan --advise " + run));
  std::vector<std::string> commands;
  const std::string begin = "`zerograd train ";
  for (size_t at = 0; (at = advised.out.find(begin, at)) != std::string::npos;) {
    at += begin.size();
    commands.push_back(advised.out.substr(at, advised.out.find('`', at) - at));
  }
  REQUIRE(commands.size() >= 2);
  for (const std::string& command : {commands.front(), commands.back()}) {
    CAPTURE(command);
    CHECK(contains(checked(called("plan " + command)).out, "\nfits 4MiB: yes; "));
    check_plan_is_run(command);
  }
  const std::string timed =
      checked(called("plan --advise --time 5 --peaks " ZG_PEAKS "cpu-avx2-1-thread.json " + run))
          .out;
  CHECK(contains(timed, "the fastest first, by the kernels' times on avx2, 1 thread:"));
  CHECK(contains(timed, "\n| 1 | "));
}

}  // namespace zg::testing
