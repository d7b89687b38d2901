#include <algorithm>
#include <cstdio>
#include <sstream>

#include "tools/options/field_rows.h"
#include "zerograd/runtime/text/format.h"

// Rows of the table of settings (fields.h): the config, and how a run is executed: ranks, devices,
// output, checkpoints.
namespace zg::tools {
namespace {

Fields config_fields() {
  return {
      {ZG_AT(config.path), path_row({"--config", "--deepspeed-config"}, "F", PathUse::reads,
                                    "DeepSpeed's config F.json or accelerate's F.yaml, as it is;\n"
                                    "flags that are given override it")},
      {ZG_AT(config.compat),
       choice_row({"--compat"}, {"0.19", "0.16"}, "DeepSpeed version that gives the defaults")},
      {ZG_AT(config.lenient),
       switch_row({"--lenient"}, "an unknown key of a config is a warning, not an error")},
  };
}

// Parses the steps of --inject, "S[+S...]". Returns them in rising order.
std::vector<int64_t> parse_steps(const std::string& flag, const std::string& value) {
  std::vector<int64_t> steps;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = value.find('+', begin);
    steps.push_back(parse_integer(flag, value.substr(begin, end - begin), 0));
  }
  std::ranges::sort(steps);
  return steps;
}

void parse_injection(TrainOptions& options, const FlagValue& v) {
  const std::string &name = v.flag, &value = v.value;
  FaultInjection& injection = options.injection;
  using Fault = FaultInjection::Fault;
  using Phase = FaultInjection::Phase;
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
    } else if (key == "kind") {
      injection.kind = static_cast<FaultInjection::Kind>(parse_choice(path, what, kind_words));
    } else if (key == "at" || key == "bit") {
      (key == "at" ? injection.at : injection.bit) = parse_integer(path, what, 0);
    } else {
      raise<ConfigError>("{}: expected rank, step, fault, phase, kind, at and bit, got '{}'", name,
                         key);
    }
  }
  const bool has_step = given.count("step") > 0, wants_step = injection.phase != Phase::init;
  if (!given.count("rank") || !given.count("fault") || has_step != wants_step)
    throw ConfigError(name + ": expected rank=R,step=S,fault=F[,phase=P], or rank=R,fault=F," +
                      "phase=init, got '" + value + "'");
  const bool has_phase = injection.phase != Phase::begin;
  if ((injection.fault == Fault::infinity || injection.fault == Fault::flip) && has_phase)
    raise<ConfigError>("{}: expected fault={} without a phase, got '{}'", name,
                       fault_words[static_cast<size_t>(injection.fault) - 1], value);
  for (const char* key : {"kind", "at", "bit"})
    if (given.contains(key) && injection.fault != Fault::flip)
      raise<ConfigError>("{}: expected {} with fault=flip, got '{}'", name, key, value);
}

void parse_gradients(TrainOptions& options, const FlagValue& v) {
  const size_t colon = v.value.rfind(':');
  const bool has_step = colon != std::string::npos && colon + 1 < v.value.size() &&
                        v.value.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  options.dump_gradients = has_step ? v.value.substr(0, colon) : v.value;
  options.dump_gradients_step = has_step ? parse_integer(v.flag, v.value.substr(colon + 1), 0) : 0;
  if (options.dump_gradients.empty())
    raise<ConfigError>("{}: expected a path, got '{}'", v.flag, v.value);
}

StepRange step_range(const FlagValue& v, const std::string& steps) {
  const size_t colon = steps.find(':');
  if (colon == std::string::npos)
    raise<ConfigError>("{}: expected FIRST:COUNT such as 10:3, got '{}'", v.flag, v.value);
  const int64_t first = parse_integer(v.flag, steps.substr(0, colon), 0, largest_count);
  return {first, first + parse_integer(v.flag, steps.substr(colon + 1), 1, largest_count)};
}
void parse_trace_steps(TrainOptions& options, const FlagValue& v) {
  options.trace_steps = step_range(v, v.value);
}
void parse_audit_ops(TrainOptions& options, const FlagValue& v) {
  const size_t end = std::min(v.value.find(':', v.value.find(':') + 1), v.value.size());
  const StepRange steps = step_range(v, v.value.substr(0, end));
  options.audit.first_op_step = steps.first;
  options.audit.end_op_step = steps.end;
  options.audit.tensor = v.value.substr(std::min(end + 1, v.value.size()));
  unsigned rank = 0, number = 0;
  int length = 0;
  if (!options.audit.tensor.empty() &&
      (std::sscanf(options.audit.tensor.c_str(), "%u/%*[^/]/%u%n", &rank, &number, &length) != 2 ||
       length != static_cast<int>(options.audit.tensor.size())))
    raise<ConfigError>("{}: expected an output RANK/TRACK/NUMBER such as 0/compute/17, got '{}'",
                       v.flag, options.audit.tensor);
}

FlagRow compared_row() {
  FlagRow row = path_row({"--compare-metrics"}, "F[,F...]", PathUse::reads,
                         "files of --metrics of up to four earlier runs, which --report draws\n"
                         "beside this one");
  row.paths = [](const std::string& value) { return used(PathUse::reads, paths_in(value)); };
  return row;
}

void parse_report_to(TrainOptions& options, const FlagValue& v) {
  for (const char* service : {"wandb", "comet_ml", "clearml", "mlflow", "aim"})
    if (v.value == service)
      raise<Unsupported>(
          "{} {}: this version reports to files alone; try {} tensorboard, or --metrics F for a "
          "JSON line per step",
          v.flag, v.value, v.flag);
  parse_choice(v.flag, v.value, {"tensorboard", "all", "none"});
  options.tracking.service = v.value;
}

void parse_report_name(TrainOptions& options, const FlagValue& v) {
  if (v.value.empty() || v.value.find('/') != std::string::npos || v.value.starts_with("."))
    raise<ConfigError>("{}: expected the name of a folder in --output-dir, without '/', got '{}'",
                       v.flag, printable(v.value));
  options.tracking.name = v.value;
}

FlagRow autotuning_row() {
  return parsed_row(
      {"--autotuning"}, "run|tune|off",
      "run: find a fast setting as zerograd tune does, write it to tuned.json, train\n"
      "with it; tune: do not train; off: neither, even if a config enables it [off]",
      [](TrainOptions& options, const FlagValue& v) {
        const size_t choice = parse_choice(v.flag, v.value, {"run", "tune", "off"});
        options.autotuning = choice == 2 ? "" : v.value;
      });
}

FlagRow gradients_row() {
  FlagRow row = parsed_row({"--dump-gradients"}, "F[:STEP]",
                           "gradients of a step as safetensors [step 0]", parse_gradients);
  row.use = PathUse::writes;
  return row;
}

// A resumed run takes the dtype of gradient accumulators from its checkpoint only if the precision
// is the same, because another precision has another default.
bool same_precision(const TrainOptions& now, const RunSpec& saved) {
  return now.precision() == saved.precision();
}

// Parses Lightning's flag for stage and offload. Help does not list it.
void parse_strategy(TrainOptions& options, const FlagValue& v) {
  const std::string stage = "deepspeed_stage_";
  const size_t choice =
      parse_choice(v.flag, v.value,
                   {"ddp", stage + "1", stage + "2", stage + "3", stage + "1_offload",
                    stage + "2_offload", stage + "3_offload"});
  options.offload.cpu_offload = options.offload.cpu_offload || choice > 3;
  options.engine.stage = static_cast<int>(choice > 3 ? choice - 3 : choice);
}

bool is_stage_3(const TrainOptions& now, const RunSpec&) { return now.engine.stage == 3; }

Fields rank_fields() {
  return {
      {ZG_AT(ranks), integer_row({"--ranks", "--gpus", "--num-gpus"},
                                 "ranks on all axes together: threads of this process, or, under\n"
                                 "mpirun -np N, processes; then the flag may be left out",
                                 {1, nullptr})},
      {ZG_AT(data_ranks), may_change("run.ranks", extent)},
      {ZG_AT(engine.stage),
       choice_row({"--zero-stage"}, {"0", "1", "2", "3"},
                  "data that is partitioned over the ranks: 0 gradient accumulators, 1 and\n"
                  "2 also master weights and moments, 3 also parameters"),
       kept("run.stage", zero_stage).unless({"--strategy"}),
       Config::stage,
       {"--zero-stage", "--strategy"}},
      {ZG_AT(engine.stage), parsed_row({"--strategy"}, "S", "", parse_strategy)},
      {ZG_AT(engine.reduce_bucket_size),
       integer_row({"--reduce-bucket-size"}, "largest reduction of gradients, in elements",
                   {1, nullptr}),
       not_stored, Config::reduce_bucket_size},
      {ZG_AT(engine.prefetch_bucket_size),
       integer_row({"--prefetch-bucket-size"},
                   "stage 3: units that are gathered ahead have at most N elements together;\n"
                   "with 0, or with --overlap-comm off, no unit is gathered ahead"),
       not_stored, Config::prefetch_bucket_size},
      {ZG_AT(engine.prefetch_units),
       integer_row({"--prefetch-units"},
                   "stage 3: at most N units are gathered ahead; more units hide the latency of\n"
                   "small ones, and take memory",
                   {1, nullptr})},
      {ZG_AT(engine.param_persistence_threshold),
       integer_row({"--param-persistence-threshold"},
                   "stage 3: parameters of at most N elements stay whole on every rank"),
       not_stored, Config::param_persistence_threshold},
      {ZG_AT(engine.overlap_comm),
       on_off_row({"--overlap-comm"}, "communicate while computing; =off turns it off [on]"),
       not_stored, Config::overlap_comm},
      {ZG_AT(engine.reduce_at_boundary),
       switch_row({"--reduce-at-boundary"},
                  "stages 0 and 1: reduce once a step; bits then depend on the ranks"),
       kept("run.reduce_at_boundary").in_audit(AuditPart::settings)},
      {ZG_AT(engine.nccl_reduce),
       switch_row({"--nccl-reduce"},
                  "GPUs with NCCL: NCCL adds gradients in its own order and rounding;\n"
                  "bits then depend on the ranks and the machine"),
       kept("run.nccl_reduce").in_audit(AuditPart::settings)},
      {ZG_AT(engine.grad_accum),
       choice_row({"--grad-accum-dtype"}, {"f32", "bf16"}, "dtype of gradient accumulators",
                  "f32; of fsdp-memory bf16"),
       kept("run.grad_accum").when(same_precision).in_audit(AuditPart::settings),
       Config::grad_accum_dtype},
      {ZG_AT(comm_timeout_s),
       number_row({"--comm-timeout"}, timeout,
                  "seconds to wait for a rank at a collective before the run ends (exit 4)")},
      {ZG_AT(dump_collectives),
       switch_row({"--dump-collectives"},
                  "after a failure: each rank's last 64 collectives on stderr, with\n"
                  "step, state and times")},
      {ZG_AT(injection),
       parsed_row({"--inject"}, "FAULT",
                  "inject a fault: rank=R,step=S[+S...],fault=F[,phase=P]; F:\n" +
                      join(fault_words, "|") + ";\nP: " + join(phase_words, "|") +
                      " [the step's begin]; init has no step;\nof flip kind=K,at=N,bit=B; K:\n" +
                      join(kind_words, "|") +
                      ";\nN: a parameter and its element, or the number of an output in the step",
                  parse_injection),
       by_tune},
  };
}

Fields axes_fields() {
  return {
      {ZG_AT(axes.tensor),
       integer_row({"--tensor-parallel", "--tensor-model-parallel-size"},
                   "ranks that divide each layer's heads and columns; --ranks divided by\n"
                   "tensor and pipeline ranks is the number of ranks that divide the data",
                   {1, nullptr}),
       may_change("run.tensor_parallel", extent)},
      {ZG_AT(axes.pipeline),
       integer_row({"--pipeline-parallel", "--pipeline-model-parallel-size"},
                   "pipeline stages that divide the layers", {1, nullptr}),
       may_change("run.pipeline_parallel", extent)},
      {ZG_AT(axes.schedule),
       choice_row({"--schedule-pipeline"}, {"1f1b", "gpipe"},
                  "the order of a stage's micro-batches; the bits are the same")},
      {ZG_AT(axes.sequence_parallel),
       switch_row({"--sequence-parallel"},
                  "tensor ranks also divide the tokens in norms and dropout"),
       may_change("run.sequence_parallel")},
      {ZG_AT(axes.reduction_groups),
       integer_row({"--reduction-groups"},
                   "the parts whose sums tensor ranks add up, in a tree: a power of two; every\n"
                   "--tensor-parallel that divides it gives the same bits; 0: one for each rank",
                   {0, nullptr}, 1024),
       must_equal("run.reduction_groups", Between{0, 1024}).sparse().in_audit(AuditPart::settings)},
  };
}

Fields offload_fields() {
  return {
      {ZG_AT(engine.offload.optimizer),
       choice_row({"--offload-optimizer"}, {"none", "host", "nvme"},
                  "where optimizer states are stored and updated"),
       kept("run.offload_optimizer").unless_config_sets("--zero-stage"), Config::offload_optimizer},
      {ZG_AT(engine.offload.optimizer_ratio),
       number_row({"--offload-optimizer-ratio"}, share,
                  "share of the optimizer states that is offloaded; the rest stays on the device")},
      {ZG_AT(engine.offload.gradient),
       choice_row({"--offload-gradients"}, {"none", "host", "nvme"},
                  "where gradient accumulators are stored"),
       kept("run.offload_gradient").unless_config_sets("--zero-stage"), Config::offload_gradients},
      {ZG_AT(engine.offload.parameter),
       choice_row({"--offload-param"}, {"none", "host", "nvme"},
                  "stage 3: where idle parameters are stored"),
       kept("run.offload_parameter").unless_config_sets("--zero-stage").when(is_stage_3),
       Config::offload_parameters},
      {ZG_AT(engine.offload.activation),
       choice_row({"--offload-activations"}, {"none", "host", "nvme"},
                  "where saved activations are stored"),
       kept("run.offload_activation").unless_config_sets("--zero-stage"),
       Config::offload_activations},
      {ZG_AT(engine.offload.speculation),
       size_row({"--speculation"},
                "cpu: bytes of each rank for copies of offloaded optimizer states, which are\n"
                "updated during backward, before the gradients' norm is known; 0: none.\n"
                "It helps with states on nvme; with states on the host it costs time"),
       kept("run.speculation", any_count).sparse()},
      {ZG_AT(offload.nvme_path),
       path_row({"--nvme-path"}, "DIR", PathUse::watches,
                "folder for data on nvme: a file without a name, gone when the run ends"),
       not_stored, Config::nvme_path},
      {ZG_AT(offload.cpu_offload),
       switch_row({"--cpu-offload"},
                  "store optimizer and gradients on the host, at stage 3 parameters too")},
  };
}

Fields place_fields() {
  return {
      {ZG_AT(device_flags.type),
       made_row([](TrainOptions& o) { return device_flag(o.device_flags.type); })},
      {ZG_AT(device_flags.type),
       made_row([](TrainOptions& o) { return use_hpu_flag(o.device_flags.type); })},
      {ZG_AT(device_flags.device.threads),
       integer_row({"--threads"},
                   "threads for kernels, of each rank; 0: ZG_NUM_THREADS, OMP_NUM_THREADS or\n"
                   "its share of the cores",
                   {}, 4096)},
      {ZG_AT(bits),
       choice_row({"--bits"}, {"portable", "fast"},
                  "portable: the CPU gives the same bits on every processor; fast: bf16 may use\n"
                  "AMX, which has other bits"),
       kept("run.bits").sparse().in_audit(AuditPart::settings)},
      {ZG_AT(device_flags.device.memory_limit),
       size_row({"--device-memory"},
                "cap on each device's bytes, 0: none; beyond it OutOfMemory (exit 3)")},
      {ZG_AT(device_flags.device.host_limit),
       size_row({"--host-memory"}, "cap on each rank's pinned and host bytes together, 0: none")},
      {ZG_AT(matmul_algorithms),
       path_row({"--matmul-algorithms"}, "F", PathUse::reads,
                "cuda: multiply by the algorithms of cuBLASLt in this file, which zerograd\n"
                "bench matmul-algorithms wrote; another file may round differently"),
       by_plan},
      {ZG_AT(matmul_checksum),
       may_change("run.matmul_algorithms").sparse().in_audit(AuditPart::settings)},
  };
}

Fields output_fields() {
  return {
      {ZG_AT(log_interval),
       integer_row({"--log-interval", "--logging-steps"},
                   "steps between loss lines, fewer in a run below 1000 steps; 0: none")},
      {ZG_AT(eval_interval),
       integer_row({"--eval-interval"}, "steps between validations", {0, "none"})},
      {ZG_AT(eval_batches), integer_row({"--eval-batches", "--eval-iters"},
                                        "micro-batches of a validation; 0: the whole split")},
      {ZG_AT(sample_interval),
       integer_row({"--sample-interval"}, "steps between samples of text from the model",
                   {0, "none"})},
      {ZG_AT(score_samples),
       integer_row({"--score-samples"},
                   "sort and adder: problems of each split to score at the end")},
      {ZG_AT(metrics), path_row({"--metrics"}, "F", PathUse::writes, "a JSON line per step"),
       by_plan},
      {ZG_AT(audit.path),
       path_row({"--audit"}, "F", PathUse::writes,
                "an audit trail: a JSON line per step, in a chain of hashes, equal for\n"
                "every layout; zerograd audit checks, compares and replays it")},
      {ZG_AT(audit.interval),
       integer_row({"--audit-interval"}, "steps between hashes of the parameters in --audit",
                   {1, nullptr})},
      {ZG_AT(audit.first_op_step),
       parsed_row({"--audit-ops"}, "FIRST:COUNT[:OUTPUT]",
                  "steps in which --audit has a hash of each tensor that a kernel or a\n"
                  "collective writes, by rank, and all bytes of OUTPUT, such as\n"
                  "0/compute/17 [none]",
                  parse_audit_ops),
       by_plan},
      {ZG_AT(tensorboard),
       path_row({"--tensorboard-dir"}, "DIR", PathUse::adds,
                "a file of events for TensorBoard, under Megatron's tags"),
       by_plan},
      {ZG_AT(report),
       path_row({"--report"}, "F", PathUse::writes,
                "a page of the run, HTML: loss, rate, norm, throughput, memory, settings;\n"
                "with --metrics a resumed run's page has the steps before it, too")},
      {ZG_AT(compared_metrics), compared_row(), by_plan},
      {ZG_AT(trace),
       path_row({"--trace"}, "F", PathUse::writes,
                "a Chrome trace (Perfetto opens it) of some steps: each rank's kernels,\n"
                "collectives, copies, waits and memory; written when they are done"),
       by_plan},
      {ZG_AT(trace_steps),
       parsed_row({"--trace-steps"}, "FIRST:COUNT",
                  "steps that --trace records [3 after 2 of warm-up]", parse_trace_steps),
       by_plan},
      {ZG_AT(dump_memory),
       switch_row({"--dump-memory"}, "a Markdown table of memory per phase and step"), not_stored,
       Config::memory_breakdown},
      {ZG_AT(explain_settings),
       switch_row({"--explain-settings"},
                  "print each setting with its value and where it comes from, and end")},
      {ZG_AT(memory_json), path_row({"--memory-json"}, "F", PathUse::writes,
                                    "memory of all ranks in bytes; plan writes the same JSON")},
      {ZG_AT(kernels),
       path_row({"--kernels"}, "F", PathUse::writes,
                "JSON of each kernel's launches, bytes and operations on rank 0 in\n"
                "the second step: per_micro_batch (its last micro-batch) and per_step")},
      {ZG_AT(dump_gradients), gradients_row()},
      {ZG_AT(progress), choice_row({"--progress"}, {"auto", "on", "off"},
                                   "one redrawn line on stderr; auto: on a terminal")},
      {ZG_AT(tracking.enabled), switch_row({"--with-tracking"}, "")},
      {ZG_AT(tracking.service),
       parsed_row({"--report-to"}, "tensorboard|all|none", "", parse_report_to)},
      {ZG_AT(tracking.name), parsed_row({"--report-name"}, "NAME", "", parse_report_name)},
  };
}

Fields checkpoint_fields() {
  return {
      {ZG_AT(save),
       path_row({"--save", "--output-dir"}, "DIR", PathUse::adds,
                "write DIR/step_N at the end and when interrupted; a directory\n"
                "without another run's checkpoints"),
       by_plan},
      {ZG_AT(save_interval),
       integer_row({"--save-interval"},
                   "save also every N steps; without --save: in the folder checkpoints", {1, ""})},
      {ZG_AT(save_top_k),
       integer_row({"--save-top-k"},
                   "keep the N checkpoints of lowest loss, and the newest; -1: all", {-1, "1"}),
       kept("run.save_top_k", top_k)},
      {ZG_AT(async_save),
       switch_row({"--async-save"},
                  "write the checkpoints of --save-interval while training goes on; a step\n"
                  "waits until the data that it overwrites has been read"),
       not_stored, Config::async_save},
      {ZG_AT(resume), made_row([](TrainOptions& o) {
         return checkpoint_flag(
             {"--resume", "--load"}, "DIR|auto", o.resume,
             "continue from DIR's newest checkpoint or a step_N; auto: from the newest in\n"
             "--save or checkpoints, if any. Settings without a flag come from the\ncheckpoint");
       })},
      {ZG_AT(exit_interval),
       integer_row({"--exit-interval"},
                   "save and end after each N steps, so that several jobs make one run; 0: never"),
       by_plan},
      {ZG_AT(kill_switch),
       path_row({"--kill-switch-path"}, "F", PathUse::watches,
                "save and end after the step in which a file of this name appears"),
       by_plan},
      {ZG_AT(universal_checkpoint), switch_row({"--universal-checkpoint"}, ""), by_plan},
      {ZG_AT(max_restarts),
       integer_row({"--max-restarts"},
                   "restart after a failure, at most N times, from the newest checkpoint in\n"
                   "--save; not after a signal, nor after an error that would occur again"),
       by_plan},
      {ZG_AT(restarted), integer_row({"--restarted"}, "", {0, ""})},
      // The position of the run; no option sets it.
      {ZG_AT(samples), always(unchecked("position.samples", any_count))},
      {ZG_AT(skipped_samples), unchecked("position.skipped_samples", any_count)},
      {ZG_AT(loss), always(unchecked("position.loss", AnyNumber{}))},
  };
}

}  // namespace

std::vector<std::string> paths_in(const std::string& list) {
  std::vector<std::string> paths;
  std::istringstream text(list);
  for (std::string path; std::getline(text, path, ',');) paths.push_back(path);
  return paths;
}

const std::vector<FieldGroup>& field_groups() {
  static const std::vector<FieldGroup> groups = {
      {"config", config_fields()},
      {"data and model", data_fields()},
      {"", model_fields()},
      {"conversations, of decoders", conversation_fields()},
      {"pairs, of encoder-decoder models", seq2seq_fields()},
      {"batch and length", length_fields()},
      {"optimisation", schedule_fields()},
      {"", config_only_fields()},
      {"", optimisation_fields()},
      {"adapters, LoRA", lora_fields()},
      {"ranks", rank_fields(), never, AuditPart::layout},
      {"axes", axes_fields(), never, AuditPart::layout},
      {"offload", offload_fields(), never, AuditPart::layout},
      {"place", place_fields(), never, AuditPart::layout},
      {"output", output_fields(), by_tune, AuditPart::none},
      {"checkpoints", checkpoint_fields(), by_tune, AuditPart::none},
      {"tuning",
       {{ZG_AT(autotuning), autotuning_row(), not_stored, Config::autotuning, {}, by_plan}},
       by_tune}};
  return groups;
}

FlagRow made_row(Flag (*make)(TrainOptions&)) {
  TrainOptions example;  // for the names, which do not depend on it
  return {.names = make(example).names, .make = make};
}

}  // namespace zg::tools
