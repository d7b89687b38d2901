#pragma once

#include <nlohmann/json_fwd.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tools/commands/subcommands.h"
#include "tools/options/options.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/command_line/flags.h"

// The subcommands of `zerograd bench` and their helpers.
namespace zg::tools {

RunCommand bench_kernels, bench_roofline, bench_compare, bench_step, bench_matmul_algorithms,
    bench_generate, bench_pipeline, bench_offload, bench_seq2seq, bench_tokenizer;

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
