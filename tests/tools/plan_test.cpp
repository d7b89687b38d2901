#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <regex>

#include "tests/support/cover.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

std::string memory_json(const std::string& command, const std::string& path) {
  CAPTURE(command);
  checked(zerograd(command + " --steps 3 --memory-json " + path));
  return read_file(path);
}

/// A file of 4000 characters, 12 of them different.
std::string text_in(const TemporaryFolder& folder) {
  std::string characters;
  for (int i = 0; i < 4000; ++i) characters += static_cast<char>('a' + i * i % 23);
  const std::string path = folder / "text.txt";
  write_file(path, characters);
  return path;
}

/// Gives the same draws with every standard library, because it uses no distributions.
struct Draw {
  std::mt19937 engine;
  uint32_t below(size_t n) { return engine() % static_cast<uint32_t>(n); }
  std::string one_of(std::initializer_list<const char*> values) {
    return values.begin()[below(values.size())];
  }
};

std::string random_setting(uint32_t seed, const std::string& text) {
  Draw draw{std::mt19937(seed)};
  const uint32_t stage = draw.below(4), heads = 1 + draw.below(3);
  const int width = static_cast<int>(heads) * std::stoi(draw.one_of({"8", "16", "20", "32"}));
  const std::string from_text = "--data " + text + " --block-size ";
  std::string flags;
  if (draw.below(3) == 0)
    flags = from_text + draw.one_of({"1", "7", "32"});
  else
    flags = "--data " + draw.one_of({"sort", "adder"});
  flags += " --n-layer " + draw.one_of({"1", "2", "3"}) + " --n-head " + std::to_string(heads);
  flags += " --n-embd " + std::to_string(width) + draw.one_of({" --tied", " --untied"});
  flags += " --ranks " + draw.one_of({"1", "2", "3", "4", "8"}) + " --zero-stage " +
           std::to_string(stage);
  flags += " --precision " + draw.one_of({"f32", "bf16", "f16", "deepspeed", "fsdp-memory"});
  flags += " --grad-accum-dtype " + draw.one_of({"f32", "bf16"});
  flags += " --batch-size " + draw.one_of({"1", "2", "5", "16"});
  flags += " --grad-accum " + draw.one_of({"1", "2", "3"});
  flags += " --reduce-bucket-size " + draw.one_of({"500", "10000", "5e8"});
  flags += " --prefetch-bucket-size " + draw.one_of({"0", "5000", "5e7"});
  flags += " --prefetch-units " + draw.one_of({"1", "3"});
  flags += " --param-persistence-threshold " + draw.one_of({"0", "100", "1e5"});
  flags += " --overlap-comm " + draw.one_of({"on", "off"});
  flags += " --threads " + draw.one_of({"0", "1", "2", "3"});
  flags += " --dropout " + draw.one_of({"0", "0.1"});
  flags += draw.one_of({"", " --activation-checkpoint"});
  flags += draw.one_of({"", " --offload-optimizer host", " --offload-gradients host",
                        " --offload-gradients nvme --nvme-path /tmp", " --offload-activations host",
                        " --cpu-offload", " --cpu-offload --offload-activations host",
                        " --offload-optimizer nvme --nvme-path /tmp",
                        " --offload-optimizer nvme --offload-activations nvme --nvme-path /tmp"});
  if (stage == 3)
    flags += draw.one_of({"", " --offload-param host", " --offload-param nvme --nvme-path /tmp"});
  if (stage < 2) flags += draw.one_of({"", " --reduce-at-boundary"});
  return flags;
}

std::string plan_of(const std::string& flags) { return zerograd("plan " + flags).out; }

}  // namespace

TEST_CASE("plan predicts what train measures, to the byte") {
  const std::string small = "--data sort --steps 3 --batch-size 8 --precision ";
  for (const char* flags :
       {"f32", "bf16 --activation-checkpoint", "f32 --ranks 2 --zero-stage 1 --grad-accum 2",
        "bf16 --ranks 2 --zero-stage 3 --param-persistence-threshold 0",
        "f32 --ranks 4 --zero-stage 2 --reduce-bucket-size 1000 --model-type gpt-micro",
        "bf16 --ranks 4 --zero-stage 3 --activation-checkpoint --grad-accum 3 --batch-size 2",
        "bf16 --ranks 4 --zero-stage 0 --reduce-at-boundary --overlap-comm off",
        "f16 --ranks 2 --zero-stage 2", "deepspeed --ranks 2 --zero-stage 3",
        "fsdp-mixed --ranks 2 --zero-stage 1", "fsdp-memory --ranks 4 --zero-stage 3",
        "fsdp-memory --zero-stage 0 --ranks 2 --grad-accum-dtype f32",
        // Each step is clipped, and redone or not speculated.
        "bf16 --ranks 2 --zero-stage 3 --offload-param nvme --offload-optimizer nvme --nvme-path "
        "/tmp --param-persistence-threshold 0 --speculation 1GiB --clip 1e-3",
        // Steps are skipped. In f16 with a scale of 2^30 all three overflow.
        "f32 --ranks 2 --inject rank=1,step=1,fault=inf",
        "bf16 --ranks 2 --zero-stage 2 --inject rank=0,step=0+2,fault=inf",
        "f16 --ranks 2 --zero-stage 0 --initial-scale-power 30",
        "f16 --ranks 2 --zero-stage 3 --initial-scale-power 30"})
    check_plan_is_run(small + flags);
}

TEST_CASE("plan predicts what train measures where several blocks are gathered ahead") {
  const TemporaryFolder folder;
  // A block has about 3300 elements: one is gathered ahead, or three.
  const std::string chain = "--data " + text_in(folder) +
                            " --steps 3 --block-size 16 --n-layer 6 --n-head 2 --n-embd 16 "
                            "--batch-size 4 --grad-accum 3 --eval-interval 2 --eval-batches 2 "
                            "--zero-stage 3 --param-persistence-threshold 0 --prefetch-units 8 ";
  const char* const ranks[] = {"--ranks 1", "--ranks 2 --activation-checkpoint",
                               "--ranks 4 --precision bf16",
                               "--ranks 4 --pipeline-parallel 2 --activation-checkpoint"};
  const char* const places[] = {"none", "host", "nvme --nvme-path /tmp"};
  const char* const buckets[] = {"4000", "12000"};
  for_cover(
      [&](const std::string& rank, const std::string& place, const std::string& bucket) {
        check_plan_is_run(chain + rank + " --offload-param " + place + " --prefetch-bucket-size " +
                          bucket);
      },
      ranks, places, buckets);
}

TEST_CASE("plan predicts what train measures in settings drawn at random") {
  const TemporaryFolder folder;
  const std::string text = text_in(folder);
  MESSAGE("the last of 20 by ZG_COVER_SEED=" << cover_seed());
  const uint32_t drawn = static_cast<uint32_t>(19 + cover_seed());
  for (uint32_t seed = 1; seed <= 20; ++seed)
    check_plan_is_run("--steps 3 " + random_setting(seed < 20 ? seed : drawn, text));
}

TEST_CASE("plan predicts the memory of validations, samples, saves and gradient dumps") {
  const TemporaryFolder folder;
  const std::string text =
      "--data " + text_in(folder) + " --steps 3 --block-size 32 --batch-size 2 --eval-batches 3 ";
  const std::string files =
      " --dump-gradients " + (folder / "gradients") + ":1 --save " + (folder / "save");
  check_plan_is_run(text + "--eval-interval 1");
  check_plan_is_run(text + "--ranks 2 --zero-stage 3 --eval-interval 1 --sample-interval 2");
  check_plan_is_run(text + "--ranks 4 --zero-stage 2 --precision bf16 --grad-accum-dtype bf16" +
                    files + " --save-interval 1");
  check_plan_is_run(text + "--ranks 2 --zero-stage 3 --precision bf16 --eval-interval 2" + files +
                    "2 --save-interval 2");
  check_plan_is_run(text +
                    "--ranks 2 --zero-stage 3 --offload-optimizer nvme --offload-param nvme" +
                    " --nvme-path " + folder.path() + files + "3 --save-interval 1");
  check_plan_is_run(text + "--ranks 2 --zero-stage 1 --precision fsdp-memory --eval-interval 2" +
                    files + "4 --save-interval 1 --async-save");
  check_plan_is_run(text +
                    "--ranks 2 --zero-stage 3 --offload-optimizer nvme --offload-param nvme" +
                    " --nvme-path " + folder.path() + files + "5 --save-interval 2 --async-save");
}

TEST_CASE("plan with --epochs predicts the memory of train with --epochs") {
  const TemporaryFolder folder;
  check_plan_is_run("--data sort --batch-size 32 --epochs 0.02");
  checked(zerograd("plan --data sort --batch-size 32 --epochs 0.02 --memory-json " + folder / "m"));
  CHECK(contains(read_file(folder / "m"), "\"steps\":6,"));
  // Without data an epoch has no number of steps.
  const std::string no_data = "--vocab-size 3 --block-size 11 --model-type gpt-nano";
  CHECK(plan_of(no_data + " --epochs 9") == plan_of(no_data));
}

TEST_CASE("plan predicts the memory of runs that start from a checkpoint") {
  const TemporaryFolder folder;
  checked(
      zerograd("train --data sort --batch-size 4 --grad-accum 2 --steps 1 --ranks 2 --zero-stage 1 "
               "--precision bf16 --score-samples 0 --save " +
               (folder / "save")));
  check_plan_is_run("--steps 3 --resume " + (folder / "save"));
  check_plan_is_run("--steps 3 --resume " + (folder / "save") + " --ranks 4 --zero-stage 3");
  check_plan_is_run("--steps 3 --data sort --batch-size 4 --init " + (folder / "save") +
                    " --ranks 2 --zero-stage 3");
}

TEST_CASE("plan follows --threads and the instruction set of ZG_CPU_ISA") {
  check_plan_is_run("--steps 3 --data sort --threads 3");
  setenv("ZG_CPU_ISA", "portable", 1);
  check_plan_is_run("--steps 3 --data sort --model-type gpt-nano --batch-size 2");
  unsetenv("ZG_CPU_ISA");
}

TEST_CASE("the rows of plan's memory record add up, and its peak is the largest row") {
  const TemporaryFolder folder;
  memory_json("plan --data sort --ranks 4 --zero-stage 2 --precision bf16", folder / "m.json");
  const nlohmann::json record = json_lines(folder / "m.json")[0];
  CHECK(record.at("schema") == 1);
  CHECK(record.at("world") == 4);
  CHECK(record.at("stage") == 2);
  CHECK(record.at("precision") == "bf16");
  CHECK(record.at("steps") == 3);
  const int64_t parameters = record.at("parameters");
  int64_t sums = 0, states = 0;
  REQUIRE(record.at("ranks").size() == 4);
  for (const nlohmann::json& rank : record.at("ranks")) {
    const nlohmann::json& rest = rank.at("rest");
    CHECK(rest.at("parameter") == 2 * parameters);
    sums += rest.at("gradient").get<int64_t>();
    states += rest.at("optimizer").get<int64_t>();
    int64_t most = 0;
    std::string at;  // the row with the peak
    REQUIRE(rank.at("rows").size() == 18);
    for (const nlohmann::json& row : rank.at("rows")) {
      int64_t live = 0;
      for (const auto& [purpose, bytes] : row.at("device").items()) live += bytes.get<int64_t>();
      CHECK(live == row.at("live"));
      CHECK(row.at("max") >= row.at("live"));
      CHECK(row.at("reserved") >= row.at("max"));
      if (row.at("reserved") > most) {
        most = row.at("reserved");
        at = row.at("at");
      }
    }
    CHECK(rank.at("peak").at("reserved") == most);
    CHECK("after_" + rank.at("peak").at("phase").get<std::string>() == at);
    const int64_t resting = rest.at("parameter").get<int64_t>() +
                            rest.at("gradient").get<int64_t>() +
                            rest.at("optimizer").get<int64_t>() + rest.at("padding").get<int64_t>();
    CHECK(rank.at("rows")[5].at("live") == resting);
  }
  CHECK(sums == 4 * parameters);
  CHECK(states == 12 * parameters);
}

TEST_CASE("plan prints the peak, the bytes on the wire and whether the run fits") {
  const std::string large = "--data sort --model-type gpt2-xl --device-memory 12GiB ";
  const TemporaryFolder folder;
  CHECK(
      line_after(checked(zerograd("plan " + large + "--memory-json " + (folder / "m.json")), 3).out,
                 "fits 12GiB: ") == "no; smallest setting that fits: --zero-stage 0 --cpu-offload");
  // Where no small change of the run fits, the line names one of all settings: plan confirms it.
  for (const std::string run :
       {"--data sort --model-type gpt2-xl --device-memory 300MiB --nvme-path /tmp ",
        "--data sort --model-type gpt-micro --device-memory 10MiB "}) {
    const std::string words = "smallest setting that fits: ", refused = plan_of(run);
    CAPTURE(refused);
    const std::string setting = refused.substr(refused.rfind(words) + words.size());
    CHECK(contains(checked(zerograd("plan " + run + setting)).out, ": yes; smallest "));
  }
  CHECK(contains(plan_of("--data sort --device-memory 1MiB"),
                 "smallest setting that fits: none, with any stage, place of states, micro-batch "
                 "and axis of the ranks: the smallest of those planned takes "));
  // A model too large for one rank's device trains on one rank with states on the host.
  const Outcome offloaded = checked(zerograd("plan " + large + "--cpu-offload --zero-stage 3"));
  CHECK(contains(offloaded.out, "\nhost 2"));
  CHECK(line_after(offloaded.out, "fits 12GiB: ") ==
        "yes; smallest setting that fits: --zero-stage 3");
  const nlohmann::json rest = json_lines(folder / "m.json")[0].at("ranks")[0].at("rest");
  double states = 0.0;
  for (const auto& [kind, bytes] : rest.items()) states += bytes.get<double>();
  CHECK(states / (1 << 30) == doctest::Approx(22.0).epsilon(0.001));
  const Outcome zero = checked(zerograd("plan " + large + "--ranks 8"), 3);
  CHECK(line_after(zero.out, "number of parameters: ") == "1475588800");
  CHECK(line_after(zero.out, "fits 12GiB: ") == "no; smallest setting that fits: --zero-stage 1");
  // Each parameter has 16 bytes. Stage 0 partitions only the gradient accumulators, 4 of them.
  CHECK(std::stod(line_after(zero.out, "peak ")) > 12.5 * 1475588800 / (1 << 20));
  CHECK(contains(line_after(zero.out, "peak "), " MiB (rank 0, step 0, backward)"));
  const Outcome one = checked(zerograd("plan " + large + "--ranks 8 --zero-stage 1"));
  CHECK(line_after(one.out, "fits 12GiB: ") == "yes; smallest setting that fits: --zero-stage 1");
  // A reduction and a gather of bf16 from 7 of 8 owners: 283.9. Scalars add little.
  const double wire = std::stod(line_after(
      plan_of("--data sort --model-type gpt2 --ranks 8 --zero-stage 1 --precision bf16"), "wire "));
  CHECK(wire >= 283.9);
  CHECK(wire < 284.5);
  checked(zerograd("plan --data sort --device-memory 1MiB"), 3);
  CHECK(contains(plan_of("--data sort --device-memory 50MiB"), "\nfits 50MiB: yes; "));
}

TEST_CASE("plan uses a published model's own vocabulary and positions when no data is given") {
  struct Model {
    const char *name, *parameters;  // embedding, positions and a head of its own
  };
  for (const Model& model : {Model{"gpt2-xl", "1638022400"}, Model{"gpt2", "163037184"},
                             Model{"openai-gpt", "147623424"}, Model{"gopher-44m", "59036672"},
                             Model{"bloom-560m", "559214592"}}) {
    CAPTURE(model.name);
    const std::string flags = std::string("--steps 1 --batch-size 1 --model-type ") + model.name;
    CHECK(line_after(plan_of(flags), "number of parameters: ") == model.parameters);
  }
  // Flags override the preset, and so does data: sort has 3 tokens and 11 positions.
  CHECK(line_after(plan_of("--model-type gpt2 --tied --steps 1 --batch-size 1"),
                   "number of parameters: ") == "124439808");
  CHECK(line_after(plan_of("--model-type gpt2 --vocab-size 3 --block-size 11 --steps 1"),
                   "number of parameters: ") ==
        line_after(plan_of("--model-type gpt2 --data sort --steps 1"), "number of parameters: "));
  CHECK(line_after(plan_of("--model-type bloom-560m --vocab-size 100 --steps 1 --batch-size 1"),
                   "number of parameters: ") ==
        std::to_string(559'214'592 - (250880 - 100) * 1024));
  for (const char* small : {"gpt-mini", "gpt-micro", "gpt-nano"})
    check_refused(std::string("plan --model-type ") + small, 2,
                  "--vocab-size and --block-size for a plan without data");
  checked(zerograd("train --model-type gpt2 --steps 1"), 2);
}

TEST_CASE("plan writes no files for --save, --metrics and --trace") {
  const TemporaryFolder folder;
  const Outcome outcome =
      checked(zerograd("plan --data sort --steps 1 --save " + (folder / "save") + " --metrics " +
                       (folder / "metrics") + " --trace " + (folder / "trace")));
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(contains(outcome.error, "without effect: --metrics, --save, --trace\n"));
  const std::string looks = "plan --data sort --steps 1 --resume auto --save " + (folder / "save");
  CHECK(zerograd(looks).error.empty());
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a run that no machine can hold is refused before it trains") {
  for (const char* flags : {"--batch-size 1e9", "--model-type gpt2-xl --ranks 20000",
                            "--ranks 100000000", "--batch-size 1e9 --ranks 2 --zero-stage 3"}) {
    CAPTURE(flags);
    const Outcome outcome =
        checked(zerograd(std::string("train --data sort --steps 2 ") + flags), 3);
    CHECK(outcome.out.empty());
    CHECK(contains(outcome.error, "error: OutOfMemory: "));
    CHECK((contains(outcome.error, " by plan; this machine has ") ||
           contains(outcome.error, "; this system allows ")));
    CHECK(contains(outcome.error, "; try "));
  }
  // The device memory limit ends the run before the machine is out of memory.
  check_refused("train --data sort --batch-size 1e6 --device-memory 8MiB", 3,
                "expected at most 8.00 MiB");
}

TEST_CASE("plan --explain prints the ZeRO paper's formulas beside this runtime's") {
  const Outcome outcome = checked(zerograd("plan --explain"));
  CHECK(contains(outcome.out,
                 "7.5e+09 parameters on 64 ranks; the paper: 2 bytes of value, 2 of "
                 "gradient, K = 12 of optimizer;"));
  CHECK(line_after(outcome.out, "| 0 | ") == "120.0 | 1x | 105.5 | 15.0 | 0.5 | 90.0 | 1x |");
  CHECK(line_after(outcome.out, "| 1 | ") == "31.4 | 1x | 16.9 | 15.0 | 0.5 | 1.4 | 1x |");
  CHECK(line_after(outcome.out, "| 2 | ") == "16.6 | 1x | 16.9 | 15.0 | 0.5 | 1.4 | 1x |");
  CHECK(line_after(outcome.out, "| 3 | ") == "1.9 | 1.5x | 2.1 | 0.2 | 0.5 | 1.4 | 1.5x |");
  CHECK(line_after(outcome.out, "| deepspeed | ") == "bf16 | bf16 | f32 | bf16 | f32 |");
  CHECK(line_after(outcome.out, "| fsdp-mixed | ") == "bf16 | bf16 | f32 | bf16 | f32 |");
  CHECK(line_after(outcome.out, "| fsdp-memory | ") == "bf16 | none | bf16 | bf16 | bf16 |");
  CHECK(line_after(outcome.out, "| f16 | ") == "f32 | f16 | f32 | f16 | f32 |");
  const std::string run = zerograd("plan --data sort --precision fsdp-memory --explain").out;
  CHECK(contains(run, "resting bytes of rank 0 at stage 0"));
  // One row is in the table of presets, one describes this run.
  const std::string row = "| fsdp-memory | bf16 | none | bf16 | bf16 | bf16 |";
  CHECK(run.find(row) < run.find("This run: "));
  CHECK(run.rfind(row) > run.find("This run: "));
}

TEST_CASE(
    "plan --explain explains the model that flags name, and plan needs a folder's config alone") {
  const Outcome named = checked(zerograd("plan --explain --model-type gpt2 --steps 1"));
  CHECK(contains(named.out, "This run: 1.63e+08 parameters on 1 ranks"));
  const TemporaryFolder folder;
  const std::string save = folder / "save", whole = folder / "whole", config = folder / "config";
  checked(
      zerograd("train --data sort --n-layer 2 --n-head 2 --n-embd 32 --steps 1 --score-samples "
               "0 --save " +
               save));
  checked(zerograd("export " + save + " --hf " + whole));
  std::filesystem::create_directory(config);
  std::filesystem::copy_file(whole + "/config.json", config + "/config.json");
  const std::string run = " --ranks 2 --zero-stage 3 --precision bf16 --from-hf ";
  CHECK(checked(zerograd("plan" + run + config)).out ==
        checked(zerograd("plan" + run + whole)).out);
  check_refused("train --data sort" + run + config, 5, "expected a folder with model.safetensors");
}

TEST_CASE("plan says which device it plans, and host and disk bytes per rank and per node") {
  const std::string run = "plan --data sort --steps 1 --ranks 4 --zero-stage 3 --cpu-offload ";
  CHECK(contains(checked(zerograd(run + "--device-memory 24GiB")).out,
                 "--device-memory without --device limits ranks on CPUs"));
  const Outcome card = checked(zerograd(run + "--card h100 --nodes 2 --node-memory 64GiB"));
  CHECK(contains(card.out, "card: H100 80GB, cuda kernels, 80 GiB\nreserve: 1.5 GiB of each "));
  CHECK(contains(card.out, "host: 64 GiB of a node for 2 ranks, 32 GiB each\n"));
  CHECK(line_after(card.out, "host ").ends_with(" MiB per node of 2 ranks"));
  CHECK(contains(card.out, "\nfits 78.5GiB and 32GiB of host memory: yes"));
  check_refused(run + "--card h1000", 2, "--card: expected one of H100 80GB, H200 141GB, ");
  check_refused(run + "--nodes 3", 2, "--nodes: expected a divisor of the 4 ranks, got 3");
  check_refused(run + "--advise", 2, "--advise: expected a limit to fit into");
  check_refused(run + "--card h100 --device cpu", 2, "--card: a H100 80GB runs cuda kernels; ");
  check_refused(run + "--card h100 --reserve 80GiB", 2,
                "--reserve: expected less than the 80 GiB of a device, got 80 GiB; ");
  check_refused(run + "--device-memory 1GiB --advise --peaks " ZG_PEAKS "h100-sxm.json", 2,
                "has the rates of a GPU; expected those of --device cpu");
}

TEST_CASE("a run fits in its planned peak, and with 2 MiB less it runs out of memory") {
  const TemporaryFolder folder;
  const std::string run =
      "--data sort --model-type gpt-mini --batch-size 8 --ranks 2 --zero-stage ";
  std::vector<int64_t> needs;
  const auto train = [&](int stage, int64_t cap) {
    return zerograd("train --steps 3 --score-samples 0 --log-interval 0 " + run +
                    std::to_string(stage) + " --device-memory " + std::to_string(cap));
  };
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    memory_json("plan " + run + std::to_string(stage), folder / "m.json");
    const nlohmann::json record = json_lines(folder / "m.json")[0];
    int64_t need = 0;
    for (const nlohmann::json& rank : record.at("ranks"))
      need = std::max(need, rank.at("peak").at("reserved").get<int64_t>());
    needs.push_back(need);
    CHECK(train(stage, need).status == 0);
    CHECK(train(stage, need - (2 << 20)).status == 3);
  }
  // The next test uses 40 MiB as the device memory limit.
  CHECK(needs[0] > int64_t{40} << 20);
  CHECK(needs[3] < int64_t{40} << 20);
}

TEST_CASE("a run that is out of memory names a setting that fits, and that setting trains") {
  const std::string run =
      "train --data sort --model-type gpt-mini --batch-size 8 --ranks 2 --steps 3 --score-samples "
      "0 --log-interval 0 --device-memory 40MiB ";
  const Outcome full = checked(zerograd(run), 3);
  const std::regex refusal(
      "error: OutOfMemory: rank [01]/2: allocate: [0-9.]+ MiB \\([0-9]+ bytes\\) of "
      "(activation|workspace|gradient) for [a-z0-9. ]+ on cpu:[01] \\(device\\) in phase "
      "(forward|backward); expected at most 40.00 MiB in all, of which [0-9.]+ MiB are reserved");
  CHECK(std::regex_search(full.error, refusal));
  CHECK(contains(full.error, "\n  optimizer 20.40 MiB\n"));
  const std::string setting = line_after(full.error, "try ");
  CHECK(setting == "--zero-stage 1: the smallest setting that fits");
  checked(zerograd(run + setting.substr(0, setting.find(':'))));
  const TemporaryFolder folder;
  const std::string tiny = "train --data sort --score-samples 0 --steps 3 --nvme-path " +
                           folder.path() + " --device-memory ";
  const Outcome none = checked(zerograd(tiny + "1MiB"), 3);
  CHECK(!contains(none.error, "smaller batch"));
  std::smatch least;
  REQUIRE(std::regex_search(
      none.error, least,
      std::regex(
          "settings that fit: none, with any stage, [^:]*: the smallest of those planned takes "
          "[0-9.]+ MiB "
          "\\(([0-9]+) bytes\\) of device memory, with (--zero-stage [^;]*); try more --ranks, ")));
  const std::string one = " " + least.str(2);
  checked(zerograd(tiny + least.str(1) + one));
  checked(zerograd(tiny + std::to_string(std::stoll(least.str(1)) - 1) + one), 3);
}

}  // namespace zg::testing
