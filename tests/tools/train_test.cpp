#include <algorithm>
#include <filesystem>
#include <set>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

// A short gpt-nano run on the sort task, the base of every comparison of parameter hashes.
const std::string train_run =
    "train --data sort --steps 8 --batch-size 16 --score-samples 0 --log-interval 4 --threads 1 ";

std::string with(const std::string& flags) { return train_run + flags; }

}  // namespace

TEST_CASE("a short training prints the lines that scripts read") {
  const Outcome outcome = checked(
      zerograd("train --data sort --steps 5 --batch-size 8 --score-samples 20 --log-interval 2 "
               "--eval-interval 5 --eval-batches 1"));
  CHECK(line_after(outcome.out, "number of parameters: ") == "0.09M");
  CHECK(contains(outcome.out, "; iter 4: train loss "));
  CHECK(contains(outcome.out, " tokens/s"));
  CHECK(contains(line_after(outcome.out, "train final score: "), "/20 = "));
  CHECK(contains(line_after(outcome.out, "test final score: "), "% correct"));
  CHECK(line_after(outcome.out, "val loss ").size() == 6);
  for (const char* line :
       {"input sequence  : [", "predicted sorted: [", "gt sort         : [", "matches         : "})
    CHECK(contains(outcome.out, line));
  CHECK(line_after(outcome.out, "param_hash ").size() == 32);
  CHECK(contains(outcome.error, "rank 0/1 pid "));
}

TEST_CASE("metrics are a JSON line per step and a final one") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const std::string hash = hash_of(with("--grad-accum 2 --metrics " + path));
  const std::vector<nlohmann::json> lines = json_lines(path);
  REQUIRE(lines.size() == 9);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(lines[i].at("step") == i);
    CHECK(lines[i].at("micro_steps") == 2);
    CHECK(lines[i].at("samples") == 32);
    CHECK(lines[i].at("loss").get<double>() > 0.0);
    CHECK(lines[i].at("loss").get<double>() < 2.0);  // ln 3 for an untrained model
    CHECK(lines[i].at("grad_norm").get<double>() > 0.0);
    CHECK(lines[i].at("lr") == 5e-4);
    CHECK(lines[i].at("loss_scale") == 1);
    CHECK(lines[i].at("skipped") == false);
    CHECK(lines[i].at("tokens_per_s").get<double>() > 0.0);
    CHECK(lines[i].at("step_s").get<double>() > 0.0);
    CHECK(lines[i].at("peak_bytes").get<int64_t>() > 0);
    CHECK(lines[i].at("host_peak_bytes") == 0);
    CHECK(!lines[i].contains("redone"));
  }
  const nlohmann::json& last = lines.back();
  CHECK(last.at("final") == true);
  CHECK(last.at("steps") == 8);
  CHECK(last.at("skipped") == 0);
  CHECK(last.at("param_hash") == hash);
  CHECK(last.at("train_score").is_null());
  CHECK(last.at("wire_bytes").at("all_reduce") == 0);
}

TEST_CASE("a run with speculation has the same hash, and its metrics count redone steps") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  for (const auto& [clip, redone] : {std::pair("1e-3", 3), std::pair("1e6", 0)}) {
    CAPTURE(clip);
    const std::string run = with(std::string("--clip ") + clip);
    const std::string speculates =
        run + " --offload-optimizer nvme --nvme-path /tmp --speculation 1GiB";
    CHECK(hash_of(speculates + " --metrics " + path) == hash_of(run));
    CHECK(json_lines(path).at(7).at("redone") == redone);
  }
}

TEST_CASE(
    "a run gives the same bits with recomputation, evaluations, a memory dump and two threads") {
  const std::string hash = hash_of(train_run);
  CHECK(hash_of(train_run) == hash);
  CHECK(hash_of(with("--activation-checkpoint")) == hash);
  CHECK(hash_of(with("--eval-interval 3 --dump-memory")) == hash);
  std::string two_threads = train_run;
  two_threads.replace(two_threads.find("--threads 1"), 11, "--threads 2");
  CHECK(hash_of(two_threads) == hash);
  CHECK(hash_of(with("--seed 1")) != hash);
  CHECK(hash_of(with("--lr 1e-3")) != hash);
}

TEST_CASE("accumulated micro-batches have the loss of one large batch") {
  const TemporaryFolder folder;
  const std::string run =
      "train --data sort --steps 1 --score-samples 0 --log-interval 0 --dropout 0 "
      "--train-batch-size "
      "12 --metrics ";
  zerograd(run + (folder / "one"));
  zerograd(run + (folder / "many") + " --batch-size 3");
  const nlohmann::json one = json_lines(folder / "one")[0];
  const nlohmann::json many = json_lines(folder / "many")[0];
  CHECK(one.at("micro_steps") == 1);
  CHECK(many.at("micro_steps") == 4);
  // Every sample has the same number of targets, so both are one mean of 72 losses near 1. The
  // rounding of f32 sums differs by at most 72 half ulps, that of the norm by a few times as much
  // because of the backward pass.
  CHECK(many.at("loss").get<double>() ==
        doctest::Approx(one.at("loss").get<double>()).epsilon(1e-5));
  CHECK(many.at("grad_norm").get<double>() ==
        doctest::Approx(one.at("grad_norm").get<double>()).epsilon(1e-4));
}

TEST_CASE("a resumed run gives the same bits as the uninterrupted run") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  const std::string hash = hash_of(with("--save " + save + " --save-interval 3 --save-top-k -1"));
  for (const char* step : {"step_3", "step_6", "step_8"})
    CHECK(std::filesystem::is_directory(save + "/" + step));
  CHECK(hash_of(with("--resume " + save + "/step_3")) == hash);
  // All settings except --steps come from the checkpoint.
  CHECK(hash_of("train --steps 8 --score-samples 0 --resume " + save + "/step_6") == hash);

  CHECK(hash_of(with("--resume " + save)) == hash);
  check_refused(with("--n-layer 2 --n-head 3 --n-embd 48 --resume " + save), 2,
                "model.layers: expected 3 as in the checkpoint, got 2");
  const Outcome changed = checked(zerograd(with("--lr 1e-3 --resume " + save + "/step_6")));
  CHECK(contains(changed.error, "changed: run.rate: 0.0005 in the checkpoint, 0.001 now"));
}

TEST_CASE("--save-top-k takes a loss that is not finite for the worst") {
  const TemporaryFolder folder;
  const Outcome outcome =
      zerograd(with("--lr 1e38 --save-interval 1 --save-top-k 1 --save " + folder.path()));
  CAPTURE(outcome.error);
  CHECK(contains(outcome.error, "the loss is not finite since step 1"));
  CHECK(std::filesystem::exists(folder / "step_1"));
  CHECK(std::filesystem::exists(folder / "step_8"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 3);
}

TEST_CASE("--save-top-k reads the new checkpoint back before it removes another") {
  const TemporaryFolder folder;
  // Bytes read by this process and its finished children.
  const auto bytes_read = [] {
    const std::string io = read_file("/proc/self/io");
    return std::stoll(io.substr(io.find("rchar: ") + 7));
  };
  const auto read_by = [&](const std::string& keep) {
    const int64_t before = bytes_read();
    hash_of(with("--save-top-k " + keep + " --save " + (folder / keep)));
    return bytes_read() - before;
  };
  const int64_t all = read_by("-1"), best = read_by("1");
  const auto shard = std::filesystem::file_size(folder / "1/step_8/shard_00000.safetensors");
  CHECK(best - all >= static_cast<int64_t>(shard) * 9 / 10);
}

TEST_CASE(
    "without --save the folder checkpoints is used, and it keeps the best and the newest "
    "checkpoint") {
  const TemporaryFolder folder;
  const auto kept = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoints"))
      names.insert(entry.path().filename().string());
    return names;
  };
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const Outcome first = zerograd(with("--save-interval 2"));
  const auto kept_first = kept();
  const Outcome again = zerograd("train --score-samples 0 --resume auto --steps 9 --save-top-k -1");
  const Outcome kept_all = zerograd("train --score-samples 0 --resume auto --steps 10");
  std::filesystem::current_path(before);
  CHECK(contains(first.out, "saved checkpoints/step_8\n"));
  CHECK(kept_first.size() == 3);
  CHECK(kept_first.count("latest") == 1);
  CHECK(kept_first.count("step_8") == 1);
  CHECK(contains(again.error, "resumed checkpoints/step_8"));
  CHECK(contains(kept_all.out, "saved checkpoints/step_10\n"));
  CHECK(read_file(folder / "checkpoints/latest") == "step_10");
  CHECK(kept().size() == 5);  // options of the first run also apply to runs that resume it
  CHECK(contains(zerograd(with("--save-top-k 0")).error, "or -1 for all, got 0"));
}

TEST_CASE("a damaged checkpoint is skipped, and the newest one that verifies is used") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  const std::string hash = hash_of(with("--save-interval 4 --save-top-k -1 --save " + save));
  const std::string shard = save + "/step_8/shard_00000.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2] ^= 1;
  write_file(shard, bytes);
  const Outcome outcome = checked(zerograd(with("--resume " + save)));
  CHECK(contains(outcome.error, "passed over " + save + "/step_8: "));
  CHECK(line_after(outcome.out, "param_hash ") == hash);
  checked(zerograd(with("--resume " + save + "/step_8")), 5);
}

TEST_CASE(
    "--device-memory that is too small ends in OutOfMemory with a table of bytes by purpose") {
  const Outcome capped = checked(
      zerograd(
          "train --data sort --steps 2 --batch-size 512 --score-samples 0 --device-memory 8MiB"),
      3);
  CHECK(contains(capped.error, "error: OutOfMemory: allocate: "));
  for (const char* purpose : {"parameter ", "gradient ", "optimizer ", "activation "})
    CHECK(contains(capped.error, purpose));
  CHECK(contains(capped.error, "expected at most 8.00 MiB"));
}

TEST_CASE("--dump-memory prints a table with the tutorials' columns and a row per step") {
  const Outcome outcome = zerograd(with("--dump-memory"));
  CHECK(contains(outcome.out,
                 "| step | Before forward (M) | After forward (M) | Before backward (M) | After "
                 "backward (M) | Before step (M) | After step (M) | Max memory (M) |"));
  for (int step = 0; step < 8; ++step) {
    const std::string row = line_after(outcome.out, "| " + std::to_string(step) + " |");
    CHECK(std::ranges::count(row, '|') == 7);
  }
}

}  // namespace zg::testing
