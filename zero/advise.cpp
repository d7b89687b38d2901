#include "zerograd/zero/advise.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <numeric>
#include <set>
#include <tuple>

#include "zerograd/runtime/arena.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/error.h"

namespace zg::zero {
namespace {

double count(int64_t n) { return static_cast<double>(n); }

int64_t data_ranks(const Setting& setting, int64_t ranks) {
  return ranks / (setting.tensor * setting.pipeline);
}

// Bytes of each trainable element's moments and masters. A lower bound: some optimizers keep fewer
// states of some parameters.
double state_bytes(const Config& config) {
  const UpdateOptions& update = config.update;
  const bool all_have_them = !update.optimizer && update.groups.empty() &&
                             update.rule != OptimizerRule::muon &&
                             update.rule != OptimizerRule::adafactor;
  const int masters = config.optimizer == config.compute ? 0 : 1;
  return count(size_of(config.optimizer)) * ((all_have_them ? moments_of(update) : 0) + masters);
}

// Elements of parameters with more than `small`: all of them, and those of the largest unit.
std::pair<double, double> divided(const ModelSizes& model, int64_t small) {
  double all = 0.0, largest = 0.0;
  for (const ModelSizes::Unit& unit : model.units) {
    double in_unit = 0.0;
    for (const int64_t numel : unit.numels)
      if (numel > small) in_unit += count(numel);
    all += in_unit * count(unit.times);
    largest = std::max(largest, in_unit);
  }
  return {all, largest};
}

// Outputs of layers that backward of one micro-batch needs on a rank, and those that a layer
// computes for its own backward. Without recomputation a layer saves about 15 tensors of its width;
// tensor ranks divide 11 of them.
struct SavedBytes {
  double micro_batch, layer;
};
SavedBytes saved_bytes(const Setting& setting, const ModelSizes& model) {
  const double output = count(size_of(setting.engine.compute)) *
                        count(setting.micro_batch * model.tokens * model.width);
  const double layer = (4.0 + 11.0 / count(setting.tensor)) * output;
  return {count(model.layers) / count(setting.pipeline) * (setting.recomputes ? output : layer),
          layer};
}

size_t index_of(Space space) { return space == Space::file ? 2 : space == Space::device ? 0 : 1; }

}  // namespace

ModelSizes ModelSizes::of(const ParameterStore& store) {
  ModelSizes sizes;
  for (const auto& unit : store.units()) {
    Unit one;
    for (const auto& parameter : store.parameters())
      if (parameter->unit == unit.get()) one.numels.push_back(parameter->shape.numel());
    if (!sizes.units.empty() && sizes.units.back().numels == one.numels)
      ++sizes.units.back().times;
    else
      sizes.units.push_back(std::move(one));
  }
  sizes.parameters = store.numel();
  for (const auto& parameter : store.parameters())
    if (parameter->trainable) sizes.trainable += parameter->shape.numel();
  return sizes;
}

SpaceBytes least_bytes(const Setting& setting, const ModelSizes& model, int64_t ranks) {
  const Config& config = setting.engine;
  const OffloadOptions& offload = config.offload;
  const double share = 1.0 / count(setting.tensor * setting.pipeline);
  const double data = count(data_ranks(setting, ranks));
  const double value = count(size_of(config.compute));
  const double trainable = count(model.trainable) * share;
  std::array<double, 3> bytes{};
  const auto at = [&](Space space) -> double& { return bytes[index_of(space)]; };
  const bool rounds = rounds_at_use(config, ranks, Device::Type::cpu);
  double gathered = rounds ? value * trainable : 0.0;
  if (config.stage < 3 || rounds) {
    at(Space::device) += value * (count(model.parameters) * share - (rounds ? trainable : 0.0));
  } else {
    const auto [large, unit] = divided(model, config.param_persistence_threshold * setting.tensor);
    at(Space::device) += value * (count(model.parameters) - large) * share;
    at(offload.parameter) += value * large * share / data;
    if (offload.parameter == Space::file)
      at(Space::file) = std::max(0.0, at(Space::file) - value * count(offload.parameters_on_host));
    if (setting.pipeline == 1 && (data > 1 || offload.parameter != Space::device))
      gathered = value * unit * share;
  }
  // A part of the optimizer's states is made of whole units.
  const double states = state_bytes(config) * trainable / (config.stage > 0 ? data : 1.0);
  const double unit =
      states *
      (offload.optimizer_ratio < 1.0 ? divided(model, 0).second / count(model.parameters) : 0.0);
  const double away = offload.optimizer == Space::device ? 0.0 : states * offload.optimizer_ratio;
  at(offload.optimizer) += std::max(0.0, away - unit);
  at(Space::device) += std::max(0.0, states - away - unit);
  const double sums = count(size_of(config.grad_accum)) * trainable / data;
  if (offload.gradient != Space::device) at(offload.gradient) += sums;
  // Accumulators on the device are complete only when no large unit is gathered any more.
  at(Space::device) += std::max(offload.gradient == Space::device ? sums : 0.0, gathered);
  const auto whole = [](double number) { return static_cast<int64_t>(number); };
  // A device always has some memory, in whole steps of its arena.
  const int64_t step = Arena::grow_bytes;
  return {.device = (whole(bytes[0]) / step + 1) * step,
          .host = whole(bytes[1]),
          .file = whole(bytes[2])};
}

double step_seconds(const Setting& setting, const ModelSizes& model, int64_t ranks,
                    const StepRates& rates, std::optional<double> compute) {
  const Config& config = setting.engine;
  const OffloadOptions& offload = config.offload;
  const double share = 1.0 / count(setting.tensor * setting.pipeline);
  const double data = count(data_ranks(setting, ranks)), times = count(setting.accumulation);
  const double stages = count(setting.pipeline), tensor = count(setting.tensor);
  const double value = count(size_of(config.compute)), again = setting.recomputes ? 1.0 : 0.0;
  const double values = value * count(model.parameters) * share;
  const double trained = count(model.trainable) * share, sums = 4.0 * trained / data;
  const double tokens = count(setting.micro_batch * model.tokens) * times;
  const double states = state_bytes(config) * trained / (config.stage > 0 ? data : 1.0);
  const double away = offload.optimizer == Space::device ? 0.0 : offload.optimizer_ratio;

  // Weights are read twice and their gradients written once in each micro-batch. An update reads
  // gradients and states, and writes states. The slowest stage has a layer more than the mean.
  const double update = 2.0 * states + 4.0 * trained / (config.stage > 0 ? data : 1.0);
  const int64_t layers = (model.layers + setting.pipeline - 1) / setting.pipeline;
  const double slowest = count(layers * setting.pipeline) / count(model.layers);
  double seconds =
      compute.value_or(slowest * (1.0 + again / 3.0) * model.operations *
                           count(setting.micro_batch) * times * share / rates.operations +
                       (3.0 * values * times + update * (1.0 - away)) / rates.memory);
  seconds *= (times + stages - 1.0) / times;

  // Every micro-batch sends gradients to their owners; at stage 3 it gathers parameters twice.
  const double others = (data - 1.0) / data;
  double sent = others * values * times + others * (config.stage == 3 ? 2.0 * times : 1.0) *
                                              (config.stage == 0 ? 4.0 * trained : values);
  if (config.stage == 3 && config.prefetch_bucket_size == 0) sent *= 1.1;  // gathers are waited for
  // Neighbours are tensor ranks, then data ranks, then stages.
  const auto rate_within = [&](double group) {
    return rates.node_ranks > 0 && group > count(rates.node_ranks) ? rates.network : rates.wire;
  };
  seconds += sent / rate_within(tensor * data);
  const double saved = value * tokens * count(model.width);  // the output of one layer
  seconds += (4.0 + 2.0 * again) * saved * count(model.layers) / stages * 2.0 * (tensor - 1.0) /
             tensor / rate_within(tensor);
  if (stages > 1.0) seconds += 2.0 * saved / rate_within(count(ranks));

  // Copies between device and host, also on the way to a disk.
  double link = 0.0, disk = 0.0;
  const auto move = [&](Space space, double bytes) {
    if (space != Space::device) link += bytes;
    if (space == Space::file) disk += bytes;
  };
  move(offload.gradient, 2.0 * sums * times);
  if (config.stage == 3) move(offload.parameter, values / data * (2.0 * times + 1.0));
  move(offload.activation, 2.0 * saved_bytes(setting, model).micro_batch * times);
  link += away * (sums + values / data);
  if (offload.optimizer == Space::file) disk += 2.0 * states * away;
  return seconds + link / rates.link + disk / rates.disk + update * away / rates.host;
}

namespace {

template <class T>
std::vector<T> or_own(const std::vector<T>& choices, T own) {
  return choices.empty() ? std::vector<T>{own} : choices;
}

// Places of states: all combinations, without a ratio where nothing is offloaded.
std::vector<OffloadOptions> places_of(const OffloadOptions& own, int stage,
                                      const Choices& choices) {
  std::vector<OffloadOptions> places;
  for (const Space parameter :
       stage == 3 ? or_own(choices.parameter, own.parameter) : std::vector{Space::device})
    for (const Space optimizer : or_own(choices.optimizer, own.optimizer))
      for (const double ratio : optimizer == Space::device
                                    ? std::vector{1.0}
                                    : or_own(choices.ratios, own.optimizer_ratio))
        for (const Space gradient : or_own(choices.gradient, own.gradient))
          for (const Space activation : or_own(choices.activation, own.activation)) {
            OffloadOptions& place = places.emplace_back(own);
            place.parameter = parameter;
            place.optimizer = optimizer;
            place.optimizer_ratio = ratio;
            place.gradient = gradient;
            place.activation = activation;
          }
  return places;
}

// The configs with the run's buckets, with buckets by the width as Hugging Face Accelerate has
// them, and at stage 3 without prefetching.
std::vector<Config> with_buckets(const Config& own, const Choices& choices, const ModelSizes& model,
                                 int64_t data) {
  std::vector<Config> configs = {own};
  if (!choices.buckets || (data == 1 && own.stage < 3)) return configs;
  const int64_t square = model.width * model.width;
  Config& small = configs.emplace_back(own);
  small.reduce_bucket_size = std::min(own.reduce_bucket_size, square);
  if (own.stage == 3) {
    small.prefetch_bucket_size = std::min(own.prefetch_bucket_size, square * 9 / 10);
    configs.emplace_back(small).prefetch_bucket_size = 0;
  }
  return configs;
}

std::vector<std::pair<int64_t, int64_t>> axes_of(const Setting& own, const Choices& choices,
                                                 const ModelSizes& model, int64_t ranks) {
  std::vector<std::pair<int64_t, int64_t>> axes = {{own.tensor, own.pipeline}};
  if (!choices.axes) return axes;
  const int64_t stages = model.divides_layers ? std::max<int64_t>(1, model.layers) : 1;
  for (int64_t tensor = 1; tensor <= std::min(ranks, model.heads); ++tensor)
    for (int64_t pipeline = 1; pipeline <= std::min(ranks / tensor, stages); ++pipeline)
      if (ranks % (tensor * pipeline) == 0 && model.heads % tensor == 0 &&
          std::pair(tensor, pipeline) != axes.front())
        axes.emplace_back(tensor, pipeline);
  return axes;
}

// The divisors of n, ascending; above 16 each is at least twice the one before.
std::vector<int64_t> micro_batches_of(int64_t n) {
  std::set<int64_t> divisors;
  for (int64_t i = 1; i <= n / i; ++i)
    if (n % i == 0) divisors.insert({i, n / i});
  std::vector<int64_t> kept;
  for (const int64_t divisor : divisors)
    if (divisor <= 16 || kept.back() <= divisor / 2) kept.push_back(divisor);
  return kept;
}

}  // namespace

std::vector<Setting> settings_of(const Setting& own, const Choices& choices,
                                 const ModelSizes& model, int64_t ranks) {
  const int64_t samples = own.micro_batch * own.accumulation * data_ranks(own, ranks);
  std::vector<Setting> settings;
  for (const auto& [tensor, pipeline] : axes_of(own, choices, model, ranks)) {
    const int64_t data = ranks / (tensor * pipeline), each = samples / data;
    if (samples % data != 0) continue;
    std::vector<int64_t> micro_batches;
    if (choices.batches)
      micro_batches = micro_batches_of(each);
    else if (each % own.accumulation == 0)
      micro_batches = {each / own.accumulation};
    for (const int stage : or_own(choices.stages, own.engine.stage))
      for (const OffloadOptions& place : places_of(own.engine.offload, stage, choices)) {
        const bool equals_stage_0 =
            data == 1 && stage > 0 && (stage < 3 || place.parameter == Space::device);
        if (equals_stage_0 && choices.stages.size() > 1) continue;
        if (stage > 1 && own.engine.reduce_at_boundary) continue;
        Setting setting = own;
        setting.tensor = tensor;
        setting.pipeline = pipeline;
        setting.engine.stage = stage;
        setting.engine.offload = place;
        for (const Config& config : with_buckets(setting.engine, choices, model, data))
          for (const bool recomputes : or_own(choices.recomputes, own.recomputes))
            for (const int64_t micro : micro_batches) {
              setting.engine = config;
              setting.recomputes = recomputes;
              setting.micro_batch = micro;
              setting.accumulation = each / micro;
              settings.push_back(setting);
            }
      }
  }
  return settings;
}

namespace {

using Bytes = std::array<int64_t, 3>;

Bytes array_of(const SpaceBytes& bytes) { return {bytes.device, bytes.host, bytes.file}; }

struct Load {  // the largest share of a limit
  double share;
  size_t space;
};
Load load_of(const Bytes& bytes, const SpaceBytes& limits) {
  Load load{0.0, 0};
  const int64_t used[] = {bytes[0], bytes[1], bytes[2], bytes[0] + bytes[1]};
  const int64_t limit[] = {limits.device, limits.host, limits.file, limits.both};
  for (size_t space = 0; space < 4; ++space)
    if (const double share = count(used[space]) / count(limit[space]);
        limit[space] > 0 && share > load.share)
      load = {share, space};
  return load;
}

// About the bytes that a setting takes above its bound: activations and, in a pipeline, what the
// stage with the embedding or the head has above the mean, or the last one's gradients of tied
// weights, which wait for the first stage (Mirrors).
Bytes expected_excess(const Setting& setting, const ModelSizes& model, int64_t ranks) {
  const SavedBytes saved = saved_bytes(setting, model);
  const double micro_batches = count(std::min(setting.pipeline, setting.accumulation));
  const Config& config = setting.engine;
  Bytes bytes{};
  const auto add = [&](Space space, double more) {
    bytes[index_of(space)] += static_cast<int64_t>(more);
  };
  add(config.offload.activation, saved.micro_batch * micro_batches);
  add(Space::device, saved.layer);
  if (setting.pipeline > 1 && !model.units.empty()) {
    const auto numel_of = [](const ModelSizes::Unit& unit) {
      return count(std::accumulate(unit.numels.begin(), unit.numels.end(), int64_t{0}));
    };
    const double first = numel_of(model.units.front()), last = numel_of(model.units.back());
    const double more =
        (std::max(first, last) - (first + last) / count(setting.pipeline)) / count(setting.tensor);
    const double share = more / count(data_ranks(setting, ranks)),
                 value = count(size_of(config.compute));
    if (config.stage == 3)
      add(config.offload.parameter, value * share);
    else
      add(Space::device, value * more);
    if (model.trainable < model.parameters) return bytes;  // adapters train neither unit
    add(config.offload.gradient, count(size_of(config.grad_accum)) * share);
    add(config.offload.optimizer, state_bytes(config) * (config.stage > 0 ? share : more));
    const double tied = last < 0.5 * first ? 4.0 * first / count(setting.tensor) : 0.0;
    bytes[0] = std::max(bytes[0], static_cast<int64_t>(tied * count(setting.pipeline + 1)));
  }
  return bytes;
}

// Settings with an equal key take about the same bytes above their bound.
auto bytes_key(const Setting& setting) {
  const Config& config = setting.engine;
  return std::tuple(setting.recomputes, config.offload.activation, setting.micro_batch,
                    setting.tensor, setting.pipeline, config.stage == 3,
                    config.prefetch_bucket_size, config.reduce_bucket_size,
                    config.offload.parameter, config.offload.optimizer);
}
// The kernels of settings with an equal key take about the same time.
auto kernels_key(const Setting& setting) {
  return std::tuple(setting.recomputes, setting.micro_batch, setting.tensor, setting.pipeline);
}

struct Candidate {
  const Setting* setting;
  Bytes least, expected;  // expected: above `least`
  double seconds;
  size_t bytes_group, kernels_group;  // of equal keys
};

}  // namespace

Search find_fitting(const std::vector<Setting>& settings, const ModelSizes& model, int64_t ranks,
                    const SearchOptions& options, const PlanSetting& plan) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  Search search;
  std::vector<Candidate> open, over;  // over: their bound exceeds a limit
  std::map<decltype(bytes_key({})), size_t> bytes_groups;
  std::map<decltype(kernels_key({})), size_t> kernels_groups;
  for (const Setting& setting : settings) {
    const auto least = array_of(least_bytes(setting, model, ranks));
    std::vector<Candidate>& list = load_of(least, options.limits).share > 1.0 ? over : open;
    list.push_back(
        {&setting, least, expected_excess(setting, model, ranks),
         step_seconds(setting, model, ranks, options.rates),
         bytes_groups.try_emplace(bytes_key(setting), bytes_groups.size()).first->second,
         kernels_groups.try_emplace(kernels_key(setting), kernels_groups.size()).first->second});
  }
  search.bounded = over.size();
  std::vector<std::optional<Bytes>> excess(bytes_groups.size());
  std::map<int64_t, Bytes> unexpected;  // by micro-batch, the smallest above `expected`
  std::vector<double> times;            // of the settings that fit
  // The seconds of plans above step_seconds(). A group without a plan is expected to be as good as
  // the best.
  std::vector<std::optional<double>> delays(kernels_groups.size());
  std::optional<double> least_delay;
  const auto seconds_of = [&](const Candidate& one) {
    return one.seconds + delays[one.kernels_group].value_or(least_delay.value_or(0.0));
  };
  // Whether a candidate will probably fit (keys do not say all: some of the excess), then the
  // predicted time, or how much it will lack. Until one fits, every second plan is of the smallest.
  bool smallest_first = false;
  size_t doubtful = 16;
  const auto rank_of = [&](const Candidate& one) {
    const std::optional<Bytes>& known = excess[one.bytes_group];
    const auto more = unexpected.upper_bound(one.setting->micro_batch);
    Bytes bytes = known.value_or(one.expected);
    for (size_t space = 0; space < 3; ++space) {
      if (!known && more != unexpected.begin()) bytes[space] += std::prev(more)->second[space];
      bytes[space] = one.least[space] + bytes[space] * (known ? 15 : 12) / 16;
    }
    const double load = load_of(bytes, options.limits).share;
    const bool lacks = load > 1.0;
    return std::pair(lacks || smallest_first, lacks || smallest_first ? load : seconds_of(one));
  };
  // The places of the first open candidates by a rank, in order.
  const auto first_by = [&](const auto& rank, size_t most) {
    std::vector<std::pair<decltype(rank(open.front())), size_t>> ranked;
    for (const Candidate& one : open) ranked.emplace_back(rank(one), ranked.size());
    std::ranges::partial_sort(ranked, ranked.begin() + static_cast<int64_t>(most));
    std::vector<size_t> places;
    for (size_t i = 0; i < most; ++i) places.push_back(ranked[i].second);
    return places;
  };
  const auto keep = [&](const auto& planned, const Candidate& of) {
    PlannedSetting one;
    try {
      one = planned();
    } catch (const ConfigError& error) {
      ++search.refused[error.what()];
      return;
    } catch (const Unsupported& error) {
      ++search.refused[error.what()];
      return;
    }
    one.setting = *of.setting;
    if (one.seconds == 0.0) one.seconds = of.seconds;
    const double delay = one.seconds - of.seconds;
    delays[of.kernels_group] = delay;
    least_delay = std::min(delay, least_delay.value_or(delay));
    const Bytes bytes = array_of(one.bytes);
    constexpr Bytes most = {INT64_MAX, INT64_MAX, INT64_MAX};
    Bytes& more = unexpected.try_emplace(of.setting->micro_batch, most).first->second;
    std::optional<Bytes>& known = excess[of.bytes_group];
    if (!known) known = most;
    for (size_t space = 0; space < 3; ++space) {
      const int64_t above = bytes[space] - of.least[space];
      (*known)[space] = std::min((*known)[space], above);
      more[space] = std::min(more[space], std::max<int64_t>(0, above - of.expected[space]));
    }
    const Load load = load_of(bytes, options.limits);
    constexpr const char* names[] = {"device", "host", "file", "both"};
    one.tight = names[load.space];
    one.load = load.share;
    if (one.fits()) times.push_back(one.seconds);
    (one.fits() ? search.fitting : search.rest).push_back(std::move(one));
  };
  while (!open.empty()) {
    if (std::chrono::duration<double>(Clock::now() - begin).count() > options.seconds) {
      search.complete = false;
      break;
    }
    smallest_first = search.fitting.empty() && !smallest_first;
    const size_t together = static_cast<size_t>(std::max(1, options.threads));
    std::vector<size_t> next = first_by(rank_of, std::min(open.size(), together));
    if (search.fitting.size() >= options.enough) {
      const auto last = times.begin() + static_cast<int64_t>(options.enough) - 1;
      std::ranges::nth_element(times, last);
      const double slowest = *last;
      const auto is_slower = [&](size_t place) { return seconds_of(open[place]) >= slowest; };
      if (rank_of(open[next.front()]).first || is_slower(next.front())) {
        // Predicted bytes err: some of the faster settings are planned that probably do not fit.
        const auto faster = [&](const Candidate& one) {
          return std::pair(seconds_of(one) >= slowest, rank_of(one));
        };
        next = first_by(faster, 1);
        if (doubtful-- == 0 || is_slower(next.front())) break;
      }
    }
    std::vector<std::future<PlannedSetting>> plans;
    for (const size_t place : next)
      plans.push_back(std::async(next.size() > 1 ? std::launch::async : std::launch::deferred,
                                 [&, place] { return plan(*open[place].setting); }));
    for (size_t i = 0; i < next.size(); ++i) keep([&] { return plans[i].get(); }, open[next[i]]);
    std::ranges::sort(next, std::greater());
    for (const size_t place : next) open.erase(open.begin() + static_cast<int64_t>(place));
  }
  search.unplanned = open.size();
  smallest_first = false;
  // The setting that a little more memory would allow; if all were skipped, some of the smallest.
  open.insert(open.end(), over.begin(), over.end());
  if (!search.fitting.empty())
    std::erase_if(open, [&](const Candidate& one) {
      return !rank_of(one).first || seconds_of(one) >= *std::ranges::min_element(times);
    });
  const size_t more = search.fitting.empty() ? (search.rest.empty() ? 16 : 0) : 1;
  for (size_t i = 0; i < more && !open.empty(); ++i) {
    const auto next = open.begin() + static_cast<int64_t>(first_by(rank_of, 1).front());
    keep([&] { return plan(*next->setting); }, *next);
    open.erase(next);
  }
  std::ranges::stable_sort(search.fitting, {}, &PlannedSetting::seconds);
  std::ranges::stable_sort(search.rest, {}, &PlannedSetting::load);
  return search;
}

}  // namespace zg::zero
