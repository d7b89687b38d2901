#pragma once

#include <nlohmann/json_fwd.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/command_line/flags.h"

// The subcommands of `zerograd bench` and their helpers. Each takes its arguments without its name
// and returns the exit status.
namespace zg::tools {

int bench_kernels(const std::vector<std::string>& arguments);
int bench_roofline(const std::vector<std::string>& arguments);
int bench_compare(const std::vector<std::string>& arguments);
int bench_step(const std::vector<std::string>& arguments);
int bench_matmul_algorithms(const std::vector<std::string>& arguments);
int bench_generate(const std::vector<std::string>& arguments);
int bench_pipeline(const std::vector<std::string>& arguments);
int bench_offload(const std::vector<std::string>& arguments);
int bench_seq2seq(const std::vector<std::string>& arguments);
int bench_tokenizer(const std::vector<std::string>& arguments);

/// The model's description in a JSON record.
nlohmann::ordered_json model_json(const models::GPTConfig& model);

/// Parses --filter. Throws ConfigError when it is not a regular expression.
std::regex pattern_of(const std::string& filter);

/// Parses --threads, "1,2"; 0 is the number of cores.
std::vector<int> parse_threads(const std::string& name, const std::string& list);
constexpr Range measured_seconds{0.0, 3600.0, false, false, "a number from 0 to 3600"};

/// The flags of train without some groups and flags, by title and name.
std::vector<FlagGroup> train_groups_without(TrainOptions& options,
                                            const std::set<std::string>& left_out);

}  // namespace zg::tools
