#include "tools/options/train_flags.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"

namespace zg::tools {

Flag rampup_flag(BatchRampup& rampup) {
  Flag flag = {{"--rampup-batch-size"},
               "START INCREMENT SAMPLES",
               "a step's samples grow from START by INCREMENT to --train-batch-size over\n"
               "the first SAMPLES",
               [&rampup](const std::string& name, const std::string& value) {
                 rampup = parse_rampup(name, value);
               }};
  flag.max_words = 3;
  return flag;
}

Flag epoch_limit_flag(EpochLimit& limit) {
  return {{"--limit-train-batches"},
          "N",
          "",
          [&limit](const std::string& name, const std::string& value) {
            limit = {};
            if (value.find('.') == std::string::npos)
              limit.batches = parse_integer(name, value, 1, std::numeric_limits<int32_t>::max());
            else
              limit.share = parse_number(
                  name, value, {0.0, 1.0, true, false, "a share above 0 and at most 1.0"});
          }};
}

Flag schedule_flag(zero::ScheduleOptions& schedule) {
  using Kind = zero::ScheduleKind;
  std::vector<std::string> names;
  for (Kind kind :
       {Kind::none, Kind::warmup_lr, Kind::warmup_decay_lr, Kind::warmup_cosine_lr, Kind::cosine})
    names.emplace_back(name_of(kind));
  // Help shows an initial value of --schedule; finetune's is one of --lr-scheduler-type.
  const Kind initial = schedule.kind;
  if (zero::is_of_transformers(initial)) schedule.kind = Kind::none;
  Flag flag = choice_flag({"--schedule"}, schedule.kind, names,
                          "the learning rate over the steps taken: none, DeepSpeed's\n"
                          "WarmupLR, WarmupDecayLR or WarmupCosineLR, or nanoGPT's cosine");
  schedule.kind = initial;
  flag.value = "S";  // the names are too long for the left column
  return flag;
}

Flag optimizer_flag(zero::UpdateOptions& update) {
  return {{"--optimizer"},
          "adamw|adam|lion|sgd|muon|adafactor",
          "the rule of the update; adam and sgd add weight decay to the\n"
          "gradients; muon: AdamW, but for hidden matrices; adafactor: second\n"
          "moments of rows and columns alone, whole on every rank. Its --lr is\n"
          "relative to a parameter's size and at most 1/sqrt(step): try 0.01 [adamw]",
          [&update](const std::string& name, const std::string& value) {
            using enum OptimizerRule;
            constexpr OptimizerRule rules[] = {adam, adam, lion, sgd, muon, adafactor};
            const size_t choice =
                parse_choice(name, value, {"adamw", "adam", "lion", "sgd", "muon", "adafactor"});
            update.rule = rules[choice];
            update.decoupled = value != "adam" && value != "sgd";
          }};
}

Flag parameter_groups_flag(std::vector<zero::ParameterGroup>& groups) {
  return {{"--parameter-groups"},
          "PATTERN:rate=R,decay=D;...",
          "parameters whose names match have R times --lr and D for\n"
          "--weight-decay; the first match decides: '*.bias:rate=2;*wte*:decay=0'.\n"
          "optimizer=adamw: muon leaves their matrices to adamw",
          [&groups](const std::string& name, const std::string& value) {
            groups = zero::parameter_groups(value, name);
          }};
}

Flag betas_flag(zero::UpdateOptions& update) {
  return {
      {"--betas"},
      "B1,B2",
      "decay rates of AdamW, Adam, Lion and muon's AdamW [0.9,0.95]",
      [&update](const std::string& name, const std::string& value) {
        const size_t comma = value.find(',');
        if (comma == std::string::npos)
          throw ConfigError(name + ": expected two numbers like 0.9,0.95, got '" + value + "'");
        update.beta1 = static_cast<float>(parse_number(name, value.substr(0, comma), below_one));
        update.beta2 = static_cast<float>(parse_number(name, value.substr(comma + 1), below_one));
      }};
}

Flag precision_flag(OptimisationOptions& optimisation) {
  Flag flag = {
      {"--precision"},
      "P",
      "of values, activations and gradients: f32 or 32; bf16, or f16 or 16\n"
      "with a loss scale, beside f32 masters; deepspeed, fsdp-mixed or\n"
      "fsdp-memory, whose dtypes plan --explain prints [f32]",
      [&optimisation](const std::string& name, const std::string& value) {
        static const std::vector<std::string> known = {
            "f32", "32", "bf16", "f16", "16", "deepspeed", "fsdp-mixed", "fsdp-memory"};
        constexpr DType computes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f16};
        const size_t choice = parse_choice(name, value, known);
        const bool preset = choice >= std::size(computes);
        optimisation.preset = preset ? value : "";
        if (!preset) optimisation.engine.compute = computes[choice];
      }};
  flag.with_value = {{"--bf16", "bf16"}, {"--fp16", "f16"}};
  return flag;
}

Flag initial_scale_flag(zero::LossScaleOptions& scaling) {
  return {{"--initial-scale-power"},
          "N",
          "f16: the loss is scaled by 2^N at first [16]",
          [&scaling](const std::string& name, const std::string& value) {
            // 2^127 is the largest power that an f32 holds.
            scaling.initial_scale_power = static_cast<int>(parse_integer(name, value, 0, 127));
          }};
}

Flag stage_flag(zero::Config& engine) {
  return {{"--zero-stage"},
          "0|1|2|3",
          "what the ranks share out: 0 gradient sums, 1 and 2 also masters\nand moments, 3 also "
          "values [0]",
          [&engine](const std::string& name, const std::string& value) {
            engine.stage = static_cast<int>(parse_choice(name, value, {"0", "1", "2", "3"}));
          }};
}

Flag strategy_flag(zero::Config& engine, OffloadFlags& offload) {
  return {{"--strategy"},
          "S",
          "",
          [&engine, &offload](const std::string& name, const std::string& value) {
            const std::string stage = "deepspeed_stage_";
            const size_t choice =
                parse_choice(name, value,
                             {"ddp", stage + "1", stage + "2", stage + "3", stage + "1_offload",
                              stage + "2_offload", stage + "3_offload"});
            offload.cpu_offload = offload.cpu_offload || choice > 3;
            engine.stage = static_cast<int>(choice > 3 ? choice - 3 : choice);
          }};
}

Flag accumulator_flag(DType& grad_accum) {
  return {{"--grad-accum-dtype"},
          "f32|bf16",
          "of gradient sums [f32; of fsdp-memory bf16]",
          [&grad_accum](const std::string& name, const std::string& value) {
            grad_accum = parse_choice(name, value, {"f32", "bf16"}) == 0 ? DType::f32 : DType::bf16;
          }};
}

Flag offload_flag(const char* name, Space& space, const std::string& help) {
  return {
      {name}, "none|host|nvme", help, [&space](const std::string& flag, const std::string& value) {
        // DeepSpeed's name for the host is cpu.
        const size_t choice =
            value == "cpu" ? 1 : parse_choice(flag, value, {"none", "host", "nvme"});
        constexpr Space spaces[] = {Space::device, Space::host, Space::file};
        space = spaces[choice];
      }};
}

namespace {

using Fault = FaultInjection::Fault;
using Phase = FaultInjection::Phase;

std::vector<int64_t> parse_steps(const std::string& flag, const std::string& value) {
  std::vector<int64_t> steps;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = value.find('+', begin);
    steps.push_back(parse_integer(flag, value.substr(begin, end - begin), 0));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void parse_injection(const std::string& name, const std::string& value, FaultInjection& injection) {
  Given given;
  std::istringstream parts(value);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string what = equals == std::string::npos ? "" : part.substr(equals + 1);
    const std::string path = fmt::format("{} {}", name, key);
    given.insert(key);
    if (key == "rank") {
      injection.rank = parse_integer(path, what, 0);
    } else if (key == "step") {
      injection.steps = parse_steps(path, what);
    } else if (key == "fault") {
      injection.fault = static_cast<Fault>(parse_choice(path, what, fault_words) + 1);
    } else if (key == "phase") {
      injection.phase = static_cast<Phase>(parse_choice(path, what, phase_words) + 1);
    } else {
      throw ConfigError(
          fmt::format("{}: expected rank, step, fault and phase, got '{}'", name, key));
    }
  }
  const bool has_step = given.count("step") > 0, wants_step = injection.phase != Phase::init;
  if (!given.count("rank") || !given.count("fault") || has_step != wants_step)
    throw ConfigError(name + ": expected rank=R,step=S,fault=F[,phase=P], or rank=R,fault=F," +
                      "phase=init, got '" + value + "'");
  if (injection.fault == Fault::infinity && injection.phase != Phase::begin)
    throw ConfigError(name + ": expected fault=inf without a phase, got '" + value + "'");
}

}  // namespace

Flag injection_flag(FaultInjection& injection) {
  return {{"--inject"},
          "DRILL",
          "a fault on purpose: rank=R,step=S[+S...],fault=F[,phase=P]; F:\n" +
              join(fault_words, "|") + ";\nP: " + join(phase_words, "|") +
              " [the step's begin]; init has no step",
          [&injection](const std::string& name, const std::string& value) {
            parse_injection(name, value, injection);
          }};
}

Flag gradients_flag(TrainOptions& options) {
  Flag flag = path_flag({"--dump-gradients"}, "F[:STEP]", options.dump_gradients, PathUse::writes,
                        "gradients of a step as safetensors [step 0]");
  flag.set = [&options](const std::string& name, const std::string& value) {
    const size_t colon = value.rfind(':');
    const bool has_step = colon != std::string::npos && colon + 1 < value.size() &&
                          value.find_first_not_of("0123456789", colon + 1) == std::string::npos;
    options.dump_gradients = has_step ? value.substr(0, colon) : value;
    options.dump_gradients_step = has_step ? parse_integer(name, value.substr(colon + 1), 0) : 0;
    if (options.dump_gradients.empty())
      throw ConfigError(name + ": expected a path, got '" + value + "'");
  };
  return flag;
}

Flag trace_steps_flag(std::optional<StepRange>& steps) {
  return {{"--trace-steps"},
          "FIRST:COUNT",
          "steps that --trace has [3 after 2 of warm-up]",
          [&steps](const std::string& name, const std::string& value) {
            const size_t colon = value.find(':');
            if (colon == std::string::npos)
              throw ConfigError(name + ": expected FIRST:COUNT such as 10:3, got '" + value + "'");
            const int64_t first = parse_integer(name, value.substr(0, colon), 0, largest_count);
            const int64_t count = parse_integer(name, value.substr(colon + 1), 1, largest_count);
            steps = StepRange{first, first + count};
          }};
}

Flag autotuning_flag(std::string& mode) {
  return {{"--autotuning"},
          "run|tune|off",
          "find a fast setting as zerograd tune does, write it to tuned.json, and\n"
          "train with it (run) or not (tune); off: not even where a config enables it [off]",
          [&mode](const std::string& name, const std::string& value) {
            const size_t choice = parse_choice(name, value, {"run", "tune", "off"});
            mode = choice == 2 ? "" : value;
          }};
}

}  // namespace zg::tools
