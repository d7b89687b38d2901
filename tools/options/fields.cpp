#include "tools/options/field_rows.h"
#include "tools/options/model_flags.h"
#include "tools/options/train_flags.h"

namespace zg::tools {
namespace {

Fields config_fields(ConfigOptions& config) {
  return {
      {path_flag({"--config", "--deepspeed-config"}, "F", config.path, PathUse::reads,
                 "DeepSpeed's config F.json or accelerate's F.yaml, as it is;\n"
                 "flags that are given override it")},
      {choice_flag({"--compat"}, config.compat, {"0.19", "0.16"},
                   "the DeepSpeed whose defaults fill a config")},
      {switch_flag({"--lenient"}, config.lenient, "warn of a config's unknown keys and go on")},
  };
}

Fields data_fields(DataOptions& now, RunSpec& saved) {
  DataOptions& was = saved.data;
  return {
      {source_flag(now), kept({10, "data.source", always}, now.source, was.source).as_path()},
      {choice_flag({"--order"}, now.order, {"random", "sequential"}, "of training samples"),
       kept({11, "data.order", always}, now.order, was.order)},
      {validation_fraction_flag(now),
       kept({12, "data.validation_fraction", always}, now.validation_fraction,
            was.validation_fraction, below_one)},
      {split_flag(now), kept({13, "data.split"}, now.split, was.split, split_weight)},
      {tokenizer_flag(now), kept({14, "data.tokenizer"}, now.tokenizer, was.tokenizer).as_path()},
      {no_flag, may_change({15, "data.tokenizer_checksum"}, &was.tokenizer_checksum)},
      // Not compared here: characters and file are compared when the data is read.
      {no_flag, unchecked({16, "data.characters", always}, &saved.characters)},
      {no_flag, unchecked({17, "data.bytes"}, &saved.contents.bytes, any_count)},
      {no_flag, unchecked({18, "data.checksum"}, &saved.contents.checksum)},
      {no_flag,
       unchecked({142, "data.validation_bytes"}, &saved.validation_contents.bytes, any_count)},
      {no_flag, unchecked({143, "data.validation_checksum"}, &saved.validation_contents.checksum)},
      {no_flag, may_change({19, "data.bos_token"}, &saved.special_tokens.bos, token_id)},
      {no_flag, may_change({20, "data.eos_tokens"}, &saved.special_tokens.eos, token_id)},
      {no_flag, may_change({21, "data.pad_token"}, &saved.special_tokens.pad, token_id)},
  };
}

Fields length_fields(TrainOptions& options, RunSpec& saved) {
  // Older checkpoints do not store the step at which their run ends.
  const auto has_length = [&saved] { return saved.steps > 0; };
  BatchOptions& batch = options.batch;
  return {
      // adopt() divides the batch again, for the number of ranks.
      {integer_flag({"--batch-size", "--per-device-train-batch-size", "--micro-batch-size", "-b"},
                    batch.micro, "samples in a micro-batch", {1, "64, conversations 8"}),
       may_change({22, "run.micro_batch"}, &saved.micro_batch, extent), Config::micro_batch},
      {integer_flag({"--grad-accum", "--gradient-accumulation-steps"}, batch.accumulation,
                    "micro-batches in a step", {1, "1"}),
       may_change({23, "run.accumulation"}, &saved.accumulation, extent), Config::accumulation},
      {rampup_flag(batch.rampup),
       kept({28, "run.rampup_start"}, batch.rampup.start, saved.rampup.start, count)},
      {no_flag,
       kept({29, "run.rampup_increment"}, batch.rampup.increment, saved.rampup.increment, count)
           .unless({"--rampup-batch-size"})},
      {no_flag, kept({30, "run.rampup_samples"}, batch.rampup.samples, saved.rampup.samples, count)
                    .unless({"--rampup-batch-size"})},
      // 0 is accepted here; the batch solver's error explains it together with the other two flags.
      {integer_flag({"--train-batch-size", "--global-batch-size"}, batch.train,
                    "samples in a step = batch-size x grad-accum x ranks", {0, ""}),
       not_stored, Config::train_batch},
      {integer_flag({"--steps", "--train-iters"}, options.steps,
                    "optimizer steps, counted from step 0 also when resuming", {0, nullptr}),
       kept({82, "run.steps"}, options.steps, saved.steps, any_count)
           .unless({"--epochs", "--train-samples"})
           .when(has_length)},
      {integer_flag({"--train-samples"}, options.train_samples,
                    "samples, instead of --steps: the last step is the last that does not go "
                    "beyond",
                    {1, ""}),
       kept({84, "run.train_samples"}, options.train_samples, saved.train_samples, any_count)
           .unless({"--steps", "--epochs"})
           .when(has_length)},
      {number_flag({"--epochs", "--num-train-epochs"}, options.epochs, some_epochs,
                   "passes over the training data, instead of --steps; at the end their average "
                   "time and peak",
                   ""),
       kept({83, "run.epochs"}, options.epochs, saved.epochs, epoch_count)
           .unless({"--steps", "--train-samples"})
           .when(has_length)},
      {epoch_limit_flag(options.epoch_limit)},
      loss_mean_field(options.loss_mean, saved.loss_mean),
      {integer_flag({"--max-bad-steps"}, options.max_bad_steps,
                    "skipped steps or infinite losses in a row that end the run; 0: never")},
  };
}

Fields schedule_fields(TrainOptions& options, RunSpec& saved) {
  zero::ScheduleOptions &now = options.optimisation.schedule, &was = saved.optimisation.schedule;
  zero::AnnealingOptions &decay = now.annealing, &decayed = was.annealing;
  const auto same_kind = [&now, &was] { return now.kind == was.kind; };
  return {
      {number_flag({"--lr", "--learning-rate"}, now.rate, positive,
                   "learning rate, the highest where a schedule moves it"),
       kept({32, "run.rate"}, now.rate, was.rate, not_negative), Config::rate},
      {schedule_flag(now),
       kept({33, "run.schedule"}, now.kind, was.kind).unless({"--lr-scheduler-type"}),
       Config::schedule,
       {"--schedule", "--lr-scheduler-type", annealing_flags[0], annealing_flags[1],
        annealing_flags[2]}},
      {lr_scheduler_flag(now)},
      {text_flag({"--lr-scheduler-kwargs"}, "JSON", now.lr_scheduler_kwargs,
                 "its numbers, such as {\"num_decay_steps\": 100}"),
       kept({145, "run.lr_scheduler_kwargs"}, now.lr_scheduler_kwargs, was.lr_scheduler_kwargs)
           .sparse()},
      {warmup_steps_flag(options),
       kept({34, "run.warmup_steps"}, now.warmup_num_steps, was.warmup_num_steps, any_count)
           .unless({"--warmup-ratio"})
           .when(same_kind),
       Config::warmup_steps,
       {"--warmup-steps", "--warmup-ratio"}},
      {number_flag({"--warmup-ratio"}, options.warmup_ratio, share,
                   "the same, as a share of the run's steps", "")},
      {choice_flag({"--lr-decay-style"}, decay.lr_decay_style, {"linear", "cosine", "constant"},
                   "the rate by samples, as Megatron: linearly up from 0 in\n"
                   "--lr-warmup-samples, then down to --min-lr at --lr-decay-samples"),
       kept({43, "run.decay_style"}, decay.lr_decay_style, decayed.lr_decay_style)},
      {integer_flag({"--lr-warmup-samples"}, decay.lr_warmup_samples, "until the highest rate"),
       kept({41, "run.warmup_samples"}, decay.lr_warmup_samples, decayed.lr_warmup_samples,
            any_count)},
      // If the decay ended with the run, it ends with the resumed run, too.
      {integer_flag({"--lr-decay-samples"}, decay.lr_decay_samples,
                    "until the lowest, counted from the first", {1, "--train-samples"}),
       kept({42, "run.decay_samples"}, decay.lr_decay_samples, decayed.lr_decay_samples, any_count)
           .when([&options, &saved, &decayed] {
             return options.train_samples == 0 || decayed.lr_decay_samples != saved.train_samples;
           })},
      {number_flag({"--min-lr"}, now.min_rate, not_negative,
                   "the lowest rate, of --lr-decay-style and of --schedule cosine"),
       kept({40, "run.min_rate"}, now.min_rate, was.min_rate, not_negative)},
  };
}

// Only a config sets these fields. A config sets all of them, so a run with a config takes none of
// them from its checkpoint.
Fields fields_without_flags(OptimisationOptions& options, RunSpec& saved) {
  zero::ScheduleOptions &now = options.schedule, &was = saved.optimisation.schedule;
  zero::RangeTestOptions &test = now.range_test, &tested = was.range_test;
  zero::OneCycleOptions &cycle = now.one_cycle, &cycled = was.one_cycle;
  zero::Config &engine = options.engine, &engine_was = saved.optimisation.engine;
  zero::UpdateOptions &update = engine.update, &updated = engine_was.update;
  zero::LossScaleOptions &scale = engine.loss_scaling, &scaled = engine_was.loss_scaling;
  // If the end of the schedule differs from the end of the run, a config has set it.
  const auto own_end = [&now, &was, &saved] {
    return now.kind == was.kind && zero::decays(now.kind) && saved.steps > 0 &&
           was.total_num_steps != saved.steps;
  };
  const std::vector<Stored> schedule = {
      kept({36, "run.warmup_type"}, now.warmup_type, was.warmup_type),
      kept({37, "run.warmup_min_rate"}, now.warmup_min_lr, was.warmup_min_lr, not_negative),
      kept({38, "run.warmup_min_ratio"}, now.warmup_min_ratio, was.warmup_min_ratio, share),
      kept({39, "run.cosine_min_ratio"}, now.cos_min_ratio, was.cos_min_ratio, share),
      kept({44, "run.range_test_step_size"}, test.step_size, tested.step_size, any_size),
      kept({45, "run.range_test_step_rate"}, test.step_rate, tested.step_rate, finite),
      kept({46, "run.range_test_staircase"}, test.staircase, tested.staircase),
      kept({47, "run.cycle_min_rate"}, cycle.cycle_min_lr, cycled.cycle_min_lr, finite),
      kept({48, "run.cycle_decay_rate"}, cycle.decay_lr_rate, cycled.decay_lr_rate, finite),
      kept({49, "run.cycle_first_steps"}, cycle.cycle_first_step_size, cycled.cycle_first_step_size,
           any_count),
      kept({50, "run.cycle_second_steps"}, cycle.cycle_second_step_size,
           cycled.cycle_second_step_size, any_count),
      kept({51, "run.cycle_decay_steps"}, cycle.decay_step_size, cycled.decay_step_size, any_count),
      kept({52, "run.cycle_momentum"}, cycle.cycle_momentum, cycled.cycle_momentum),
      kept({53, "run.cycle_min_momentum"}, cycle.cycle_min_mom, cycled.cycle_min_mom, finite),
      kept({54, "run.cycle_max_momentum"}, cycle.cycle_max_mom, cycled.cycle_max_mom, finite),
      kept({55, "run.cycle_momentum_decay"}, cycle.decay_mom_rate, cycled.decay_mom_rate, finite)};
  std::vector<Stored> rows = {
      kept({35, "run.schedule_steps"}, now.total_num_steps, was.total_num_steps, any_count)
          .when(own_end),
      kept({61, "run.stochastic_rounding"}, update.stochastic_rounding,
           updated.stochastic_rounding),
      kept({68, "run.loss_scale"}, scale.loss_scale, scaled.loss_scale, not_negative),
      kept({69, "run.loss_scale_window"}, scale.window, scaled.window, any_size),
      kept({70, "run.hysteresis"}, scale.hysteresis, scaled.hysteresis, any_size),
      kept({71, "run.consecutive_hysteresis"}, scale.consecutive_hysteresis,
           scaled.consecutive_hysteresis),
      kept({72, "run.min_loss_scale"}, scale.min_loss_scale, scaled.min_loss_scale, positive)};
  for (Stored row : schedule)
    rows.push_back(std::move(row).when([&now, &was] { return now.kind == was.kind; }));
  Fields fields;
  for (Stored& row : rows) fields.push_back({no_flag, std::move(row).unless({"--config"})});
  return fields;
}

Fields optimisation_fields(TrainOptions& options, RunSpec& saved) {
  zero::Config &now = options.optimisation.engine, &was = saved.optimisation.engine;
  zero::UpdateOptions &update = now.update, &updated = was.update;
  zero::MuonOptions &muon = update.muon, &muon_was = updated.muon;
  zero::AdafactorOptions &factored = update.adafactor, &factored_was = updated.adafactor;
  const auto same_rule = [&update, &updated] { return update.rule == updated.rule; };
  return {
      {optimizer_flag(update), kept({111, "run.rule"}, update.rule, updated.rule),
       Config::optimizer},
      {no_flag,
       kept({60, "run.decoupled"}, update.decoupled, updated.decoupled).unless({"--optimizer"})},
      {number_flag({"--momentum", "--sgd-momentum"}, update.momentum, below_one,
                   "of sgd; 0: no momentum, and no memory for it"),
       kept({112, "run.momentum"}, update.momentum, updated.momentum, below_one).when(same_rule),
       Config::momentum},
      {no_flag, kept({113, "run.dampening"}, update.dampening, updated.dampening, share)
                    .unless({"--optimizer"})
                    .when(same_rule)},
      {switch_flag({"--nesterov"}, update.nesterov, "sgd: Nesterov's momentum"),
       kept({114, "run.nesterov"}, update.nesterov, updated.nesterov).when(same_rule),
       Config::nesterov},
      {number_flag({"--muon-momentum"}, muon.momentum, below_one, "of muon's matrices"),
       kept({115, "run.muon_momentum"}, muon.momentum, muon_was.momentum, below_one)
           .when(same_rule),
       Config::muon_momentum},
      {switch_flag({"--muon-nesterov"}, muon.nesterov,
                   "muon: Nesterov's momentum; =off turns it off [on]"),
       kept({116, "run.muon_nesterov"}, muon.nesterov, muon_was.nesterov).when(same_rule),
       Config::muon_nesterov},
      {muon_rate_flag(muon.rate),
       kept({117, "run.muon_rate"}, muon.rate, muon_was.rate).when(same_rule), Config::muon_rate},
      {number_flag({"--muon-adam-rate"}, muon.adam_rate, not_negative,
                   "of muon's AdamW, as a multiple of the learning rate"),
       kept({118, "run.muon_adam_rate"}, muon.adam_rate, muon_was.adam_rate, not_negative)
           .when(same_rule),
       Config::muon_adam_rate},
      {number_flag({"--adafactor-beta2-decay"}, factored.beta2_decay, not_positive,
                   "adafactor: step^X is the weight of a new gradient"),
       kept({120, "run.adafactor_beta2_decay"}, factored.beta2_decay, factored_was.beta2_decay,
            not_positive)
           .when(same_rule)},
      {number_flag({"--adafactor-eps1"}, factored.epsilon1, positive,
                   "adafactor: the least root of a second moment"),
       kept({121, "run.adafactor_epsilon1"}, factored.epsilon1, factored_was.epsilon1, positive)
           .when(same_rule)},
      {number_flag({"--adafactor-eps2"}, factored.epsilon2, not_negative,
                   "adafactor: the least root mean square of a parameter"),
       kept({122, "run.adafactor_epsilon2"}, factored.epsilon2, factored_was.epsilon2, not_negative)
           .when(same_rule)},
      {number_flag({"--adafactor-clip"}, factored.clip, from_one,
                   "adafactor: the largest root mean square of an update"),
       kept({123, "run.adafactor_clip"}, factored.clip, factored_was.clip, from_one)
           .when(same_rule)},
      {number_flag({"--weight-decay"}, update.weight_decay, not_negative,
                   "on matrices of linear layers"),
       kept({56, "run.weight_decay"}, update.weight_decay, updated.weight_decay, not_negative),
       Config::weight_decay},
      {parameter_groups_flag(update.groups),
       kept({119, "run.parameter_groups"}, update.groups, updated.groups)},
      {betas_flag(update)},
      {number_flag({"--adam-beta1"}, update.beta1, below_one, "", ""),
       kept({57, "run.beta1"}, update.beta1, updated.beta1, below_one).unless({"--betas"}),
       Config::beta1,
       {"--betas", "--adam-beta1"}},
      {number_flag({"--adam-beta2"}, update.beta2, below_one, "", ""),
       kept({58, "run.beta2"}, update.beta2, updated.beta2, below_one).unless({"--betas"}),
       Config::beta2,
       {"--betas", "--adam-beta2"}},
      {number_flag({"--adam-eps"}, update.epsilon, positive,
                   "adamw, adam, muon: added to the root of the second moment"),
       kept({59, "run.epsilon"}, update.epsilon, updated.epsilon, not_negative)
           .unless({"--config"}),
       Config::epsilon},
      {number_flag({"--clip", "--clip-grad"}, now.clip_norm, not_negative,
                   "largest gradient norm; 0: no clipping"),
       kept({62, "run.clip_norm"}, now.clip_norm, was.clip_norm, not_negative), Config::clip_norm},
      {precision_flag(options.optimisation),
       kept({63, "run.preset"}, options.optimisation.preset, saved.optimisation.preset),
       Config::precision},
      {no_flag, kept({64, "run.compute"}, now.compute, was.compute).unless({"--precision"})},
      {no_flag, kept({65, "run.load"}, now.load, was.load).unless({"--precision"})},
      {no_flag, kept({66, "run.optimizer"}, now.optimizer, was.optimizer).unless({"--precision"})},
      {initial_scale_flag(now.loss_scaling),
       kept({67, "run.initial_scale_power"}, now.loss_scaling.initial_scale_power,
            was.loss_scaling.initial_scale_power, exponent),
       Config::initial_scale_power},
      {switch_flag({"--activation-checkpoint", "--checkpoint-activations",
                    "--deepspeed-activation-checkpointing"},
                   options.activation_checkpoint,
                   "keep each block's input only and compute the rest again"),
       not_stored, Config::activation_checkpoint},
      {checkpoint_flag({"--init"}, "F", options.initial_weights,
                       "weights from a safetensors file or a checkpoint")},
      {path_flag({"--from-hf", "--model-name-or-path"}, "DIR", options.from_hf, PathUse::reads,
                 "a model of Hugging Face's transformers: config.json says which,\n"
                 "model.safetensors has its weights; --block-size may take fewer positions,\n"
                 "a text is read by its tokenizer")},
      {seed_flag(options.seed, "of initial weights, data and dropout"),
       kept({81, "run.seed"}, options.seed, saved.seed, any_seed)},
  };
}

Fields rank_fields(TrainOptions& options, RunSpec& saved) {
  zero::Config &now = options.optimisation.engine, &was = saved.optimisation.engine;
  return {
      {integer_flag({"--ranks", "--gpus", "--num-gpus"}, options.ranks,
                    "ranks of all axes: threads of this process, or processes where\n"
                    "mpirun -np N starts them; then it may be left out",
                    {1, nullptr}),
       may_change({24, "run.ranks"}, &saved.data_ranks, extent)},
      {stage_flag(now),
       kept({73, "run.stage"}, now.stage, was.stage, zero_stage).unless({"--strategy"}),
       Config::stage,
       {"--zero-stage", "--strategy"}},
      {strategy_flag(now, options.offload)},
      {integer_flag({"--reduce-bucket-size"}, now.reduce_bucket_size,
                    "largest reduction of gradients, elements", {1, nullptr}),
       not_stored, Config::reduce_bucket_size},
      {integer_flag({"--prefetch-bucket-size"}, now.prefetch_bucket_size,
                    "stage 3: units of at most so many elements in all are gathered ahead,\n"
                    "--prefetch-units at most; with --overlap-comm off none is"),
       not_stored, Config::prefetch_bucket_size},
      {integer_flag({"--prefetch-units"}, now.prefetch_units,
                    "stage 3: at most so many units are gathered ahead; more hide the latency of\n"
                    "small units, and take memory",
                    {1, nullptr}),
       not_stored},
      {integer_flag({"--param-persistence-threshold"}, now.param_persistence_threshold,
                    "stage 3: parameters of at most so many elements stay whole"),
       not_stored, Config::param_persistence_threshold},
      {overlap_flag(now.overlap_comm), not_stored, Config::overlap_comm},
      {switch_flag({"--reduce-at-boundary"}, now.reduce_at_boundary,
                   "stages 0 and 1: reduce once a step; bits then depend on the ranks"),
       kept({79, "run.reduce_at_boundary"}, now.reduce_at_boundary, was.reduce_at_boundary)},
      {switch_flag({"--nccl-reduce"}, now.nccl_reduce,
                   "inexact, GPUs with NCCL: gradients are summed in its order and\n"
                   "rounding; bits then depend on the ranks and the machine"),
       kept({80, "run.nccl_reduce"}, now.nccl_reduce, was.nccl_reduce)},
      // Another precision has its own dtype for gradient accumulators.
      {accumulator_flag(now.grad_accum),
       kept({78, "run.grad_accum"}, now.grad_accum, was.grad_accum).when([&options, &saved] {
         return options.optimisation.precision() == saved.optimisation.precision();
       }),
       Config::grad_accum_dtype},
      {number_flag({"--comm-timeout"}, options.comm_timeout_s, timeout,
                   "seconds until a rank that stays away ends the run (exit 4)")},
      {switch_flag({"--dump-collectives"}, options.dump_collectives,
                   "after a failure: each rank's last 64 collectives on stderr, with\n"
                   "step, state and times")},
      {injection_flag(options.injection)},
  };
}

Fields axes_fields(Axes& axes, Axes& saved) {
  return {
      {integer_flag({"--tensor-parallel", "--tensor-model-parallel-size"}, axes.tensor,
                    "ranks that share each layer's heads and columns; what remains of the\n"
                    "ranks shares the data",
                    {1, nullptr}),
       may_change({25, "run.tensor_parallel"}, &saved.tensor, extent)},
      {integer_flag({"--pipeline-parallel", "--pipeline-model-parallel-size"}, axes.pipeline,
                    "stages that share the layers", {1, nullptr}),
       may_change({26, "run.pipeline_parallel"}, &saved.pipeline, extent)},
      {choice_flag({"--schedule-pipeline"}, axes.schedule, {"1f1b", "gpipe"},
                   "the order of a stage's micro-batches; the bits are the same")},
      {switch_flag({"--sequence-parallel"}, axes.sequence_parallel,
                   "tensor ranks also share the tokens of norms and dropout"),
       may_change({27, "run.sequence_parallel"}, &saved.sequence_parallel)},
  };
}

Fields offload_fields(OffloadFlags& offload, zero::Config& engine, zero::OffloadOptions& was) {
  zero::OffloadOptions& now = engine.offload;
  return {
      {offload_flag("--offload-optimizer", now.optimizer,
                    "where moments and masters are, and are updated [none]"),
       kept({76, "run.offload_optimizer"}, now.optimizer, was.optimizer).unless({"--config"}),
       Config::offload_optimizer},
      {offload_flag("--offload-gradients", now.gradient, "where sums of gradients are [none]"),
       kept({75, "run.offload_gradient"}, now.gradient, was.gradient).unless({"--config"}),
       Config::offload_gradients},
      {offload_flag("--offload-param", now.parameter,
                    "stage 3: where values are between their uses [none]"),
       kept({74, "run.offload_parameter"}, now.parameter, was.parameter)
           .unless({"--config"})
           .when([&engine] { return engine.stage == 3; }),
       Config::offload_parameters},
      {offload_flag("--offload-activations", now.activation,
                    "where what backward needs is until then [none]"),
       kept({77, "run.offload_activation"}, now.activation, was.activation).unless({"--config"}),
       Config::offload_activations},
      {path_flag({"--nvme-path"}, "DIR", offload.nvme_path, PathUse::watches,
                 "where nvme is: a file without a name, gone when the run ends"),
       not_stored, Config::nvme_path},
      {switch_flag({"--cpu-offload"}, offload.cpu_offload,
                   "optimizer and gradients, at stage 3 parameters too, to the host")},
  };
}

Fields output_fields(TrainOptions& options) {
  return {
      {integer_flag({"--log-interval", "--logging-steps"}, options.log_interval,
                    "steps between loss lines; 0: none")},
      {integer_flag({"--eval-interval"}, options.eval_interval, "steps between validations",
                    {0, "none"})},
      {integer_flag({"--eval-batches", "--eval-iters"}, options.eval_batches,
                    "micro-batches of a validation; 0: the whole split")},
      {integer_flag({"--sample-interval"}, options.sample_interval,
                    "steps between samples of text from the model", {0, "none"})},
      {integer_flag({"--score-samples"}, options.score_samples,
                    "sort and adder: problems of each split to score at the end")},
      {path_flag({"--metrics"}, "F", options.metrics, PathUse::writes, "a JSON line per step")},
      {path_flag({"--tensorboard-dir"}, "DIR", options.tensorboard, PathUse::adds,
                 "a file of events for TensorBoard, under Megatron's tags")},
      {path_flag({"--trace"}, "F", options.trace, PathUse::writes,
                 "a Chrome trace (Perfetto opens it) of some steps: each rank's kernels,\n"
                 "collectives, copies, waits and memory; written when they are done")},
      {trace_steps_flag(options.trace_steps)},
      {switch_flag({"--dump-memory"}, options.dump_memory,
                   "a Markdown table of memory per phase and step"),
       not_stored, Config::memory_breakdown},
      {path_flag({"--memory-json"}, "F", options.memory_json, PathUse::writes,
                 "the same of all ranks in bytes, as plan predicts it")},
      {path_flag({"--kernels"}, "F", options.kernels, PathUse::writes,
                 "cpu, cuda: launches, bytes and operations of each kernel, of the second step's\n"
                 "last micro-batch and of what it does once: JSON of rank 0, after that step")},
      {gradients_flag(options)},
      {choice_flag({"--progress"}, options.progress, {"auto", "on", "off"},
                   "one redrawn line on stderr; auto: on a terminal")},
  };
}

Fields checkpoint_fields(TrainOptions& options, RunSpec& saved) {
  return {
      {path_flag({"--save", "--output-dir"}, "DIR", options.save, PathUse::adds,
                 "write DIR/step_N at the end and when interrupted; a directory\n"
                 "without another run's checkpoints")},
      {integer_flag({"--save-interval"}, options.save_interval,
                    "and every N steps; without --save: in the folder checkpoints", {1, ""})},
      {integer_flag({"--save-top-k"}, options.save_top_k,
                    "keep the N with the lowest loss, and the newest; -1: all", {-1, "1"}),
       kept({85, "run.save_top_k"}, options.save_top_k, saved.save_top_k, top_k)},
      {switch_flag({"--async-save"}, options.async_save,
                   "write those of --save-interval while training goes on; a step waits\n"
                   "for what it is about to overwrite"),
       not_stored, Config::async_save},
      {checkpoint_flag(
          {"--resume", "--load"}, "DIR|auto", options.resume,
          "go on from DIR's newest checkpoint or a step_N; auto: from --save\n"
          "or checkpoints when it has one. What no flag says of model, data and training "
          "is\nthe checkpoint's")},
      {integer_flag({"--exit-interval"}, options.exit_interval,
                    "save and end after each N steps, for jobs in a row; 0: never")},
      {path_flag({"--kill-switch-path"}, "F", options.kill_switch, PathUse::watches,
                 "save and end after the step in which a file of this name comes")},
      {switch_flag({"--universal-checkpoint"}, options.universal_checkpoint, "")},
      {integer_flag({"--max-restarts"}, options.max_restarts,
                    "after a failure go on from --save's newest checkpoint, at most so\n"
                    "often; not after signals and what would fail again the same way")},
      {integer_flag({"--restarted"}, options.restarted, "", {0, ""})},
      // The position of the run; no option sets it.
      {no_flag, unchecked({86, "position.samples", always}, &saved.samples, any_count)},
      {no_flag, unchecked({87, "position.skipped_samples"}, &saved.skipped_samples, any_count)},
      {no_flag, unchecked({88, "position.loss", always}, &saved.loss, AnyNumber{})},
  };
}

Fields rows_of(std::vector<Flag> flags) {
  Fields fields;
  for (Flag& flag : flags) fields.push_back({std::move(flag)});
  return fields;
}

Fields place_fields(TrainOptions& options, RunSpec& saved) {
  Fields fields = rows_of(place_flags(options.device_flags));
  fields.push_back(
      {path_flag({"--matmul-algorithms"}, "F", options.matmul_algorithms, PathUse::reads,
                 "cuda: multiply by the algorithms of cuBLASLt in this file, which zerograd\n"
                 "bench matmul-algorithms wrote; another file may round differently")});
  fields.push_back(
      {no_flag, may_change({144, "run.matmul_algorithms"}, &saved.matmul_checksum).sparse()});
  return fields;
}

}  // namespace

std::vector<FieldGroup> fields_of(TrainOptions& options, RunSpec& saved) {
  OptimisationOptions &optimisation = options.optimisation,
                      &saved_optimisation = saved.optimisation;
  return {{"config", config_fields(options.config)},
          {"data and model", data_fields(options.data, saved)},
          {"", model_fields(options.model, saved.model)},
          {"conversations, of decoders", conversation_fields(options.data, saved.data)},
          {"pairs, of encoder-decoder models", seq2seq_fields(options.seq2seq, saved.seq2seq)},
          {"batch and length", length_fields(options, saved)},
          {"optimisation", schedule_fields(options, saved)},
          {"", fields_without_flags(optimisation, saved)},
          {"", optimisation_fields(options, saved)},
          {"adapters, LoRA", lora_fields(options, saved.lora)},
          {"ranks", rank_fields(options, saved)},
          {"axes", axes_fields(options.axes, saved.axes)},
          {"offload",
           offload_fields(options.offload, optimisation.engine, saved_optimisation.engine.offload)},
          {"place", place_fields(options, saved)},
          {"output", output_fields(options)},
          {"", rows_of(tracking_flags(options.tracking))},
          {"checkpoints", checkpoint_fields(options, saved)},
          {"tuning", {{autotuning_flag(options.autotuning), not_stored, Config::autotuning}}}};
}

}  // namespace zg::tools
