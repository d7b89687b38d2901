#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/deepspeed/check.h"

namespace zg::zero::deepspeed {
namespace {

using Field = DeepSpeedField;

class Mapping {
 public:
  Mapping(const CheckedConfig& config, const DeepSpeedOptions& options)
      : config_(config), decided_(options.decided), result_(options.program) {}

  DeepSpeedConfig apply() {
    // `program` may be a DeepSpeedConfig that was read from another file, so its record is cleared.
    result_.taken.clear();
    result_.defaulted.clear();
    result_.overridden.clear();
    result_.warnings = config_.warnings;
    result_.without_effect = config_.without_effect;
    result_.state = config_.is_on("", "dump_state") ? config_.state() : std::vector<std::string>{};
    apply_batch();
    apply_optimizer();
    apply_scheduler();
    apply_precision();
    apply_zero();
    apply_offload();
    apply_own();
    store("", "gradient_clipping", engine_.clip_norm, {Field::clip_norm});
    store("", "steps_per_print", result_.steps_per_print);
    store("", "memory_breakdown", result_.memory_breakdown, {Field::memory_breakdown});
    return result_;
  }

 private:
  // Calls `set` and records the first of `fields` as taken from the config. Does nothing if the key
  // is absent, null or "auto", or if the program has decided one of `fields`; then it reports the
  // key as overridden, unless it is a default.
  template <class Set>
  void take(const std::string& section, const std::string& key, const std::vector<Field>& fields,
            const Set& set) {
    const Setting* setting = config_.find(section, key);
    if (!setting || setting->null || setting->automatic) return;
    for (const Field field : fields)
      if (is_decided(field)) {
        if (setting->given) result_.overridden.push_back({path_of(*setting->row), field});
        return;
      }
    set(*setting);
    if (fields.empty()) return;
    // Several keys may set a field: it has a default if the config gives none of them.
    const bool is_first = result_.taken.insert(fields.front()).second;
    if (setting->given)
      result_.defaulted.erase(fields.front());
    else if (is_first)
      result_.defaulted.insert(fields.front());
  }

  /// Calls take() with a `set` that stores the value in `target`.
  template <class T>
  void store(const std::string& section, const std::string& key, T& target,
             const std::vector<Field>& fields = {}) {
    take(section, key, fields, [&](const Setting& s) {
      if constexpr (std::is_same_v<T, bool>)
        target = s.boolean;
      else if constexpr (std::is_integral_v<T>)
        target = static_cast<T>(s.integer);
      else if constexpr (std::is_floating_point_v<T>)
        target = static_cast<T>(s.number);
      else
        target = s.text;
    });
  }

  bool is_automatic(const std::string& section, const std::string& key) const {
    const Setting* setting = config_.find(section, key);
    return setting && setting->automatic;
  }
  bool is_decided(Field field) const { return decided_.count(field) > 0; }

  void apply_batch() {
    BatchRequest& batch = result_.batch;
    batch.place = place(config_.file, {}, "");
    bool is_placed = false;
    const auto number = [&](const char* key, Field field, std::optional<int64_t>& target) {
      take("", key, {field}, [&](const Setting& s) {
        target = s.integer;
        if (!is_placed) batch.place = config_.place_of(s);
        is_placed = true;
      });
    };
    number("train_batch_size", Field::train_batch, batch.train);
    number("train_micro_batch_size_per_gpu", Field::micro_batch, batch.micro);
    number("gradient_accumulation_steps", Field::accumulation, batch.accumulation);
    // For "auto" DeepSpeed uses the data loader's batch size. Here the micro-batch follows from the
    // other numbers or, without them, is default_micro_batch.
    if ((is_automatic("", "train_batch_size") ||
         is_automatic("", "train_micro_batch_size_per_gpu")) &&
        !batch.train && !batch.micro)
      batch.micro = default_micro_batch;
  }

  void apply_optimizer() {
    const Setting* type = config_.find("optimizer", "type");
    if (!type) return;
    UpdateOptions& update = engine_.update;
    const std::string in = section_of_optimizer(type->text);
    const OptimizerRule rule = in == "sgd"    ? OptimizerRule::sgd
                               : in == "lion" ? OptimizerRule::lion
                               : in == "muon" ? OptimizerRule::muon
                                              : OptimizerRule::adam;
    const bool is_decided_rule = is_decided(Field::optimizer);
    if (is_decided_rule && rule != update.rule) {
      result_.overridden.push_back({"optimizer", Field::optimizer});
      return;
    }
    if (!is_decided_rule) {
      result_.taken.insert(Field::optimizer);
      update.rule = rule;
      update.decoupled = in != "sgd";
    }
    store(in, "lr", schedule_.rate, {Field::rate});
    if (in == "muon") apply_muon(update.muon);
    take(in, "betas", {Field::beta1},
         [&](const Setting& s) { update.beta1 = static_cast<float>(s.numbers[0]); });
    take(in, "betas", {Field::beta2},
         [&](const Setting& s) { update.beta2 = static_cast<float>(s.numbers[1]); });
    store(in, "eps", update.epsilon, {Field::epsilon});
    if (in != "muon") store(in, "momentum", update.momentum, {Field::momentum});
    store(in, "dampening", update.dampening);
    store(in, "nesterov", update.nesterov, {Field::nesterov});
    store(in, "weight_decay", update.weight_decay, {Field::weight_decay});
    // DeepSpeed runs AdamW also for the type Adam, unless adam_w_mode is false.
    if (is_decided_rule) return;
    take(in, "adam_w_mode", {},
         [&](const Setting& s) { update.decoupled = s.boolean || type->text.size() == 5; });
  }

  /// DeepSpeed has a rate for the matrices and one for the parameters that adam updates. Here the
  /// first is the rate of the schedule, and adam_rate is the second divided by the first.
  void apply_muon(MuonOptions& muon) {
    const auto number = [&](const char* key) -> std::optional<double> {
      const Setting* setting = config_.find("muon", key);
      if (!setting || setting->null || setting->automatic) return std::nullopt;
      return setting->number;
    };
    const double rate = number("lr").value_or(schedule_.rate);
    const double matrices = number("muon_lr").value_or(rate);
    store("muon", "muon_lr", schedule_.rate, {Field::rate});
    store("muon", "momentum", muon.momentum, {Field::matrix_momentum});
    if (!is_decided(Field::matrix_nesterov)) muon.nesterov = true;
    if (!is_decided(Field::matrix_rate)) muon.rate = MuonRate::original;
    if (!is_decided(Field::adam_rate))
      muon.adam_rate = matrices > 0 ? static_cast<float>(rate / matrices) : 1.0f;
    take("muon", "adam_lr", {Field::adam_rate}, [&](const Setting& s) {
      if (matrices <= 0.0)
        throw ConfigError(config_.place_of(s) +
                          "adam_lr is a multiple of muon_lr here; expected a muon_lr above 0");
      muon.adam_rate = static_cast<float>(s.number / matrices);
    });
    for (const Field field : {Field::matrix_nesterov, Field::matrix_rate, Field::adam_rate})
      if (!is_decided(field) && result_.taken.insert(field).second) result_.defaulted.insert(field);
  }

  /// Takes the rate of a scheduler, which DeepSpeed uses for every parameter, also with Muon.
  void take_rate(const std::string& in, const char* key) {
    take(in, key, {Field::rate}, [&](const Setting& s) {
      schedule_.rate = s.number;
      if (!is_decided(Field::adam_rate)) engine_.update.muon.adam_rate = 1.0f;
    });
  }

  void apply_scheduler() {
    const Setting* type = config_.find("scheduler", "type");
    if (!type) return;
    if (is_decided(Field::schedule)) {
      result_.overridden.push_back({"scheduler", Field::schedule});
      return;
    }
    const std::string& kind = type->text;
    schedule_.kind = schedule_kind(kind);
    result_.taken.insert(Field::schedule);
    if (kind == "LRRangeTest") return apply_range_test(schedule_.range_test);
    if (kind == "OneCycle") return apply_one_cycle(schedule_.one_cycle);
    take_rate(kind, "warmup_max_lr");
    // DeepSpeed uses at least 2. 0 would mean "not given" here.
    take(kind, "warmup_num_steps", {Field::warmup_steps},
         [&](const Setting& s) { schedule_.warmup_num_steps = std::max<int64_t>(2, s.integer); });
    if (is_automatic(kind, "warmup_num_steps")) {
      schedule_.warmup_num_steps = std::max<int64_t>(2, schedule_.warmup_num_steps);
      if (!is_decided(Field::warmup_steps)) result_.taken.insert(Field::warmup_steps);
    }
    store(kind, "total_num_steps", schedule_.total_num_steps);
    take(kind, "warmup_type", {}, [&](const Setting& s) {
      schedule_.warmup_type = s.text == "linear" ? WarmupType::linear : WarmupType::log;
    });
    store(kind, "warmup_min_lr", schedule_.warmup_min_lr);
    store(kind, "warmup_min_ratio", schedule_.warmup_min_ratio);
    store(kind, "cos_min_ratio", schedule_.cos_min_ratio);
  }

  void apply_range_test(RangeTestOptions& test) {
    constexpr const char* in = "LRRangeTest";
    take_rate(in, "lr_range_test_min_lr");
    store(in, "lr_range_test_step_size", test.step_size);
    store(in, "lr_range_test_step_rate", test.step_rate);
    store(in, "lr_range_test_staircase", test.staircase);
  }

  void apply_one_cycle(OneCycleOptions& cycle) {
    constexpr const char* in = "OneCycle";
    take_rate(in, "cycle_max_lr");
    store(in, "cycle_min_lr", cycle.cycle_min_lr);
    store(in, "decay_lr_rate", cycle.decay_lr_rate);
    store(in, "cycle_min_mom", cycle.cycle_min_mom);
    store(in, "cycle_max_mom", cycle.cycle_max_mom);
    store(in, "decay_mom_rate", cycle.decay_mom_rate);
    take(in, "cycle_first_step_size", {}, [&](const Setting& s) {
      cycle.cycle_first_step_size = cycle.cycle_second_step_size = s.integer;
    });
    store(in, "cycle_second_step_size", cycle.cycle_second_step_size);
    store(in, "decay_step_size", cycle.decay_step_size);
    const OptimizerRule rule = engine_.update.rule;
    if (rule != OptimizerRule::sgd && rule != OptimizerRule::adafactor) {
      store(in, "cycle_momentum", cycle.cycle_momentum, {Field::beta1, Field::beta2});
      if (is_decided(Field::beta1) || is_decided(Field::beta2)) cycle.cycle_momentum = false;
      return;
    }
    // DeepSpeed cycles the betas of optimizers that have some, and keeps SGD's momentum.
    const Setting* given = config_.find(in, "cycle_momentum");
    if (given && given->given && given->boolean)
      result_.without_effect.push_back(
          fmt::format("{}accepted without effect ({} has no betas to cycle)",
                      config_.place_of(*given), rule == OptimizerRule::sgd ? "SGD" : "Adafactor"));
    cycle.cycle_momentum = false;
  }

  void apply_precision() {
    const bool f16 = config_.is_on("fp16", "enabled"), bf16 = config_.is_on("bf16", "enabled");
    const auto decides = [&](const char* section) {
      return config_.find(section, "enabled") && !is_automatic(section, "enabled");
    };
    if (is_decided(Field::precision)) {
      if (f16 || bf16)
        result_.overridden.push_back({f16 ? "fp16.enabled" : "bf16.enabled", Field::precision});
    } else if (decides("fp16") || decides("bf16")) {
      engine_.compute = f16 ? DType::f16 : bf16 ? DType::bf16 : DType::f32;
      if (bf16 && config_.is_on("bf16", "bf16_optimizer_states")) result_.preset = "fsdp-memory";
      result_.taken.insert(Field::precision);
    }
    take("data_types", "grad_accum_dtype", {Field::grad_accum_dtype}, [&](const Setting& s) {
      engine_.grad_accum = s.text == "bf16" ? DType::bf16 : DType::f32;
    });
    if (engine_.compute == DType::f16) apply_loss_scale(engine_.loss_scaling);
  }

  void apply_loss_scale(LossScaleOptions& scaling) {
    // A constant scale has no initial power, so a program that sets the power wants a dynamic
    // scale.
    store("fp16", "loss_scale", scaling.loss_scale, {Field::initial_scale_power});
    store("fp16", "initial_scale_power", scaling.initial_scale_power, {Field::initial_scale_power});
    store("fp16", "loss_scale_window", scaling.window);
    store("fp16", "hysteresis", scaling.hysteresis);
    store("fp16", "consecutive_hysteresis", scaling.consecutive_hysteresis);
    store("fp16", "min_loss_scale", scaling.min_loss_scale);
  }

  void apply_zero() {
    const char* const in = "zero_optimization";
    store(in, "stage", engine_.stage, {Field::stage});
    const auto size = [&](const char* key, Field field, int64_t& target, double& by_width,
                          double factor) {
      store(in, key, target, {field});
      if (is_automatic(in, key) && !is_decided(field)) by_width = factor;
    };
    BucketsByWidth& buckets = result_.buckets;
    // "auto" means the default, and so does 0, with which DeepSpeed gathers one parameter at a
    // time.
    take(in, "allgather_bucket_size", {}, [&](const Setting& s) {
      if (s.integer > 0) engine_.allgather_bucket_size = s.integer;
    });
    size("reduce_bucket_size", Field::reduce_bucket_size, engine_.reduce_bucket_size,
         buckets.reduce_per_square, 1.0);
    size("stage3_prefetch_bucket_size", Field::prefetch_bucket_size, engine_.prefetch_bucket_size,
         buckets.prefetch_per_square, 0.9);
    size("stage3_param_persistence_threshold", Field::param_persistence_threshold,
         engine_.param_persistence_threshold, buckets.persistence_per_width, 10.0);
    store(in, "overlap_comm", engine_.overlap_comm, {Field::overlap_comm});
    const Setting* overlap = config_.find(in, "overlap_comm");
    if (overlap && overlap->null && !is_decided(Field::overlap_comm))
      engine_.overlap_comm = engine_.stage == 3;
  }

  void check_path(const Setting& device, const char* section) const {
    const Setting* path = config_.find(section, "nvme_path");
    if ((!path || path->null) && !is_decided(Field::nvme_path))
      throw ConfigError(config_.place_of(device) +
                        "nvme without a path; expected nvme_path, got none; try \"nvme_path\": "
                        "\"/local_nvme\"");
  }

  // DeepSpeed accumulates gradients where the optimizer states are. Accumulating on NVMe is slow,
  // so gradient accumulators are there only if the program or zerograd.offload_gradients says so.
  void offload_optimizer(const std::string& to) {
    OffloadOptions& offload = engine_.offload;
    if (to == "none") return;
    offload.optimizer = to == "cpu" ? Space::host : Space::file;
    if (!is_decided(Field::offload_gradients)) offload.gradient = Space::host;
  }

  void offload_parameters(const Setting& device, const std::string& to) {
    if (to == "none") return;
    if (engine_.stage != 3) {  // as in DeepSpeed
      result_.without_effect.push_back(
          config_.place_of(device) +
          "accepted without effect (parameters are offloaded at stage 3 only)");
      return;
    }
    engine_.offload.parameter = to == "cpu" ? Space::host : Space::file;
  }

  void apply_offload() {
    OffloadOptions& offload = engine_.offload;
    const char* const in = "zero_optimization";
    take(in, "cpu_offload", {Field::offload_optimizer},
         [&](const Setting& s) { offload_optimizer(s.boolean ? "cpu" : "none"); });
    take(in, "cpu_offload_param", {Field::offload_parameters},
         [&](const Setting& s) { offload_parameters(s, s.boolean ? "cpu" : "none"); });
    take("offload_optimizer", "device", {Field::offload_optimizer}, [&](const Setting& s) {
      if (s.text == "nvme") check_path(s, "offload_optimizer");
      offload_optimizer(s.text);
    });
    take("offload_param", "device", {Field::offload_parameters}, [&](const Setting& s) {
      if (s.text == "nvme") check_path(s, "offload_param");
      offload_parameters(s, s.text);
    });
    apply_nvme_path();
    // With 0 DeepSpeed updates one parameter at a time; values do not depend on the size.
    take(in, "sub_group_size", {}, [&](const Setting& s) {
      if (s.integer > 0) offload.sub_group_size = std::min(offload.sub_group_size, s.integer);
    });
    store("offload_optimizer", "ratio", offload.optimizer_ratio);
    // The default is not used: in DeepSpeed it keeps up to 1e9 elements per rank in memory although
    // the config sends them to NVMe.
    take("offload_param", "max_in_cpu", {}, [&](const Setting& s) {
      if (s.given) offload.parameters_on_host = s.integer;
    });
    const Setting* const count = config_.find("offload_param", "buffer_count");
    const Setting* const size = config_.find("offload_param", "buffer_size");
    if (count && size)
      offload.parameter_buffer =
          static_cast<int64_t>(std::clamp(count->number * size->number, 1.0, 0x1p62));
    SwapOptions& swap = result_.swap;
    store("aio", "block_size", swap.block_size);
    store("aio", "queue_depth", swap.queue_depth);
    store("writer", "decoupled", result_.async_save, {Field::async_save});
    store("autotuning", "enabled", result_.autotuning, {Field::autotuning});
    store("activation_checkpointing", "cpu_checkpointing", result_.cpu_checkpointing);
  }

  // There is one directory for both sections. If only one section uses NVMe, its nvme_path is used.
  void apply_nvme_path() {
    const OffloadOptions& offload = engine_.offload;
    const bool parameters = offload.parameter == Space::file;
    const bool optimizer = offload.optimizer == Space::file;
    const Setting* const one = config_.find("offload_param", "nvme_path");
    const Setting* const other = config_.find("offload_optimizer", "nvme_path");
    if (parameters && optimizer && !is_decided(Field::nvme_path) && one && other && !one->null &&
        !other->null && one->text != other->text)
      raise<Unsupported>(
          "{}all bytes on NVMe are in one directory; expected the path of "
          "offload_param, '{}', got '{}'; try the same for both",
          config_.place_of(*other), printable(one->text), printable(other->text));
    std::array<const char*, 2> sections = {"offload_param", "offload_optimizer"};
    if (parameters && !optimizer) std::swap(sections[0], sections[1]);
    for (const char* section : sections)  // the last one is used
      store(section, "nvme_path", result_.swap.directory, {Field::nvme_path});
  }

  // Runs after apply_offload(), which sets the space of the gradient accumulators if this section
  // does not.
  void apply_own() {
    const auto space_of = [](const Setting& s) {
      return s.text == "none" ? Space::device : s.text == "cpu" ? Space::host : Space::file;
    };
    const char* const in = "zerograd";
    OffloadOptions& offload = engine_.offload;
    store(in, "activation_checkpoint", result_.activation_checkpoint,
          {Field::activation_checkpoint});
    take(in, "offload_gradients", {Field::offload_gradients},
         [&](const Setting& s) { offload.gradient = space_of(s); });
    take(in, "offload_activations", {Field::offload_activations},
         [&](const Setting& s) { offload.activation = space_of(s); });
    store(in, "stochastic_rounding", engine_.update.stochastic_rounding);
  }

  const CheckedConfig& config_;
  const std::set<Field>& decided_;
  DeepSpeedConfig result_;
  Config& engine_ = result_.engine;
  ScheduleOptions& schedule_ = result_.schedule;
};

}  // namespace

DeepSpeedConfig apply_config(const CheckedConfig& config, const DeepSpeedOptions& options) {
  return Mapping(config, options).apply();
}

}  // namespace zg::zero::deepspeed
