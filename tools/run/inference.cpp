#include "tools/run/inference.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/output/memory_json.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

namespace zg::tools {
namespace {

/// Weights are stored in the dtype of the flag, or in their own if that is narrower than the dtype
/// of the computation.
ValuesOptions values_options(const RunSpec& settings, const InferenceOptions& options) {
  const DType precision = settings.engine.compute;
  const bool same = !options.dtype || *options.dtype == precision;
  return {.compute = same ? precision : DType::f32, .stored = options.dtype};
}

struct Inference {
  const SavedModel& saved_model;
  const InferenceOptions& options;
  const InferenceWork& work;
  const WeightSource weights;

  void operator()(const Device& device, InferenceMode mode) const {
    TrainedModel trained(saved_model, device);
    {
      const PhaseScope phase(device, "load");
      trained.values = std::make_unique<Values>(trained.store, weights, device,
                                                values_options(saved_model.settings, options));
    }
    const PhaseScope phase(device, "inference");
    work(trained, mode);
  }

  Plan plan(InferenceMode mode) const {
    constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();
    zg::PlanOptions plan_options{.device = options.train.device_flags.device,
                                 .type = options.train.device_flags.type,
                                 .max_reads = unlimited};
    plan_options.device.memory_limit = plan_options.device.host_limit = 0;
    return plan_ranks(
        1, [&](Communicator&, const Device& device) { (*this)(device, mode); }, plan_options);
  }
};

std::string bytes_text(int64_t bytes) {
  return fmt::format("{:.1f} MiB ({} bytes)", static_cast<double>(bytes) / (1 << 20), bytes);
}

/// "2101.5 MiB (2203582464 bytes) of device memory, of which weights take 2096.0 MiB (...)".
std::string needs_text(const RankReport& report) {
  int64_t weights = 0;
  for (const MemoryTracker::Row& row : report.phases)
    if (row.space == Space::device)
      weights = std::max(weights, row.live[static_cast<size_t>(Purpose::parameter)]);
  return fmt::format("{} of device memory, of which weights take {}",
                     bytes_text(needs_of(report).device), bytes_text(weights));
}

void check_fits(const RankReport& report, const DeviceFlags& flags) {
  const char* advice = "try --dtype bf16, a smaller --batch-size or --length, or another device";
  const DeviceOptions& limits = flags.device;
  const Needs needs = needs_of(report);
  if (!needs.fit(limits)) {
    const bool on_device = limits.memory_limit > 0 && needs.device > limits.memory_limit;
    raise<OutOfMemory>(
        "{}: the model takes {} and {} of host memory, by plan; expected at most {}; {}",
        on_device ? "--device-memory" : "--host-memory", needs_text(report), bytes_text(needs.host),
        bytes_text(on_device ? limits.memory_limit : limits.host_limit), advice);
  }
  const int64_t here = needs.host + (flags.type == Device::Type::cpu ? needs.device : 0);
  const int64_t available = std::min(memory_limit_bytes(), available_memory_bytes());
  const int64_t addresses = addresses_left_bytes();
  if (here > std::min(available, addresses))
    raise<OutOfMemory>(
        "the model takes {}, by plan; this machine has {} available{}; {}", needs_text(report),
        bytes_text(available),
        addresses < available
            ? fmt::format(" and `ulimit -v` leaves this process {}", bytes_text(addresses))
            : "",
        advice);
}

void print_plan(const Plan& plan, const RunSpec& settings, DType compute) {
  ParameterStore store;
  const WholeModel model(store, settings);
  const RankReport& report = plan.ranks.front();
  print_line(stdout, "number of parameters: {}", store.numel());
  print_line(stdout, "machine: {}, {} threads; computed in {}", name_of(plan.machine.backend),
             plan.machine.threads, name_of(compute));
  print_line(stdout, "{}", plan.table());
  print_line(stdout, "peak {}", needs_text(report));
  print_line(stdout, "host {}", bytes_text(needs_of(report).host));
}

}  // namespace

FlagGroup inference_flags(InferenceOptions& options) {
  FlagGroup group{"place", flags_named({"--device", "--use-hpu", "--threads", "--device-memory",
                                        "--host-memory"},
                                       options.train)};
  group.flags.push_back(dtype_flag(
      {"--dtype"}, options.dtype,
      "dtype of stored matrices; other tensors are f32 [the files'; for a checkpoint the\n"
      "run's precision]. Computed in the run's precision (f32 for a folder), or in f32 if\n"
      "this dtype is another one"));
  group.flags.push_back(path_flag({"--memory-json"}, "F", options.memory_json, PathUse::writes,
                                  "writes the bytes in use by phase and purpose"));
  return group;
}

bool parse_inference(const CommandLine& line, const std::vector<std::string>& arguments,
                     InferenceOptions& options) {
  if (!parse(line, arguments, options.train.given)) return false;
  check_model(options.train);
  check_device(options.train.given);
  return true;
}

SavedModel open_for_inference(const InferenceOptions& options) {
  check_model_flags(options.train.given, options.checkpoint);
  SavedModel saved_model = open_saved_model(options.checkpoint, options.train, options.adapters);
  models::GPTConfig& model = saved_model.settings.model;
  if (!saved_model.settings.seq2seq.config.empty()) return saved_model;
  if (const int64_t longer = options.train.model.block_size; longer > model.block_size)
    model.block_size = std::min(longer, longest_context(model));
  models::validate(model);
  return saved_model;
}

int run_inference(const SavedModel& saved_model, const InferenceOptions& options,
                  const InferenceWork& work) {
  const DeviceFlags& flags = options.train.device_flags;
  const RunSpec& settings = saved_model.settings;
  check_output(settings, "--memory-json", options.memory_json);
  if (!options.only_planned) require_device(flags.type);
  const DType compute = values_options(settings, options).compute;
  require_dtype(flags.type, compute, saved_model.path);
  const auto write_memory = [&](const MemoryReport& report) {
    if (!options.memory_json.empty())
      write_json("--memory-json", options.memory_json, report.json());
  };
  Inference inference{saved_model, options, work, weights_of(saved_model, /*check=*/false)};
  if (options.only_planned) {
    const Plan plan = inference.plan(InferenceMode::plan);
    print_plan(plan, settings, compute);
    write_memory(plan);
    const bool limited = flags.device.memory_limit > 0 || flags.device.host_limit > 0;
    const bool yes = needs_of(plan.ranks.front()).fit(flags.device);
    if (limited) print_line(stdout, "fits: {}", yes ? "yes" : "no");
    return yes ? 0 : 3;
  }
  check_fits(inference.plan(InferenceMode::budget).ranks.front(), flags);
  if (settings.lora.rank > 0 && !settings.base.hash.empty())
    zero::check_base(settings.base, base_weights(settings));
  const Device device = device_of_rank(flags.type, 0, flags.device);
  inference(device, InferenceMode::run);
  write_memory({.machine = device.traits(), .ranks = {Recorder(0, nullptr).report(device)}});
  return 0;
}

namespace {

using models::Split;

std::string list(const std::vector<int32_t>& numbers) {
  std::string joined;
  for (int32_t number : numbers) joined += (joined.empty() ? "" : ", ") + std::to_string(number);
  return fmt::format("[{}]", joined);
}

double print_score(const Evaluation& evaluation, Split split, const char* name, int64_t batch,
                   int64_t samples, const std::function<void(const std::string&)>& print) {
  const models::Score score =
      models::score(evaluation.model, evaluation.make_tape, evaluation.dataset, split, samples,
                    batch, evaluation.ranks);
  for (const models::Score::Mistake& mistake : score.mistakes)
    print(fmt::format("GPT claims that {}{}{} but gt is {}", list(mistake.question),
                      evaluation.is_sort_task ? " sorted is " : " adds up to ",
                      list(mistake.answer), list(mistake.expected)));
  const double fraction = static_cast<double>(score.correct) / static_cast<double>(score.total);
  print(fmt::format("{} final score: {}/{} = {:.2f}% correct", name, score.correct, score.total,
                    100.0 * fraction));
  return fraction;
}

}  // namespace

double Evaluation::loss(int64_t batch, int64_t batches) const {
  if (dataset.epoch_samples(Split::validation) == 0)
    throw ConfigError(
        "--val-fraction: expected a validation split, got none; try 0.1, for conversations "
        "--val-data PATH.jsonl, or for documents a --split that leaves at least one whole document "
        "to validate on");
  return models::mean_loss(model, make_tape, dataset, Split::validation, device, batch, batches);
}

Evaluation::Scores Evaluation::scores(int64_t batch, int64_t samples,
                                      const std::function<void(const std::string&)>& print) const {
  const double train = print_score(*this, Split::train, "train", batch, samples, print);
  const double test = print_score(*this, Split::validation, "test", batch, samples, print);
  return {train, test};
}

void Evaluation::plan_scores(int64_t batch, int64_t samples) const {
  const int64_t count = std::min({batch, samples, dataset.epoch_samples(Split::train)});
  models::KeyValueCache cache(model.config());
  Tape tape = make_tape();
  model.next_logits(tape, Tensor::empty({count, dataset.question_length()}, DType::i32, device),
                    cache);
}

void Evaluation::print_example(const std::function<void(const std::string&)>& print) const {
  const int64_t T = dataset.block_size(), asked = dataset.question_length();
  std::vector<int32_t> ids(static_cast<size_t>(T)), targets(ids.size());
  dataset.sample(Split::validation, 0, ids.data(), targets.data());
  const std::vector<int32_t> question(ids.begin(), ids.begin() + asked);
  std::vector<int32_t> expected(ids.begin() + asked, ids.end());
  expected.push_back(targets.back());
  std::vector<int32_t> answer =
      models::generate(model, make_tape, {question}, T + 1 - asked, {.temperature = 0.0}).front();
  answer.erase(answer.begin(), answer.end() - std::ssize(expected));
  print("input sequence  : " + list(question));
  print("predicted sorted: " + list(answer));
  print("gt sort         : " + list(expected));
  print(std::string("matches         : ") + (answer == expected ? "True" : "False"));
}

}  // namespace zg::tools
