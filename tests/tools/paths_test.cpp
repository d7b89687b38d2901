#include "zerograd/runtime/command_line/command_line.h"

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "tools/commands/subcommands.h"

namespace zg::testing {
namespace {

namespace fs = std::filesystem;

struct ListedFlag {
  std::string name, value, use, text;

  bool is_positional() const { return !name.starts_with("-"); }
  bool is_input() const { return use == "reads" || use == "resumes" || use == "watches"; }
  bool is_output() const { return use == "writes" || use == "adds"; }
};

struct ListedCommand {
  std::string words;
  std::function<int(const std::vector<std::string>& arguments)> run;

  std::vector<ListedFlag> flags() const {
    std::vector<ListedFlag> flags;
    const Outcome outcome = called(words + " --list-flags");
    REQUIRE_MESSAGE(outcome.status == 0, words, ": ", outcome.error);
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream parts(line);
      ListedFlag flag;
      for (std::string* part : {&flag.name, &flag.value, &flag.use, &flag.text})
        std::getline(parts, *part, '\t');
      flags.push_back(flag);
    }
    return flags;
  }
};

std::vector<ListedCommand> all_commands() {
  std::vector<ListedCommand> all;
  for (const tools::Subcommand& subcommand : tools::subcommands)
    if (std::string(subcommand.name) != "bench") all.push_back({subcommand.name, subcommand.run});
  for (const std::string name : {"kernels", "step", "matmul-algorithms", "generate", "pipeline",
                                 "offload", "seq2seq", "tokenizer"})
    all.push_back({"bench " + name, [name](std::vector<std::string> arguments) {
                     arguments.insert(arguments.begin(), name);
                     return tools::bench(arguments);
                   }});
  return all;
}

std::string refusal_of(const std::vector<NamedPath>& paths) {
  const std::string message = message_of<ConfigError>([&] { check_paths(paths); });
  return message == "nothing was thrown" ? "" : message;
}

}  // namespace

TEST_CASE(
    "each flag that takes free text declares a PathUse, or is listed here as taking no path") {
  const std::set<std::string> texts = {
      "--prompt", "--lora-targets", "--source-prefix", "--json-key", "--eod", "--include", "--card",
      "--exclude", "--launcher", "--filter", "--shape", "--against", "--master-addr",
      "--lr-scheduler-kwargs",
      // These are refused with any value.
      "--local-rank", "--ranks", "--num-beams", "--n-val-batch-generations",
      "--val-max-target-length", "--val-min-target-length"};
  int paths = 0;
  for (const ListedCommand& command : all_commands())
    for (const ListedFlag& flag : command.flags()) {
      if (flag.text.empty() && flag.use == "none") continue;
      INFO(command.words, ": ", flag.name, " ", flag.value, " is declared as: ", flag.use,
           "; expected path_flag() with a PathUse for a path");
      CHECK((flag.use == "none") == texts.contains(flag.name));
      paths += flag.use != "none" ? 1 : 0;
    }
  CHECK(paths > 130);
}

TEST_CASE(
    "for every pair of path flags, an output that is an input is refused with the names of both") {
  const TemporaryFolder folder;
  // tokenize appends _text_document.bin to the PREFIX of --output-prefix.
  const std::string file = folder / "f_text_document.bin", contents = "somebody's";
  write_file(file, contents);
  int pairs = 0;
  for (const ListedCommand& command : all_commands()) {
    const std::vector<ListedFlag> flags = command.flags();
    for (const ListedFlag& in : flags)
      for (const ListedFlag& out : flags) {
        if (!in.is_input() || !out.is_output() || (in.use == "watches" && out.use == "adds"))
          continue;
        std::vector<std::string> words;
        for (const ListedFlag& flag : flags) {
          const bool named = flag.name == in.name || flag.name == out.name;
          if (!flag.is_positional() && !named) continue;
          if (!flag.is_positional()) words.push_back(flag.name);
          words.push_back(flag.name == "--output-prefix" ? folder / "f"
                          : named                        ? file
                                                         : folder / ("no" + flag.name));
        }
        CAPTURE(command.words);
        const std::string error = message_of<ConfigError>([&] { command.run(words); });
        const std::string named = in.name == "--input" ? "IN" : in.name;  // both fill one list
        CHECK_MESSAGE(error.starts_with(named + " and " + out.name + ": both name "), error);
        CHECK(read_file(file) == contents);
        ++pairs;
      }
  }
  CHECK(pairs > 400);
}

TEST_CASE("paths are compared by inode, whatever their spelling, and folders contain their files") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "model");
  fs::create_directories(folder / "blobs");
  fs::create_directories(folder / "runs/step_3");
  write_file(folder / "data", "text");
  write_file(folder / "blobs/weights", "weights");
  fs::create_symlink("../blobs/weights", folder / "model/model.safetensors");
  fs::create_symlink("data", folder / "link");
  fs::create_symlink("model/new", folder / "dangling");
  fs::create_hard_link(folder / "data", folder / "other name");
  fs::create_directory_symlink("model", folder / "model link");
  using enum PathUse;
  const auto refused = [&](const std::string& in, const std::string& out, const char* part,
                           PathUse input = reads, PathUse output = writes) {
    const std::string error =
        refusal_of({{"--in", input, folder / in}, {"--out", output, folder / out}});
    CHECK_MESSAGE(contains(error, "--in and --out: "), in, " ", out);
    CHECK_MESSAGE(contains(error, part), in, " ", out, ": ", error);
  };
  for (const char* same : {"data", "link", "other name", "model/../data", "./runs//../data"})
    refused("data", same, "both name");
  refused("missing", "blobs/../missing", "both name");
  for (const char* file : {"model/metrics", "model/new/deep/file", "model link/x", "dangling",
                           "blobs/weights", "model/model.safetensors", "runs/../model/x"})
    refused("model", file, "is a file of ");
  refused("missing", "missing/file", "is a file of ");
  refused("blobs/weights", "blobs", "in it, which is read");
  refused("data", "", "in it, which is read", reads, adds);
  refused("runs/step_3", "runs/step_3/x", "is a file of ", resumes, adds);
  refused("runs/step_3", "runs/step_3", "both name", resumes, adds);
  refused("runs/step_3", "runs", "in it, which is read", resumes, writes);
  refused("data", "link", "both name", watches, writes);
  for (const char* out : {"a", "model 2", "modeler/x", "blobs/other", "runs/metrics"})
    CHECK(refusal_of({{"--in", reads, folder / "model"}, {"--out", writes, folder / out}}) == "");
  // A run may continue in the folder that it resumes from, and a watched file may be in a folder to
  // which files are added.
  CHECK(refusal_of({{"--resume", resumes, folder / "runs/step_3"},
                    {"--save", adds, folder / "runs"},
                    {"--stop", watches, folder / "runs/stop"},
                    {"--metrics", writes, folder / "runs/metrics"},
                    {"--events", adds, folder / "runs"}}) == "");
  CHECK(contains(refusal_of({{"--a", writes, folder / "x"}, {"--b", writes, folder / "./x"}}),
                 "--a and --b: both name "));
  for (const char* device : {"/dev/null", "/dev/full"})
    CHECK(refusal_of({{"--in", reads, device}, {"--a", writes, device}, {"--b", writes, device}}) ==
          "");
  CHECK(contains(
      refusal_of({{"--in", reads, folder / "data.unfinished"}, {"--out", writes, folder / "data"}}),
      "--in and --out: "));
}

TEST_CASE("commands whose output is their input exit with a usage error and change nothing") {
  const TemporaryFolder folder;
  const std::string save = folder / "save", model = folder / "model", chats = folder / "c.jsonl";
  write_file(chats, "{\"prompt\": \"1 2\", \"response\": \"3 4\"}\n");
  checked(zerograd("train --data sort --steps 1 --score-samples 0 --save " + save));
  checked(zerograd("export " + save + " --hf " + model));
  const auto contents = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
      files[entry.path().string()] = entry.is_directory() ? "" : read_file(entry.path().string());
    return files;
  };
  const auto before = contents();
  const std::string weights = model + "/model.safetensors";
  const std::pair<std::string, std::string> lines[] = {
      {"finetune --from-hf " + model + " --data " + chats + " --save " + model,
       "--from-hf and --save: both name "},
      {"finetune --from-hf " + model + " --data " + chats + " --metrics " + weights,
       "--from-hf and --metrics: " + weights + " is a file of "},
      {"export " + model + " --hf " + model + "/../model", "CHECKPOINT and --hf: both name "},
      {"export " + save + " --hf " + save, "CHECKPOINT and --hf: "},
      {"consolidate " + model + " " + weights, "FROM and TO: " + weights + " is a file of "},
      {"consolidate --split " + weights + " " + model, "FROM and TO: " + model + " has "},
      {"train --resume " + save + " --save " + save + "/step_1", "--resume and --save: both name"}};
  for (const auto& [line, part] : lines) {
    check_refused(line, 2, part);
    CHECK(contents() == before);
  }
  write_file(folder / "text.txt", std::string(2000, 'a') + "bcd");
  const std::string run = "train --steps 1 --block-size 8 --n-layer 1 --n-head 1 --n-embd 16 ";
  checked(zerograd(run + "--data " + (folder / "text.txt") + " --save " + (folder / "run")));
  checked(zerograd("train --steps 1 --score-samples 0 --from-hf " + model +
                   " --data sort --lora 1 --save " + (folder / "lora")));
  write_file(folder / "ds.json", "{\"train_micro_batch_size_per_gpu\": 2}");
  write_file(folder / "a.yaml",
             "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
             "  deepspeed_config_file: " +
                 (folder / "ds.json") + "\n");
  const std::string text = " " + (folder / "text.txt"), prompt = " --prompt a --memory-json ";
  // Paths that a checkpoint or a config names, and no flag.
  const std::pair<std::string, std::string> named[] = {
      {"train --steps 2 --resume " + (folder / "run") + " --metrics" + text,
       "--data and --metrics"},
      {"eval " + (folder / "run") + " --memory-json" + text, "--data and --memory-json"},
      {"plan eval " + (folder / "run") + " --memory-json" + text, "--data and --memory-json"},
      {"generate " + (folder / "run") + prompt + text, "--data and --memory-json"},
      {"export " + (folder / "run") + " --hf" + text, "--data and --hf"},
      {"generate " + (folder / "lora") + prompt + weights, "the adapters' base and --memory-json"},
      {"train --steps 2 --resume " + (folder / "lora") + " --trace " + weights,
       "the adapters' base and --trace"},
      {run + "--data sort --config " + (folder / "a.yaml") + " --metrics " + (folder / "ds.json"),
       "deepspeed_config_file and --metrics"}};
  const auto now = contents();
  for (const auto& [line, part] : named) {
    check_refused(line, 2, part + ": ");
    CHECK(contents() == now);
  }
}

}  // namespace zg::testing
