#include "tools/bench/command.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/options/fields.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
nlohmann::ordered_json model_json(const models::GPTConfig& model) {
  return {{"layers", model.layers},
          {"heads", model.heads},
          {"width", model.width},
          {"vocabulary", model.vocabulary},
          {"block_size", model.block_size},
          {"tied", model.tied},
          {"dropout", model.dropout},
          {"family", name_of(model.family)},
          {"position", name_of(model.position)}};
}

std::regex pattern_of(const std::string& filter) {
  try {
    return std::regex(filter);
  } catch (const std::regex_error& error) {
    raise<ConfigError>("--filter: expected a regular expression, got '{}' ({})", printable(filter),
                       error.what());
  }
}

std::vector<FlagGroup> train_groups_without(TrainOptions& options,
                                            const std::set<std::string>& left_out) {
  std::vector<FlagGroup> groups = train_groups(options);
  std::erase_if(groups, [&](const FlagGroup& group) { return left_out.contains(group.title); });
  for (FlagGroup& group : groups)
    std::erase_if(group.flags, [&](const Flag& flag) { return left_out.contains(flag.names[0]); });
  return groups;
}

namespace {

constexpr struct {
  const char* name;
  RunCommand* run;
  const char* help;
} benches[] = {
    {"kernels", bench_kernels, "each kernel, compared with the limit that bounds it"},
    {"compare", bench_compare, "kernels of two records, or of two versions of the command"},
    {"roofline", bench_roofline, "a record of kernels below its limits, as SVG"},
    {"step", bench_step, "a step of train, compared with the machine's peak, and its parts"},
    {"generate", bench_generate, "tokens a second, compared with the rate of reading memory"},
    {"seq2seq", bench_seq2seq,
     "largest batches and epochs of an encoder-decoder model, by DDP and by ZeRO-2"},
    {"pipeline", bench_pipeline, "idle time of pipeline stages, compared with the formula"},
    {"offload", bench_offload, "transfers to a disk, and AdamW, compared with their limits"},
    {"tokenizer", bench_tokenizer, "encoding and decoding, bytes a second on one thread"},
    {"matmul-algorithms", bench_matmul_algorithms,
     "the fastest algorithms of cuBLASLt, for train --matmul-algorithms"}};

}  // namespace

int bench(const std::vector<std::string>& arguments) {
  const std::string what = arguments.empty() ? "--help" : arguments.front();
  std::vector<std::string> names;
  std::string lines;
  for (const auto& [name, run, help] : benches) {
    if (what == name) return run({arguments.begin() + 1, arguments.end()});
    names.emplace_back(name);
    const bool is_long = names.back().size() > 9;
    lines += fmt::format("  {:<9}{}{}\n", name, is_long ? "\n             " : "  ", help);
  }
  if (what != "--help" && what != "-h")
    raise<ConfigError>("bench: expected {}, got '{}'{}", join(names, ", "), printable(what),
                       did_you_mean(what, names));
  print_line(stdout,
             "usage: zerograd bench {} [flags]\n\n{}\n"
             "  zerograd bench kernels --help      every flag and its default",
             join(names, "|"), lines);
  return 0;
}

}  // namespace zg::tools
