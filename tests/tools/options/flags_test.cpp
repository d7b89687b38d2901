#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

struct Refusal {
  const char* line;
  int status;
  const char* part;  ///< expected text in stderr
};

void check_refusals(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    CAPTURE(refusal.line);
    const Outcome outcome = checked(called(refusal.line), refusal.status);
    CHECK(outcome.out.empty());
    CHECK(contains(outcome.error, refusal.part));
    CHECK(outcome.error.compare(0, 7, "error: ") == 0);
  }
}

// One step of a small model on small data, for flags that must be let through.
constexpr const char* one_step_run =
    "train --data sort --steps 1 --batch-size 2 --score-samples 0 --threads 1 --log-interval 0 "
    "--n-layer 1 --n-head 1 --n-embd 16 ";

}  // namespace

TEST_CASE("--device gpu means cuda") {
  for (const std::string device : {"cuda", "cuda:0", "gpu", "gpu:0"}) {
    CAPTURE(device);
    const Outcome plan = called("plan --data sort --steps 1 --device " + device);
    CHECK(contains(plan.out, "machine: cuda, "));
  }
  check_refused("plan --data sort --device gpux", 2, "--device: expected ");
}

TEST_CASE("hostile flags end in a usage error that says what to do") {
  check_refusals({
      {"train", 2, "ConfigError: --data: expected sort, adder"},
      {"train --data", 2, "--data: expected a value, got nothing; --data D: sort, adder"},
      {"train --data --steps 3", 2, "--data: expected a value, got nothing"},
      {"train --data sort --tensor-parallel", 2, "--tensor-parallel: expected a value"},
      {"train --data srot", 2, "did you mean sort?"},
      {"train --data sort --stepz 5", 2, "unknown flag --stepz; did you mean --steps?"},
      {"train --data sort --steps=x", 2, "--steps: expected a whole number of 0 or more, got 'x'"},
      {"train --data sort --steps -1", 2, "--steps: expected a whole number"},
      {"train --data sort --steps 1.5", 2, "--steps: expected a whole number"},
      {"train --data sort --steps 99999999999999999999", 2, "--steps: expected a whole number"},
      {"train --data sort --steps 1e10", 2, "--steps: expected a whole number from 0 to"},
      {"train --data sort --lr 1e300", 2, "--lr: expected a number above 0"},
      {"train --data sort --steps=", 2, "--steps: expected a whole number of 0 or more, got ''"},
      {"train --data sort --steps 5 --epochs 1", 2, "one of --steps and --epochs"},
      {"train --data sort --steps 5 --limit_train_batches 2", 2, "expected --epochs with it"},
      {"train --data sort --limit_train_batches 0", 2, "--limit-train-batches: expected a whole"},
      {"train --data sort --limit_train_batches 1.5", 2, "expected a share above 0"},
      {"train --data sort --lr 0", 2, "--lr: expected a number above 0"},
      {"train --data sort --adam-eps 1e-50", 2,
       "--adam-eps: expected a number above 0, whose size f32 holds (1.2e-38 to 3e38), got "
       "'1e-50'"},
      {"train --data sort --lr 1e39", 2, "whose size f32 holds"},
      {"train --data sort --lr nan", 2, "--lr: expected a number above 0, got 'nan'"},
      {"train --data sort --lr inf", 2, "--lr"},
      {"train --data sort --learning_rate 1e-4x", 2, "--lr"},
      {"train --data sort --dropout 1", 2, "--dropout: expected a number of 0 or more and below 1"},
      {"train --data sort --matmul-algorithms F", 6,
       "--matmul-algorithms: the algorithms are cuBLASLt's; expected --device cuda with it, got "
       "--device cpu"},
      {"train --data sort --label-smoothing 1", 2,
       "--label-smoothing: expected a number of 0 or more and below 1"},
      {"train --data sort --max-source-length 0", 2, "--max-source-length: expected"},
      {"train --data sort --n-train -1", 2, "--n-train: expected"},
      {"train --data sort --betas 0.9", 2, "--betas: expected two numbers"},
      {"train --data sort --betas 0.9,1", 2, "--betas"},
      {"train --data sort --clip -1", 2, "--clip"},
      {"train --data sort --speculation -1", 2, "--speculation: expected a size"},
      {"train --data sort --device-memory 2GiBB", 2, "--device-memory: expected a size"},
      {"train --data sort --device-memory 50Mib", 2, "got '50Mib'; did you mean 50MiB?"},
      {"train --data sort --device-memory 2g", 2, "got '2g'; did you mean 2GiB?"},
      {"train --data sort --host-memory -5", 2, "--host-memory: expected a size"},
      {"train --data sort --threads -2", 2, "--threads"},
      {"train --data sort --model-type gpt-nanno", 2, "did you mean gpt-nano?"},
      {"train --data sort --model-type gpt2 --n-layer 2", 2, "--model-type"},
      {"train --data sort --n-layer 2", 2, "--n-layer, --n-head and --n-embd together"},
      {"train --data sort --n-layer 2 --n-head 3 --n-embd 16", 2, "heads"},
      {"train --data sort --block-size 10", 2, "--block-size: for data sort expected"},
      {"train --data adder --block-size 7", 2, "--block-size: for data adder expected"},
      {"train --data sort --vocab-size 2", 2, "--vocab-size: expected at least 3, the vocabulary"},
      {"train --data sort --tied --untied", 2, "--tied"},
      {"train --data sort --precision f31", 2, "--precision: expected f32"},
      {"train --data sort --precision fp16", 2, "did you mean f16?"},
      {"train --data sort --precision bf16 --initial-scale-power 8", 2,
       "--initial-scale-power: the loss is scaled only in f16; expected --precision f16, got "
       "--precision bf16"},
      {"train --data sort --precision f16 --initial-scale-power 128", 2,
       "--initial-scale-power: expected a whole number from 0 to 127, got '128'"},
      {"train --data sort --schedule WarmUpLR", 2, "did you mean WarmupLR?"},
      {"train --data sort --warmup-steps 5", 2,
       "--warmup-steps: expected a --schedule that warms up, got --schedule none"},
      {"train --data sort --schedule WarmupLR --warmup-steps 0", 2,
       "--warmup-steps: expected 1 or more with --schedule WarmupLR, got 0"},
      {"train --data sort --rampup-batch-size", 2,
       "--rampup-batch-size: expected a value, got nothing; --rampup-batch-size START INCREMENT"},
      {"train --data sort --rampup-batch-size 16 16", 2,
       "--rampup-batch-size: expected START INCREMENT SAMPLES, as 16 16 5000000, got '16,16'"},
      {"train --data sort --rampup-batch-size 16 --steps 3", 2, "got '16'"},
      {"train --data sort --rampup-batch-size 4 4 100 9", 2, "unexpected argument '9'"},
      {"train --data sort --rampup-batch-size=4 4 100", 2, "unexpected argument '4'"},
      {"train --data sort --rampup-batch-size 4,4,x", 2, "--rampup-batch-size: expected a whole"},
      {"train --data sort --batch-size 2 --train-batch-size 16 --rampup-batch-size 4,5,100", 2,
       "expected an INCREMENT that divides the growth from 4 to 16, 12, got 5"},
      {"train --data sort --batch-size 4 --train-batch-size 16 --rampup-batch-size 2 2 100", 2,
       "--batch-size x ranks, 4 x 1 = 4, divides, got 2 and 2; try --batch-size 2"},
      {"train --data sort --train-samples 0", 2, "--train-samples: expected a whole number of 1"},
      {"train --data sort --train-samples 63", 2,
       "--train-samples: expected at least the 64 samples of the first step, got 63"},
      {"train --data sort --train-samples 640 --steps 5", 2,
       "one of --steps and --train-samples, got both"},
      {"train --data sort --train-samples 640 --epochs 5", 2,
       "one of --epochs and --train-samples, got both"},
      {"train --data sort --train-samples 6_40_", 2, "--train-samples: expected a whole number"},
      {"train --data sort --lr-decay-style cosin", 2, "did you mean cosine?"},
      {"train --data sort --lr-decay-style cosine", 2,
       "--lr-decay-samples: expected the samples after which the rate is lowest, or --train"},
      {"train --data sort --lr-decay-style cosine --schedule cosine", 2,
       "--lr-decay-style: expected one of --schedule and --lr-decay-style, got both"},
      {"train --data sort --lr-warmup-samples 9 --lr-decay-samples 9", 2,
       "--lr-warmup-samples: expected less than the 9 samples of --lr-decay-samples or"},
      {"train --data sort --lr-decay-samples 9 --warmup-steps 9", 2,
       "--warmup-steps: expected --lr-warmup-samples, because this schedule counts samples"},
      {"train --data sort --lr-decay-samples 9 --lr 1e-4 --min-lr 1e-3", 2,
       "--min-lr: expected at most --lr 0.0001, got 0.001"},
      {"train --data sort --min-lr 1e-5", 2,
       "--min-lr: expected a schedule that decreases to it, got --schedule none"},
      {"train --data sort --lr-decay-style constant --min-lr 1e-5", 2,
       "--min-lr: expected --lr-decay-style linear or cosine with it, got constant"},
      {"train --data sort --adam-beta1 1", 2, "--adam-beta1: expected a number of 0 or more"},
      {"train --data sort --adam-eps 0", 2, "--adam-eps: expected a number above 0"},
      {"train --data sort --bf16=off", 2,
       "--bf16: expected no value, got 'off'; it is --precision"},
      {"train --data sort --bf61", 2, "unknown flag --bf61; did you mean --bf16?"},
      {"train --data sort --exit-interval -1", 2, "--exit-interval: expected a whole number"},
      {"train --data sort --kill-switch-path /", 2,
       "--kill-switch-path: expected no file of this name before the run, got /; try removing "
       "it"},
      {"train --data sort --order rnadom", 2, "did you mean random?"},
      {"train --data sort --progress maybe", 2, "--progress: expected auto, on, off"},
      {"train --data sort --save-interval 0", 2, "--save-interval: expected a whole number of 1"},
      {"train --data sort --async-save", 2, "--async-save: expected --save-interval N with it"},
      {"train --data sort --sample-interval 5", 2, "--sample-interval: expected data PATH.txt"},
      {"train --data sort --strategy deepspeed_stage3", 2, "did you mean deepspeed_stage_3?"},
      {"train --data sort --strategy deepspeed_stage 3", 2, "did you mean deepspeed_stage_3?"},
      {"train --data sort --strategy ddp 3", 2, "unexpected argument '3'"},
      {"train --data sort --ranks 0", 2, "--ranks: expected a whole number of 1 or more, got '0'"},
      {"train --data sort --num_gpus -1", 2, "--ranks: expected a whole number"},
      {"train --data sort --offload-optimizer nvme", 2, "--nvme-path: expected a directory"},
      {"train --data sort --offload-optimizer nvme --nvme-path /nowhere", 5, "/nowhere"},
      {"train --data sort --offload-gradients nvme", 2, "--nvme-path: expected a directory"},
      {"train --data sort --offload-param host", 2, "--offload-param: expected --zero-stage 3"},
      {"train --data sort --offload-optimizer disk", 2, "--offload-optimizer: expected none, host"},
      {"train --data sort --zero-stage 4", 2, "--zero-stage: expected 0, 1, 2, 3, got '4'\n"},
      {"train --data sort --device cpu --use_hpu", 2, "--use-hpu: expected one of --device and"},
      {"eval somewhere --use_hpu --device cpu", 2, "--use-hpu: expected one of --device and"},
      {"generate here --prompt a --use_hpu --device cuda", 2, "--use-hpu: expected one of"},
      {"train --data sort --zero-stage 1 --strategy ddp", 2, "--zero-stage and --strategy"},
      {"train --data sort --zero-stage 2 --reduce-at-boundary", 2, "expected stage 0 or 1"},
      {"train --data sort --reduce-bucket-size 0", 2, "--reduce-bucket-size"},
      {"train --data sort --overlap-comm maybe", 2, "--overlap-comm: expected on or off"},
      {"train --data sort --grad-accum-dtype f16", 2, "--grad-accum-dtype: expected f32, bf16"},
      {"train --data sort --comm-timeout 0", 2, "--comm-timeout: expected seconds above 0"},
      {"train --data sort --ranks 2 --train-batch-size 9 --batch-size 2", 2, "9 != 2 * 2 * 2"},
      {"train --data sort --train-batch-size 10 --batch-size 4", 2,
       "try --batch-size 1, 2, 5, 10, or --train-batch-size 8, 12"},
      {"train --data sort --batch-size 2e9 --grad-accum 2e9 --ranks 1000", 2,
       "a product below 2^63"},
      {"train --data sort --inject x", 2,
       "--inject: expected rank, step, fault, phase, kind, at and bit, got 'x'"},
      {"train --data sort --inject rank=0,step=1,fault=inf,at=3", 2, "expected at with fault=flip"},
      {"train --data sort --inject rank=0,step=1,fault=flip,phase=save", 2,
       "expected fault=flip without a phase"},
      {"train --data sort --audit-ops 1:1", 2, "--audit-ops: expected --audit F"},
      {"train --data sort --audit a --audit-ops 1", 2, "--audit-ops: expected FIRST:COUNT"},
      {"train --data sort --audit a --audit-ops 1:1:foo", 2,
       "expected an output RANK/TRACK/NUMBER"},
      {"train --data sort --audit-interval 3", 2, "--audit-interval: expected --audit F"},
      {"train --data sort --audit a --audit-ops 9:1 --steps 9", 2,
       "--audit-ops: expected a step below"},
      {"train --data sort --inject rank=0,step=1", 2, "--inject: expected rank=R,step=S,fault=F"},
      {"train --data sort --inject rank=0,step=1,fault=thorw", 2, "did you mean throw?"},
      {"train --data sort --inject rank=0,step=,fault=inf", 2, "--inject step: expected a whole"},
      {"train --data sort --inject rank=0,step=1+,fault=inf", 2, "--inject step: expected a whole"},
      {"train --data sort --inject rank=1,step=1,fault=inf", 2,
       "--inject: expected a rank below 1"},
      {"train --data sort --inject rank=0,step=3,fault=inf --steps 3", 2,
       "--inject step: expected a step below the run's end, 3, got 3"},
      {"train --data sort --inject rank=0,fault=throw", 2, "or rank=R,fault=F,phase=init, got"},
      {"train --data sort --inject rank=0,step=1,fault=throw,phase=init", 2, "phase=init, got"},
      {"train --data sort --inject rank=0,step=1,fault=inf,phase=step", 2, "fault=inf without a"},
      {"train --data sort --inject rank=0,step=1,fault=kill,phase=bakward", 2, "mean backward?"},
      {"train --data sort --inject rank=0,step=1,fault=stop", 2, "expected processes of mpirun"},
      {"train --data sort --inject rank=0,step=1,fault=mismatch", 2, "--ranks of 2 or more"},
      {"train --data sort --inject rank=0,step=1,fault=throw,phase=save", 2, "a step that saves"},
      {"train --data sort --dump-gradients nowhere:3 --steps 3", 2,
       "--dump-gradients: expected a step below the run's end, 3, got 3"},
      {"train --data sort --val-fraction 0.2", 2, "--val-fraction: expected data PATH.txt or"},
      {"train --data adder --order sequential", 2, "--order: expected data PATH.txt or PATH.bin"},
      {"train --data sort stray", 2, "unexpected argument 'stray'"},
      {"train --data sort --activation-checkpoint=maybe", 2, "--activation-checkpoint"},
      {"generate", 2, "CHECKPOINT"},
      {"generate somewhere", 2, "--prompt"},
      {"generate somewhere --prompt a --top-p 0", 2, "--top-p"},
      {"generate somewhere --prompt a --min-p -0.1", 2, "--min-p: expected a number from 0 to 1"},
      {"generate somewhere --prompt a --min-p 1.1", 2, "--min-p: expected a number from 0 to 1"},
      {"generate somewhere --prompt a --min-p x", 2, "--min-p: expected a number from 0 to 1"},
      {"generate somewhere --prompt a --min-p 0.1 --temperature 0", 2, "--min-p: with --temper"},
      {"eval", 2, "CHECKPOINT"},
      {"trian --data sort", 2, "did you mean train?"},
      {"--data sort", 2, "expected a subcommand"},
  });
}

TEST_CASE("missing files and files of a wrong format end in a file error") {
  const TemporaryFolder folder;
  const std::string text = folder / "broken.safetensors", tokens = folder / "broken.bin";
  write_file(text, "not a safetensors file");
  write_file(tokens, "not tokens");
  check_refusals({
      {"train --data /nowhere/text.txt", 5, "FileError: "},
      {"train --data sort --resume /nowhere", 5, "/nowhere"},
      {"train --data sort --metrics /nowhere/metrics", 5,
       "--metrics: /nowhere/metrics cannot be written: No such file or directory; expected a file "
       "in "
       "a folder that exists and is writable; try another path"},
      {"train --data sort --trace /nowhere/trace", 5,
       "--trace: /nowhere/trace cannot be written: No such file or directory; expected a file in a "
       "folder that exists and is writable; try another path"},
      {"train --data sort --save /proc/x", 5,
       "--save: create: /proc/x: No such file or directory; expected a folder that "
       "exists or can be made; try another path"},
      {"train --data sort --model-type gpt-nano --num-query-groups 1", 2,
       "expected 3, as many as heads, in the family gpt, got 1; try without --num-query-groups, "
       "or "},
      {"eval /nowhere", 5, "/nowhere: there is nothing of that name; expected a step_N folder"},
      {"generate /nowhere --prompt a", 5, "/nowhere"},
  });
  checked(zerograd({"train", "--data", tokens}), 5);
  checked(zerograd({"eval", text, "--data", "sort"}), 5);
  const std::string no_folder = text + ": is not a folder; expected a step_N folder";
  CHECK(contains(zerograd({"verify", text}).error, no_folder));
  CHECK(contains(zerograd({"train", "--data", "sort", "--resume", text}).error, no_folder));
  const Outcome outcome =
      checked(zerograd({"train", "--data", "sort", "--steps", "0", "--init", text}), 5);
  CHECK(contains(outcome.error, text));
}

TEST_CASE("an option that this version does not support is refused by name and never ignored") {
  const ScopedVariable no_gpu("CUDA_VISIBLE_DEVICES", "");  // as on a machine without one
  for (const char* flags : {"--device cuda", "--device hpu", "--use_hpu", "--local_rank 1"}) {
    CAPTURE(flags);
    const Outcome outcome = checked(zerograd(std::string("train --data sort ") + flags), 6);
    CHECK(outcome.out.empty());
    CHECK(contains(outcome.error, "error: Unsupported: --"));
    CHECK(contains(outcome.error, "try ") != contains(outcome.error, "leave the flag out"));
  }
  checked(zerograd("eval " ZG_FIXTURES "hf_gpt2 --data sort --block-size 11 --device cuda"), 6);
  checked(zerograd("generate somewhere --prompt a --ranks 2"), 6);
}

TEST_CASE(
    "flags of other trainers are accepted in every spelling, also where they set the default") {
  for (const char* flags :
       {"--ranks 1 --tensor-parallel 1 --pipeline_parallel 1 --schedule-pipeline 1f1b",
        "--gpus 1 --local_rank 0 --device cpu --strategy ddp --deepspeed",
        "--num_gpus 1 --zero-stage 0 --offload-optimizer none --offload_param none",
        "--strategy deepspeed_stage_3_offload --offload_activations cpu", "--cpu_offload",
        "--schedule none --warmup-steps 0 --overlap-comm on --reduce-bucket-size 500000000",
        "--precision 32 --grad-accum-dtype f32 --max-restarts 0 --comm-timeout 60",
        "--precision 16 --initial_scale_power 8 --schedule WarmupLR --num_warmup_steps 10",
        "--precision bf16 --initial-scale-power 16", "--n_layer 1 --per_device_train_batch_size=2",
        "--learning_rate 1e-3 --logging_steps 0",
        "--gradient_accumulation_steps 1 --train_batch-size 2"}) {
    CAPTURE(flags);
    checked(zerograd(std::string(one_step_run) + flags));
  }
}

TEST_CASE("the last value of a flag given twice counts, also in another spelling") {
  const Outcome outcome = checked(
      zerograd(std::string(one_step_run) + "--batch-size 9 --per_device_train_batch_size=3"));
  CHECK(contains(outcome.error, "batch 3 = 3 x 1 micro-batch;"));
}

TEST_CASE("help names every flag with its default and exits with 0") {
  const Outcome help = checked(zerograd("train --help"));
  for (const char* part : {"--steps N", "[2000]", "--lr X", "[0.0005]", "gpt-nano", "--resume"})
    CHECK(contains(help.out, part));
  CHECK(help.error.empty());
  CHECK(zerograd("train help").out == help.out);
  CHECK(zerograd("help train").out == help.out);
  for (const char* line :
       {"--help", "help", "eval --help", "generate -h", "info --help", "--version"}) {
    CAPTURE(line);
    checked(zerograd(line));
  }
  check_refused("", 2, "usage: zerograd");
}

TEST_CASE("info prints the version, the machine, each backend and the Unicode version") {
  const Outcome outcome = checked(zerograd("info"));
  for (const char* part :
       {"version", "instruction set", "cores", "memory", "cuda", "hpu", "mpi", "io_uring"})
    CHECK(contains(outcome.out, part));
  const std::string unicode = line_after(outcome.out, "unicode ");
  CAPTURE(unicode);
  CHECK(std::stod(unicode) >= 14.0);
  CHECK(contains(unicode, "(PCRE2 10."));
}

}  // namespace zg::testing
