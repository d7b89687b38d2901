#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/tools/command.h"
#include "zerograd/runtime/text/format.h"

using namespace zg::testing;

namespace {

/// The cells of a Markdown table's rows, "| a | b |", its line of dashes left out.
std::vector<std::vector<std::string>> table_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) continue;
    std::vector<std::string>& cells = rows.emplace_back();
    for (size_t begin = 1; begin < line.size();) {
      const size_t end = line.find('|', begin);
      cells.push_back(end > begin + 1 ? line.substr(begin + 1, end - begin - 2) : "");
      begin = end + 1;
    }
  }
  return rows;
}

const std::string quick = "bench offload --size 2MiB --nvme-path ";

}  // namespace

TEST_CASE(
    "bench offload prints the limits and how far each case reaches them, and leaves no file") {
  const TemporaryFolder folder, elsewhere;
  const std::string json = elsewhere / "offload.json";
  const Outcome outcome = checked(zerograd(quick + folder.path() + " --json " + json));
  CHECK(std::filesystem::is_empty(folder.path()));
  const auto table = table_of(outcome.out);
  REQUIRE(!table.empty());
  CHECK(table[0] == std::vector<std::string>{"case", "shape", "dtype", "median ms", "p10 - p90",
                                             "GB/s", "% of limit"});
  const nlohmann::json record = nlohmann::json::parse(std::ifstream(json));
  const auto& rows = record["rows"];
  REQUIRE(table.size() == rows.size() + 2);  // the head and the memory's limit
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& cells = table[i + 2];
    const auto& row = rows[i];
    CAPTURE(row.dump());
    CHECK(cells[0] == row["case"]);
    CHECK(row["p10_s"] <= row["median_s"]);
    CHECK(row["median_s"] <= row["p90_s"]);
    CHECK(row["bytes_per_s"] > 1e6);
    const bool is_limit = row["case"].get<std::string>().starts_with("limit: ");
    CHECK(row["percent_of_limit"].is_null() == is_limit);
    CHECK(cells[6].empty() == is_limit);
  }
  for (const char* limit : {"memory", "read", "write"}) CHECK(record["limits"][limit] > 1e6);
  CHECK(record["overlap"].is_number());
  CHECK(contains(outcome.out, "overlap of AdamW and the drive: "));
  for (const char* name : {"limit: drive write, pread", "swap read", "swap write, through buffers",
                           "adamw, states on the device", "adamw, states on the drive"})
    CHECK(contains(outcome.out, std::string("| ") + name + " |"));
}

TEST_CASE("bench offload --filter measures only the matching cases and the limits") {
  const TemporaryFolder folder;
  const Outcome outcome = checked(zerograd({"bench", "offload", "--size", "1MiB", "--nvme-path",
                                            folder.path(), "--filter", "^swap (read|write) u8$"}));
  int chosen = 0;
  for (const auto& cells : table_of(outcome.out))
    if (cells[0] != "case" && !cells[0].starts_with("limit: ")) {
      ++chosen;
      CHECK(cells[2] == "u8");
    }
  CHECK(chosen == 2);
  CHECK(!contains(outcome.out, "overlap"));
}

TEST_CASE("bench kernels prints the limits, then each case with the limit that bounds it") {
  const TemporaryFolder folder;
  const std::string json = folder / "kernels.json";
  const Outcome outcome = checked(zerograd({"bench", "kernels", "--threads", "1,2", "--filter",
                                            "64x48x48 f32|sum of rows .* bf16", "--json", json}));
  const auto table = table_of(outcome.out);
  REQUIRE(!table.empty());
  CHECK(table[0] == std::vector<std::string>{"case", "shape", "dtype", "threads", "median ms",
                                             "p10 - p90", "GFLOP/s", "GB/s", "limit", "% of limit",
                                             "best"});
  const nlohmann::json record = nlohmann::json::parse(std::ifstream(json));
  CHECK(record["schema"] == 1);
  CHECK(record["bench"] == "kernels");
  REQUIRE(record["limits"].size() == 2);
  for (const auto& limits : record["limits"])
    for (const char* name : {"memory", "update", "read"}) CHECK(limits[name] > 1e6);
  const auto& rows = record["rows"];
  REQUIRE(rows.size() == 4);  // two cases, by one thread and by two
  REQUIRE(table.size() > rows.size());
  const size_t first = table.size() - rows.size();
  bool explained = false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    const auto& cells = table[first + i];
    CAPTURE(row.dump());
    for (const auto& [cell, key] : {std::pair{0, "case"}, {1, "shape"}, {2, "dtype"}, {8, "limit"}})
      CHECK(cells[static_cast<size_t>(cell)] == row[key]);
    CHECK(cells[3] == std::to_string(row["threads"].get<int>()));
    CHECK(row["threads"] == (i < 2 ? 1 : 2));
    CHECK(row["best_s"] <= row["p10_s"]);
    CHECK(row["p10_s"] <= row["median_s"]);
    CHECK(row["median_s"] <= row["p90_s"]);
    // A row above a limit of memory names the cache that explains it, and no other row does.
    if (row["others"] > 0.1) {
      CHECK(row["percent_of_limit"].is_null());
      CHECK(cells[9].starts_with("others: "));
      continue;
    }
    const bool exceeds = row["limit"] != "matmul peak" && row["percent_of_limit"] > 105.0;
    CHECK(row["cache"].is_string() == exceeds);
    const auto value = row["percent_of_limit"].get<double>();
    CHECK(value ==
          doctest::Approx(100.0 * row["limit_s"].get<double>() / row["median_s"].get<double>()));
    const std::string percent = std::to_string(std::lround(value));
    CHECK(cells[9] ==
          percent + " %" + (exceeds ? " (" + row["cache"].get<std::string>() + ")" : ""));
    explained = explained || exceeds;
  }
  CHECK(contains(outcome.out, "A cache behind a percentage: it holds the operands") == explained);
  CHECK(rows[0]["case"] == "matmul NT");
  CHECK(rows[0]["flops"] == 2.0 * 64 * 48 * 48);
  CHECK(rows[0]["bytes"] == 4.0 * (64 * 48 + 48 * 48 + 64 * 48));
  CHECK(rows[1]["case"] == "sum of rows");
  CHECK(rows[1]["limit"] != "matmul peak");  // "read" or "memory", the slower one beside the row
  CHECK(rows[1]["bytes"] == 2.0 * 8192 * 768);
}

TEST_CASE("bench kernels --shape measures an op at extents of the user's, and --csv writes it") {
  const TemporaryFolder folder;
  const std::string csv = folder / "rows.csv";
  checked(
      zerograd("bench kernels --threads 1 --seconds 0 --limits off --cold --shape "
               "matmul:24,40,56,1 --csv " +
               csv));
  const std::string text = read_file(csv);
  for (const char* row : {"\n\"matmul TT, cold\",24x40x56,f32,1,7,", ",107520.0,18176.0,",
                          "\n\"matmul TT, cold\",24x40x56,bf16,1,7,"})
    CHECK_MESSAGE(contains(text, row), row, " is not in ", text);
  checked(zerograd(
      "bench kernels --threads 1 --seconds 0 --filter bf16 --shape softmax:64,700 --json " +
      (folder / "rows.json")));
  checked(zerograd("bench roofline " + (folder / "rows.json") + " --out " + (folder / "a.svg")));
  CHECK(contains(read_file(folder / "a-bf16-1.svg"), "<title>softmax forward 64x700: "));
  check_refused("bench roofline " + csv, 5, csv);
  const std::string explained =
      checked(zerograd("bench kernels --explain --threads 1 --seconds 0 --limits off --filter f32 "
                       "--shape matmul:24,40,56 --json " +
                       (folder / "causes.json") + " --csv " + csv))
          .out;
  for (const char* row :
       {"\n| small pages | with | ", "\n| a tail beside whole vectors | without |"})
    CHECK_MESSAGE(contains(explained, row), row, " is not in ", explained);
  const auto causes = nlohmann::json::parse(read_file(folder / "causes.json"));
  CHECK(causes.at("bench") == "explain");
  size_t of_tail = 0;
  for (const auto& row : causes.at("rows")) {
    const std::string line =
        fmt::format("| {} | {} | {:.3f} | {:.3f} - {:.3f} |", row.at("cause").get<std::string>(),
                    row.at("changed").get<std::string>(), row.at("time").get<double>(),
                    row.at("low").get<double>(), row.at("high").get<double>());
    CHECK_MESSAGE(contains(explained, line), line, " is not in ", explained);
    CHECK(row.at("share").is_null());  // without limits
    of_tail += row.at("cause") == "a tail beside whole vectors";
  }
  CHECK(of_tail == 1);
  CHECK(count_of(read_file(csv), "\n") == causes.at("rows").size() + 1);
  CHECK(contains(read_file(csv), ",cause,changed,time,low,high,verdict,share,date,"));
  check_refused("bench roofline " + (folder / "causes.json"), 5, "causes.json");
  check_refused("bench kernels --shape matmull:3", 2, "did you mean matmul?");
  check_refused("bench kernels --shape matmul:1,2,3,4,5,6", 2,
                "--shape matmul: expected 1 to 5 extents as in 1024,768,768,0,1");
  check_refused("bench kernels --shape matmul:x", 2, "--shape matmul: expected a whole number");
}

TEST_CASE("every case of bench kernels can be run") {
  // The largest take GiBs and seconds; what they run is in the list at a smaller size, or here.
  const std::string filter =
      "T128 d16|decode B1 H12 T1024|8192x768 bf16|12288x1024 bf16|"
      "4096x3072 bf16|^(cast|sum of squares|fold).* bf16";
  const Outcome outcome =
      checked(zerograd({"bench", "kernels", "--threads", "1", "--filter", filter}));
  for (const char* name :
       {"attention forward", "attention backward", "attention decode",
        "layer_norm forward, residual", "layer_norm backward, residual", "rms_norm forward",
        "embedding forward", "softmax forward", "sum of rows", "gelu forward", "gelu backward",
        "dropout", "add", "silu", "axpby", "permute heads", "cast to f32", "sum of squares",
        "fold gradient"})
    CHECK(contains(outcome.out, std::string("| ") + name + " |"));
}

TEST_CASE("bench step runs train's steps, and the times of its parts add up to 100 percent") {
  const TemporaryFolder folder;
  const std::string json = folder / "step.json";
  const Outcome outcome = checked(zerograd(
      "bench step --n-layer 2 --n-head 2 --n-embd 32 --vocab-size 65 --block-size 16 --batch-size 2"
      " --ranks 2 --zero-stage 2 --precision bf16 --warm-up 1 --steps 3 --json " +
      json));
  const nlohmann::json record = nlohmann::json::parse(std::ifstream(json));
  CHECK(record["schema"] == 1);
  CHECK(record["bench"] == "step");
  CHECK(record["samples"] == 3);
  CHECK(record["precision"] == "bf16");
  CHECK(record["ranks"] == 2);
  CHECK(record["tokens"] == 2 * 2 * 16);
  // 6 for each weight of a product, and of attention's half a block twice.
  CHECK(record["flops"] == 64.0 * 6 * (2 * (12 * 32 * 32 + 16 * 32) + 65 * 32));
  CHECK(record["best_s"] <= record["median_s"]);
  CHECK(record["peak_resident_bytes"] > 1e6);
  CHECK(record["minor_faults"] >= 0);
  CHECK(record["ratios_against"].empty());
  double seconds = 0.0, percent = 0.0;
  std::set<std::string> parts;
  for (const auto& row : record["profile"]) {
    seconds += row["seconds"].get<double>();
    percent += row["percent"].get<double>();
    parts.insert(row["part"]);
    CHECK(contains(outcome.out, "| " + row["part"].get<std::string>() + " | "));
  }
  CHECK(percent == doctest::Approx(100.0));
  CHECK(seconds > 0.0);
  for (const char* part : {"matmul forward", "matmul backward", "attention", "layer_norm", "gelu",
                           "projection + cross_entropy", "adamw", "between kernels"})
    CHECK_MESSAGE(parts.count(part) == 1, std::string(part));
  CHECK(contains(outcome.out, "| step | 2 blocks, width 32, 65 tokens; B4 T16 | bf16 | "));

  checked(zerograd(
      "bench step --n-layer 2 --n-head 2 --n-embd 32 --vocab-size 65 --block-size 16 --batch-size 4"
      " --lora 2 --lora-targets all-linear --warm-up 1 --steps 1 --json " +
      json));
  // Frozen weights: 4 for each, because backward has no product for their gradients.
  CHECK(nlohmann::json::parse(std::ifstream(json))["flops"] ==
        64.0 * (4 * (2 * 12 * 32 * 32 + 65 * 32) + 6 * 2 * 16 * 32));
}

TEST_CASE("bench step does not count the memory of the process that starts it") {
  const std::vector<char> resident(size_t{1} << 30, 1);
  const TemporaryFolder folder;
  const std::string json = folder / "step.json";
  checked(zerograd(
      "bench step --n-layer 1 --n-head 2 --n-embd 16 --vocab-size 65 --block-size 8 --batch-size 1 "
      "--steps 1 --warm-up 0 --threads 1 --json " +
      json));
  CHECK(resident.back() == 1);
  CHECK(nlohmann::json::parse(std::ifstream(json))["peak_resident_bytes"] < 5e8);
}

TEST_CASE("bench step --against times the steps of two runs in turns") {
  const TemporaryFolder folder;
  std::vector<std::string> words = words_of(
      "bench step --n-layer 1 --n-head 2 --n-embd 64 --vocab-size 65 --block-size 16 --batch-size "
      "2 "
      "--warm-up 1 --steps 3 --json " +
      (folder / "step"));
  words.insert(words.end(), {"--against", "--grad-accum 64"});
  const Outcome outcome = checked(zerograd(words));
  const nlohmann::json record = nlohmann::json::parse(std::ifstream(folder / "step"));
  REQUIRE(record["ratios_against"].size() == 3);
  // 64 micro-batches against one: the largest of the three ratios, because other programs may
  // delay one of the steps.
  CHECK(record["ratios_against"][2] > 1.0);
  CHECK(contains(outcome.out, "\nagainst: a step takes "));
  for (const char* flag : {"--threads 1", "--device cuda", "--steps 4", "--nvme-path /tmp"}) {
    std::vector<std::string> shared = words;
    shared.back() = flag;
    CHECK(contains(checked(zerograd(shared), 2).error, "--against: both runs have one --"));
  }
  words.insert(words.end(), {"--ranks", "2"});
  CHECK(contains(checked(zerograd(words), 2).error, "--against: expected one rank in both runs"));
}

TEST_CASE("bench step names the optimizer whose update it times") {
  for (const auto& [flags, part] : {std::pair<std::string, std::string>{"adam", "adam"},
                                    {"lion", "lion"},
                                    {"muon", "muon"},
                                    {"muon", "Newton-Schulz"},
                                    {"adafactor", "adafactor"},
                                    {"adafactor", "factored moments"},
                                    {"sgd --momentum 0.9", "sgd"}}) {
    const Outcome outcome = checked(
        zerograd("bench step --n-layer 1 --n-head 2 --n-embd 16 --block-size 8 --vocab-size 65 "
                 "--batch-size 1 --steps 1 --warm-up 0 --threads 1 --optimizer " +
                 flags));
    CHECK(contains(outcome.out, "| " + part + " | "));
  }
}

TEST_CASE("bench step adds adapters to random weights, without a folder of weights") {
  const Outcome outcome = checked(
      zerograd("bench step --model-type llama --n-layer 2 --n-head 2 --n-embd 32 --vocab-size 65 "
               "--block-size 8 --batch-size 1 --steps 1 --warm-up 0 --threads 1 --lora 2 "
               "--lora-targets all-linear"));
  CHECK(contains(outcome.out, "| step | 2 blocks, width 32, 65 tokens; B1 T8 | f32 | 1 | "));
}

TEST_CASE(
    "bench generate reports the prompt (prefill) and the tokens after it (decode) separately") {
  const TemporaryFolder folder;
  const std::string json = folder / "generate.json";
  const Outcome outcome = checked(zerograd(
      "bench generate --n-layer 2 --n-head 2 --n-embd 32 --vocab-size 65 --block-size 32 --tied "
      "--prompt 8 --tokens 5 --batch-size 3 --precision bf16 --repeats 2 --json " +
      json));
  const nlohmann::json record = nlohmann::json::parse(std::ifstream(json));
  CHECK(record["bench"] == "generate");
  // Matrices, biases and LayerNorms of two blocks, the last LayerNorm, and the head; no positions.
  CHECK(record["weight_bytes"] == 2.0 * (2 * (12 * 32 * 32 + 13 * 32) + 2 * 32 + 65 * 32));
  CHECK(record["limits"]["read"] > 1e6);
  const auto& rows = record["rows"];
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["case"] == "prefill");
  CHECK(rows[0]["samples"] == 2);
  CHECK(rows[0]["tokens"] == 3 * 8);
  CHECK(rows[0]["percent_of_limit"].is_null());
  CHECK(rows[1]["case"] == "decode");
  CHECK(rows[1]["samples"] == 2 * 4);
  CHECK(rows[1]["tokens"] == 3);
  CHECK(rows[1]["percent_of_limit"].is_number());
  CHECK(table_of(outcome.out).size() == 4);
}

TEST_CASE(
    "bench seq2seq finds the largest batches, which ZeRO-2 does not make smaller, and runs them") {
  const TemporaryFolder folder;
  const std::string json = folder / "seq2seq.json";
  const std::string flags =
      "bench seq2seq --n-embd 32 --n-head 2 --encoder-layers 1 --decoder-layers 1 --vocab-size 64 "
      "--max-source-length 8 --max-target-length 6 --num-beams 3 --n-train 480 --n-val 24 "
      "--threads 1 --json " +
      json;
  const Outcome outcome = checked(zerograd(flags + " --device-memory 2MiB --run"));
  CHECK(table_of(outcome.out).at(0) ==
        std::vector<std::string>{"method", "largest batch, training", "largest batch, evaluation",
                                 "training epoch s", "evaluation epoch s"});
  const nlohmann::json rows = nlohmann::json::parse(std::ifstream(json)).at("rows");
  REQUIRE(rows.size() == 2);
  for (const char* batch : {"train_batch", "evaluation_batch"}) {
    CHECK(rows[0].at(batch) >= 1);
    CHECK(rows[0].at(batch) <= rows[1].at(batch));
  }
  for (const nlohmann::json& row : rows) {
    CHECK(row.at("train_s") > 0.0);
    CHECK(row.at("evaluation_s") > 0.0);
  }
  checked(zerograd(flags + " --device-memory 4MiB"));
  const nlohmann::json more = nlohmann::json::parse(std::ifstream(json)).at("rows");
  CHECK(more[0].at("train_batch") > rows[0].at("train_batch"));
  CHECK(more[0].at("train_s") == 0.0);
  const Outcome none = zerograd(flags + " --device-memory 1MiB --run");
  CHECK(
      contains(none.out, "| data parallel | out of memory | out of memory | not run | not run |"));
  check_refused("bench seq2seq", 2, "--device-memory: expected the memory of a device");
  check_refused("bench seq2seq --device-memory 1GB --max-source-length 500", 2,
                "expected at most the model's 128 positions, got 500 and 64");
  check_refused("bench seq2seq --device-memory 1GB --n-head 7", 2, "heads");
  check_refused("bench seq2seq --device-memory 1GB --vocab-size 4", 2,
                "--vocab-size: expected more than 4 tokens, got 4");
}

TEST_CASE("bench compare runs two commands in turns and ends with 1 if a row is slower") {
  const TemporaryFolder folder;
  // Scripts in the place of two versions. They note their arguments and write a record.
  const auto version = [&](const char* name, const char* cases, double seconds) {
    const std::string path = folder / name;
    const std::string row =
        fmt::format(R"({{"case": "sum", "shape": "8", "dtype": "f32", "threads": 2, )"
                    R"("samples_s": [{0}, {0}, {0}]}})",
                    seconds);
    std::ofstream(path) << "#!/bin/sh\n[ \"$3\" = --list ] && { printf '" << cases
                        << "'; exit; }\necho " << name << " \"$@\" >> " << (folder / "calls")
                        << "\nfor file; do :; done\necho '{\"rows\": [" << row << "]}' > $file\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  };
  const std::string before = version("before", "sum 8 f32\\nold 8 f32\\n", 0.001);
  const std::string same = version("same", "sum 8 f32\\nnew 8 f32\\n", 0.00101);
  const std::string slow = version("slow", "sum 8 f32\\n", 0.00105);
  const auto compared = [](const std::string& a, const std::string& b, int status) {
    return checked(zerograd("bench compare --run " + a + " " + b + " --rounds 2 --threads 2"),
                   status)
        .out;
  };
  CHECK(contains(compared(before, same, 0),
                 "| sum | 8 | f32 | 2 | 1.000 | 1.010 | 1.010 | 1.010 - 1.010 | within noise |"));
  CHECK(contains(compared(before, slow, 1), "| 1.050 | 1.050 - 1.050 | slower |"));
  CHECK(contains(compared(slow, before, 0), " | faster |"));
  const std::string
      calls = read_file(folder / "calls"),
      rest =
          R"( bench kernels --filter ^sum 8 f32$ --threads 2 --seconds 0.1 --limits off --json )";
  for (const char* first_four : {"before", "same", "same", "before"})
    CHECK(contains(calls, first_four + rest));
  CHECK(calls.find("before") < calls.find("same"));
  const std::string record = folder / "record.json";
  checked(zerograd("bench kernels --threads 1 --filter 64x48x48.f32 --seconds 0 --json " + record));
  CHECK(contains(checked(zerograd("bench compare " + record + " " + record)).out, "| 1.000 | "));
  CHECK(contains(checked(zerograd("bench kernels --list --filter 64x48x48")).out,
                 "matmul NT 64x48x48 f32\n"));
}

TEST_CASE(
    "bench refuses wrong options, unknown devices and unwritable paths, and the error names them") {
  const TemporaryFolder folder;
  const auto refused = [](const std::string& line, int status, const std::string& part) {
    const Outcome outcome = checked(zerograd(line), status);
    CHECK(outcome.out.empty());
    CHECK(contains(outcome.error, part));
  };
  refused(quick + (folder / "none"), 5, folder / "none");
  refused(quick + folder.path() + " --filter [", 2, "--filter: expected a regular expression");
  refused("bench offload --size 1000", 2, "--size: expected a multiple of 1MiB");
  refused("bench offload --device cuda", 6, "--device cuda");
  refused("bench ofload", 2, "did you mean offload?");
  refused("bench kernels --filter nothing", 2, "--filter: expected part of a case");
  refused("bench kernels --filter [", 2, "--filter: expected a regular expression");
  refused("bench kernels --threads 1,x", 2, "--threads: expected a whole number");
  refused("bench kernels --threads 1 --json /nowhere/f", 5, "--json: /nowhere/f cannot be written");
  refused("bench kernels --csv /nowhere/f", 5, "--csv: /nowhere/f cannot be written");
  refused("bench kernels --device cuda", 6, "--device cuda");
  refused("bench compare a b --rounds 2", 2, "--rounds: expected --run beside it");
  refused("bench compare /nowhere/a /nowhere/b", 5, "/nowhere/a");
  refused("bench compare --run true true", 2, "true and true have no case in common");
  refused("bench step --steps 0", 2, "--steps: expected a whole number of 1 or more");
  refused("bench step --data sort", 2, "--data");
  refused("bench step --save " + folder.path(), 2, "--save");
  refused("bench step --json /nowhere/f", 5, "--json: /nowhere/f cannot be written");
  refused("bench generate --prompt 1000 --tokens 100", 2,
          "--tokens: expected --prompt and --tokens to add up to at most 1024");
  refused("bench generate --precision f64", 2, "--precision: expected f32, bf16, f16");
  refused("bench generate --model-type gpt2 --n-layer 2", 2, "--model-type");
  refused("bench generate --device cuda", 6, "--device cuda");
  refused("bench offload --json /nowhere/f", 5, "--json: /nowhere/f cannot be written");
}
