#include <cstdlib>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

// The command lines of the tutorials, as they print them, with zerograd instead of a launcher and a
// script. Each runs, or its error says what to write instead.
namespace zg::testing {
namespace {

const std::string plan_of_text = "plan --data " ZG_CONFIGS "../../LICENSE ";

std::string config(const char* name) { return std::string(ZG_CONFIGS) + name; }

}  // namespace

TEST_CASE("tutorials: the script's or the launcher's name is answered with the subcommand") {
  const struct {
    const char *line, *part;
  } cases[] = {
      {"demo_ds.py --deepspeed --deepspeed_config ds_config.json --use_hpu --steps 4",
       "got 'demo_ds.py'; the counterpart here is zerograd train --data sort"},
      {"train.py --n_layer 4 --n_head 16 --n_embd 3072 --gpus 1 --precision 16 --batch_size 1",
       "got 'train.py'; the counterpart here is zerograd train"},
      {"benchmark.py --n_layer 15 --n_head 16", "the counterpart here is zerograd train"},
      {"evaluate.py --gpus 1", "the counterpart here is zerograd eval CHECKPOINT"},
      {"test/inference-test.py --deepspeed_config ds_config.py --test_performance",
       "the counterpart here is zerograd generate CHECKPOINT --prompt TEXT --test-performance"},
      {"run_clm_no_trainer.py --config_name gpt2-xl", "zerograd train --data PATH.txt"},
      {"run_seq2seq_no_trainer.py --num_beams 10",
       "the counterpart here is zerograd train --from-hf DIR --data PAIRS.jsonl"},
      {"deepspeed --num_gpus 8 --autotuning run", "zerograd train --gpus N, or zerograd launch"},
      {"accelerate launch run_clm_no_trainer.py", "zerograd train --config F.yaml"},
      {"scripts/run_bloom13b.sh", "the counterpart here is tools/bloom13b"},
      {"my_own.py --steps 3", "got 'my_own.py'; a script's flags go to zerograd train"},
      {"trian --data sort", "got 'trian'; did you mean train?"},
  };
  for (const auto& [line, part] : cases) {
    CAPTURE(line);
    check_refused(line, 2, part);
  }
}

TEST_CASE("tutorials: minGPT on Gaudi trains with the printed flags and configs") {
  const TemporaryFolder folder;
  for (const char* name : {"zero0", "zero1", "zero1_ac", "zero2", "zero3"}) {
    CAPTURE(name);
    const std::string flags = " --data sort --score-samples 0 --deepspeed --deepspeed_config " +
                              config((std::string(name) + ".json").c_str()) +
                              " --steps 4 --dump-memory" +
                              (contains(name, "_ac") ? " --activation-checkpoint" : "");
    const Outcome outcome = checked(zerograd("train" + flags));
    CHECK(contains(outcome.out, "| step | Before forward (M) | After forward (M) |"));
    // The tutorial's 8 HPUs and gpt2-xl, which this machine may not have, are planned.
    checked(zerograd("plan --model-type gpt2-xl --gpus 8 --use_hpu" + flags));
  }
  check_refused("train --deepspeed --deepspeed_config " + config("zero0.json") + " --steps 4", 2,
                "--data: expected sort, adder, PATH.txt or PATH.bin, got nothing; try --data sort");
}

TEST_CASE("tutorials: minGPT with DeepSpeed is planned with the printed flags") {
  const std::string sizes[] = {"--n_layer 4 --n_embd 3072",  "--n_layer 15 --n_embd 3072",
                               "--n_layer 13 --n_embd 8192", "--n_layer 25 --n_embd 8192",
                               "--n_layer 56 --n_embd 8192", "--n_layer 21 --n_embd 8192"};
  const char* const more[] = {
      "--batch_size 1 --strategy deepspeed_stage_2", "--limit_train_batches 120 --cpu_offload",
      "--batch_size 1 --strategy deepspeed_stage_3 --limit_train_batches 128"};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const std::string line =
        plan_of_text + sizes[i] + " --n_head 16 --gpus 8 --precision 16 " + more[i % 3];
    CAPTURE(line);
    CHECK(contains(checked(zerograd(line)).out, "peak "));
  }
  const TemporaryFolder folder;
  const std::string flags = " --gpus 1 --precision 16 --batch_size 1 --strategy deepspeed_stage_2";
  checked(zerograd("train --data sort --score-samples 0 --steps 1" + flags + " --save " +
                   folder.path()));
  check_refused("eval " + folder.path() + flags, 2, "leave the flag out");
  checked(zerograd("eval " + folder.path() + " --gpus 1 --batch_size 1 --score-samples 1"));
}

TEST_CASE(
    "tutorials: flags of Hugging Face's scripts are spellings, or say what to write instead") {
  const TemporaryFolder folder;
  const struct {
    const char *flags, *part;
    int status;
  } refused[] = {
      {"--dataset_name wikitext", "--dataset-name: there is no hub here; save the texts", 2},
      {"--dataset_config_name wikitext-2-raw-v1", "--data PATH.txt", 2},
      {"--per_device_eval_batch_size 1", "a validation takes micro-batches of --batch-size", 2},
      {"--with_tracking --report_to wandb", "--report-to wandb: this version reports to files", 6},
      {"--with_tracking --report_to tensorbord", "did you mean tensorboard?", 2},
      {"--report_to tensorboard", "--report-to: expected --with-tracking with it", 2},
      {"--report_name run", "--report-name: expected --with-tracking with it", 2},
      {"--with_tracking --output_dir x --report_name ../y", "--report-name: expected the name of",
       2},
      {"--with_tracking", "--with-tracking: expected --output-dir DIR", 2},
      {"--with_tracking --tensorboard-dir x --report_name y", "--report-name: expected one of", 2},
      {"--max_source_length 128", "--max-source-length: expected an encoder-decoder model", 2},
      {"--source_prefix chatbot:", "got a decoder-only model, which reads one text", 2},
      {"--max_target_length 64", "--max-target-length: ", 2},
      {"--val_max_target_length 64", "--val-max-target-length: ", 6},
      {"--val_min_target_length 20", "--val-min-target-length: ", 6},
      {"--n_val_batch_generations 5", "--n-val-batch-generations: ", 6},
      {"--num_beams 10", "--num-beams: a validation takes the loss", 6},
      {"--pad_to_max_length", "--pad-to-max-length: ", 2},
      {"--n_train 10000", "a shorter run has --steps N or --train-samples N", 2},
      {"--n_val 1000", "--eval-batches N or --val-fraction X", 2},
      {"--model_name_or_path facebook/blenderbot-400M-distill", "there is no such folder", 5},
      {"--tokenizer_name gpt2-xl", "gpt2-xl", 5},
      {"--config_name gpt2-xxl", "did you mean gpt2-xl?", 2},
  };
  for (const auto& [flags, part, status] : refused) {
    CAPTURE(flags);
    check_refused("train --data " ZG_CONFIGS "../../LICENSE --steps 1 " + std::string(flags),
                  status, part);
  }
  const std::string out = folder / "out";
  const std::string own =
      "--block_size 16 --learning_rate 5e-4 --per_device_train_batch_size 2 --weight_decay 0.0 "
      "--num_train_epochs 0.001 --gradient_accumulation_steps 1 --num_warmup_steps 2 --schedule "
      "WarmupLR --seed 25 --logging_steps 100 --with_tracking --report_to tensorboard "
      "--report_name clm --output_dir " +
      out;
  checked(zerograd("train --data " ZG_CONFIGS "../../LICENSE " + own));
  bool has_events = false;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/clm"))
    has_events |= contains(entry.path().filename().string(), "tfevents");
  CHECK(has_events);
  checked(zerograd("eval " + out));
  checked(zerograd(plan_of_text +
                   "--config_name gpt2-xl --block_size 128 "
                   "--per_device_train_batch_size 16 --config " +
                   config("accelerate_zero3_offload.json")));
}

TEST_CASE("tutorials: generate --test-performance prints averages that fit each other") {
  const TemporaryFolder folder;
  checked(zerograd("train --data sort --score-samples 0 --steps 1 --save " + folder.path()));
  const std::string words = folder.path() + " --prompt 2100 --length 6 --temperature 0";
  const Outcome once = zerograd("generate " + words);
  for (const char* name : {"generate ", "inference "}) {
    const Outcome outcome = checked(zerograd(name + words + " --test_performance"));
    CHECK(outcome.out.starts_with(once.out));  // the text is printed once
    const auto number = [&](const char* prefix) {
      return std::strtod(line_after(outcome.out, prefix).c_str(), nullptr);
    };
    const double latency = number("Avg Per Token Latency: "), rate = number("Avg BW: ");
    CHECK(latency > 0.0);
    // gpt-nano in f32: 12 x 3 layers x 48 x 48 parameters of 4 bytes, to two printed digits
    CHECK(rate == doctest::Approx(12.0 * 3 * 48 * 48 * 4 / latency * 1e-6).epsilon(0.2));
    CHECK(contains(outcome.out, " TFlops/s\n"));
  }
  check_refused("generate " + words + " --length 0 --test-performance", 2,
                "--test-performance: expected --length of 1 or more");
  check_refused("generate " + words + " --deepspeed_config f.json", 2,
                "the checkpoint has this setting; leave the flag out");
}

}  // namespace zg::testing
