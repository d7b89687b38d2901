#include <random>

#include "tests/support/temporary_folder.h"
#include "tests/tools/config/config_matrix.h"
#include "tools/deepspeed/load.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/deepspeed/check.h"

namespace zg::testing {
namespace {

using tools::read_yaml;

const std::string train_with_config =
    "train --data sort --model-type gpt-nano --score-samples 0 --log-interval 0 --threads 1 "
    "--steps 2 --config ";

// Returns the message with which check_config() refuses this YAML text; empty if it accepts the
// text.
std::string refusal(const std::string& text) {
  const std::string message = message_of<ConfigError>([&] {
    zero::deepspeed::check_config(read_yaml(text, "a.yaml"), "a.yaml",
                                  zero::DeepSpeedVersion::v0_19, /*lenient=*/false, "accelerate");
  });
  return message == "nothing was thrown" ? "" : message;
}

std::string yaml_of(const std::string& file) {
  return "compute_environment: LOCAL_MACHINE\n"
         "deepspeed_config:\n"
         " deepspeed_config_file: " +
         file +
         "\n"
         " zero3_init_flag: false\n"
         "distributed_type: DEEPSPEED\n"
         "fsdp_config: {}\n"
         "machine_rank: 0\n"
         "main_process_ip: null\n"
         "main_process_port: null\n"
         "main_training_function: main\n"
         "mixed_precision: fp16\n"
         "num_machines: 1\n"
         "num_processes: 2\n"
         "use_cpu: false\n";
}

}  // namespace

TEST_CASE("accelerate: a YAML file names a DeepSpeed config or sets ZeRO by its own keys") {
  const TemporaryFolder folder;
  write_file(folder / "a.yaml", yaml_of(std::string(ZG_CONFIGS) + "accelerate_zero2.json"));
  const std::string own = std::string(ZG_CONFIGS) + "accelerate.yaml --batch-size 4";
  const struct {
    std::string flags;
    const char *compute, *micro_batch, *ranks, *printed;
  } cases[] = {{folder / "a.yaml", "f16", "64", "2",
                "a.yaml:4:2: deepspeed_config.zero3_init_flag: accepted without effect"},
               {own, "bf16", "4", "2", ""},
               {own + " --ranks 1 --precision f32", "f32", "4", "1",
                "accelerate.yaml: overridden by flags: num_processes (--ranks), "
                "mixed_precision (--precision)\n"}};
  for (const auto& [flags, compute, micro_batch, ranks, printed] : cases) {
    CAPTURE(flags);
    Configured run = configured("--config " + flags);
    CHECK(contains(checked(run.outcome).error, printed));
    CHECK(run.seen["compute"] == compute);
    CHECK(run.seen["stage"] == "2");
    CHECK(run.seen["micro_batch"] == micro_batch);
    CHECK(run.seen["ranks"] == ranks);
  }
}

TEST_CASE("accelerate: wrong or unsupported YAML is refused with its place and advice") {
  const struct {
    const char *text, *begins, *has;
  } cases[] = {
      {"distributed_typ: NO", "a.yaml:1:1: distributed_typ: ", "did you mean distributed_type?"},
      {"num_processes: 2\nnum_processes: 2", "a.yaml:2:1: num_processes: the key comes twice",
       "line 1"},
      {"deepspeed_config:\n  zero_stage: 4",
       "a.yaml:2:15: deepspeed_config.zero_stage: ", "a whole number from 0 to 3, got 4"},
      {"deepspeed_config:\n  mixed_precision: bf16",
       "a.yaml:2:3: deepspeed_config.mixed_precision: ", "accelerate's YAML, where it belongs"},
      {"mixed_precision: fp4", "a.yaml:1:18: mixed_precision: ", "no, fp16, bf16"},
      {"num_processes: 0", "a.yaml:1:16: num_processes: ", "1 or more, or null, got 0"},
      {"num_processes: 1e999", "a.yaml:1:16: num_processes: ", "got '1e999'"},
      {"a: [1", "a.yaml:", "not valid YAML"},
      {"\"open", "a.yaml:", "not valid YAML"},
      {"a: &x 1", "a.yaml:1:", "an anchor"},
      {"- 1", "a.yaml:1:1: ", "an object"},
      {"num_machines: 1\n---\nnum_machines: 1", "a.yaml:3:1: ", "one document"},
      {"? [1]\n: 2", "a.yaml:1:3: ", "expected a key"},
  };
  for (const auto& [text, begins, has] : cases) {
    CAPTURE(text);
    const std::string error = refusal(text);
    CAPTURE(error);
    CHECK(error.starts_with(begins));
    CHECK(contains(error, has));
    CHECK((contains(error, "; try ") || contains(error, "; did you mean ")));
  }
  for (const char* level : {"[", "- ", "{a: ", "? "}) {
    std::string deep;
    for (int i = 0; i < 10'000; ++i) deep += level;
    CHECK(refusal(deep).starts_with("a.yaml:1:"));
  }
  constexpr int invalid_config = 2, file_error = 5, unsupported = 6;
  const TemporaryFolder folder;
  const auto status = [&](const std::string& text) {
    write_file(folder / "a.yml", text);
    return configured("--batch-size 4 --config " + (folder / "a.yml")).outcome.status;
  };
  CHECK(status("distributed_type: FSDP") == unsupported);
  CHECK(status("num_machines: 2") == unsupported);
  CHECK(status("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: no.json}") ==
        file_error);
  // The YAML file sets fp16, zero2.json sets bf16.
  CHECK(status(yaml_of(std::string(ZG_CONFIGS) + "zero2.json")) == invalid_config);
  write_file(folder / "ds.json", "{train_batch_size: 8}");
  CHECK(status("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: " +
               (folder / "ds.json") + ", zero_stage: 3}") == invalid_config);
  CHECK(status("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: " +
               (folder / "ds.json") + ", zero3_init_flag: true}") == 0);
  CHECK(status("distributed_type: MULTI_CPU\nnum_processes: 2") == 0);
  write_file(folder / "a.yml",
             "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, "
             "offload_param_device: nvme, offload_param_nvme_path: /nowhere}");
  check_refused(train_with_config + (folder / "a.yml") + " --batch-size 4", file_error, "/nowhere");
}

TEST_CASE("accelerate: 500 damaged YAML files are each read, or refused with a place") {
  const std::string whole = yaml_of("ds.json");
  REQUIRE(refusal(whole).empty());
  std::mt19937_64 random(21);
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string text = whole;
    const size_t at = random() % text.size();
    if (i % 3 == 0) text.erase(at, 1 + random() % 9);
    if (i % 3 == 1) text.insert(at, 1, "{}[]:,\"'&*!|>-?#\n\t"[random() % 18]);
    if (i % 3 == 2) text[at] = static_cast<char>('A' + random() % 26);
    CAPTURE(text);
    const std::string error = refusal(text);
    refused += !error.empty();
    CHECK((error.empty() || error.starts_with("a.yaml:")));
  }
  CHECK(refused >= 250);
}

TEST_CASE(
    "accelerate: only one of several MPI processes prints the warnings, and num_processes must "
    "equal the number of processes") {
  if (skips_mpi("the warnings of accelerate's configs")) return;
  const std::string own = std::string(ZG_CONFIGS) + "accelerate.yaml --batch-size 4";
  const Outcome two = checked(mpirun("-np 2 zerograd " + train_with_config + own));
  const std::string line = "main_training_function: accepted without effect";
  const size_t first = two.error.find(line);
  REQUIRE(first != std::string::npos);
  CHECK(two.error.find(line, first + 1) == std::string::npos);
  CHECK(line_after(two.out, "param_hash ") == hash_of(train_with_config + own));
  CHECK(
      contains(checked(mpirun("-np 3 zerograd " + train_with_config + own), 2).error,
               "accelerate.yaml:19:1: num_processes: expected the 3 processes that were started"));
}

TEST_CASE("accelerate: --inject accepts rank 1 if the YAML file sets num_processes to 2") {
  checked(configured(std::string("--batch-size 4 --inject rank=1,step=0,fault=throw --config ") +
                     ZG_CONFIGS + "accelerate.yaml")
              .outcome);
}

}  // namespace zg::testing
