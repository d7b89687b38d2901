#include <thread>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/storage/safetensors.h"

namespace zg::testing {
namespace {

const std::string consolidated_run =
    "train --data sort --batch-size 2 --score-samples 0 --log-interval 0 --threads 1 --n-layer 2 "
    "--n-head 2 --n-embd 16 --steps 3 ";

std::string evaluated(const std::string& what) {
  const Outcome outcome =
      checked(zerograd("eval " + what + " --eval-batches 3 --score-samples 20"));
  CHECK(contains(outcome.out, "val loss "));
  return outcome.out;
}

/// A safetensors file of so many tensors of 4 MiB, with one of two elements first.
void write_large(const std::string& path, int64_t tensors) {
  std::vector<SafetensorsWriter::Entry> entries = {{"transformer.wte.weight", DType::f32, {1, 2}},
                                                   {"transformer.wpe.weight", DType::f32, {2, 2}}};
  for (int64_t i = 0; i < tensors; ++i)
    entries.push_back({"w" + std::to_string(i), DType::f32, {1024, 1024}});
  SafetensorsWriter writer(path, entries);
  writer.write_floats(std::vector<float>(2, 1.0f));
  writer.write_floats(std::vector<float>(4, 1.0f));
  for (int64_t i = 0; i < tensors; ++i)
    writer.write_floats(std::vector<float>(1 << 20, static_cast<float>(i)));
  writer.finish();
}

}  // namespace

TEST_CASE(
    "a consolidated file evaluates like its checkpoint, and consolidate --split makes a checkpoint "
    "of it") {
  for (const std::string flags : {"--ranks 2 --zero-stage 2", "--tied --precision bf16"}) {
    CAPTURE(flags);
    const TemporaryFolder folder;
    const std::string save = folder / "save", file = folder / "weights.safetensors";
    const Outcome trained = zerograd(consolidated_run + flags + " --save " + save);
    const std::string hash = line_after(trained.out, "param_hash ");
    const Outcome outcome = checked(zerograd("consolidate " + save + " " + file));
    CHECK(outcome.out == "saved " + file + " of " + save + "/step_3\nparam_hash " + hash + "\n");
    const bool tied = contains(flags, "--tied");
    CHECK(SafetensorsReader(file).contains("lm_head.weight") == !tied);
    CHECK(evaluated(file) == evaluated(save));
    checked(zerograd("eval " + file + " --n-head 2"), 2);

    const std::string three = folder / "three";
    CHECK(checked(zerograd("consolidate --split " + file + " " + three + " --ranks 3")).out ==
          "saved " + three + "/step_0\nparam_hash " + hash + "\n");
    checked(zerograd("verify " + three));
    CHECK(evaluated(three) == evaluated(save));
    checked(zerograd("consolidate --split " + file + " " + three), 2);
    // Nothing is behind it: --init and --resume of it train alike.
    const std::string rest = consolidated_run + flags + " --dropout 0 ";
    const Outcome resumed = zerograd(rest + "--resume " + three);
    CHECK(contains(resumed.error, "; steps 0 to 3\n"));
    const std::string resumed_hash = line_after(resumed.out, "param_hash ");
    for (const std::string& weights : {three, file})
      CHECK(hash_of(rest + "--init " + weights) == resumed_hash);
    CHECK(resumed_hash.size() == 32);

    const std::string half = folder / "half.safetensors";
    checked(zerograd("consolidate " + save + " " + half + " --dtype bf16"));
    CHECK(SafetensorsReader(half).entries().begin()->second.dtype == DType::bf16);
    evaluated(half);
  }
}

TEST_CASE("consolidate needs a few MiB of memory, not the size of the model") {
  const TemporaryFolder folder;
  write_large(folder / "small", 1);
  write_large(folder / "large", 24);
  const auto converted = [&](const std::string& name) {
    const Outcome split = checked(zerograd("consolidate --split " + (folder / name) + " " +
                                           (folder / name + "_split") + " --n-head 1 --ranks 2"));
    const Outcome joined = checked(
        zerograd("consolidate " + (folder / name + "_split") + " " + (folder / name + "_joined")));
    CHECK(line_after(split.out, "param_hash ") == line_after(joined.out, "param_hash "));
    return std::max(split.resident_bytes, joined.resident_bytes);
  };
  const int64_t small = converted("small"), large = converted("large");
  MESSAGE("resident " << small << " bytes for 4 MiB of weights, " << large << " for 96 MiB");
  CHECK(large - small < 4 << 20);  // one tensor; what was read is 24 times that
}

TEST_CASE("when two splits write to one new folder, one succeeds and the other is refused") {
  const TemporaryFolder folder;
  std::vector<std::string> files;
  for (const std::string seed : {"1", "2"}) {
    const std::string save = folder / seed, file = folder / (seed + ".safetensors");
    checked(zerograd(consolidated_run + "--seed " + seed + " --save " + save));
    checked(zerograd("consolidate " + save + " " + file));
    files.push_back(file);
  }
  for (int round = 0; round < 10; ++round) {
    const std::string target = folder / ("split" + std::to_string(round));
    std::vector<Outcome> outcomes(2);
    {
      std::vector<std::thread> threads;
      for (size_t i = 0; i < 2; ++i)
        threads.emplace_back([&, i] {
          outcomes[i] = zerograd("consolidate --split " + files[i] + " " + target + " --ranks 9");
        });
      for (std::thread& thread : threads) thread.join();
    }
    const bool first = outcomes[0].status == 0;
    const Outcome &done = outcomes[first ? 0 : 1], &refused = outcomes[first ? 1 : 0];
    CAPTURE(refused.error);
    CHECK(done.status == 0);
    CHECK(refused.status == 2);
    CHECK((contains(refused.error, "another run is writing") ||
           contains(refused.error, "holds checkpoints, up to step_0")));
    checked(zerograd("verify " + target));
  }
}

TEST_CASE("consolidate refuses options that do not go together and missing files") {
  checked(zerograd("consolidate a b --ranks 2"), 2);
  checked(zerograd("consolidate --split a b --dtype bf16"), 2);
  checked(zerograd("consolidate a"), 2);
  checked(zerograd("consolidate absent b"), 5);
  checked(zerograd("consolidate --split absent b"), 5);
}

}  // namespace zg::testing
