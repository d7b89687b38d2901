#include "tools/bench/command.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/commands/subcommands.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

class RandomTokens final : public models::Dataset {
 public:
  RandomTokens(int64_t vocabulary, int64_t block_size)
      : vocabulary_(vocabulary), block_size_(block_size) {}

  int64_t vocabulary() const override { return vocabulary_; }
  int64_t block_size() const override { return block_size_; }
  int64_t epoch_samples(models::Split split) const override {
    return split == models::Split::train ? int64_t{1} << 40 : 0;
  }
  void sample(models::Split, int64_t index, int32_t* ids, int32_t* targets) const override {
    for (int64_t t = 0; t < block_size_; ++t) {
      ids[t] = token(index, t);
      targets[t] = token(index, t + 1);
    }
  }

 private:
  int32_t token(int64_t index, int64_t t) const {
    const auto word =
        Philox::block({static_cast<uint32_t>(t), static_cast<uint32_t>(index), 0, 0}, 1)[0];
    return static_cast<int32_t>(word % static_cast<uint64_t>(vocabulary_));
  }

  int64_t vocabulary_, block_size_;
};

}  // namespace

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
    throw ConfigError("--filter: expected a regular expression, got '" + printable(filter) + "' (" +
                      error.what() + ")");
  }
}

std::shared_ptr<const models::Dataset> random_tokens(int64_t vocabulary, int64_t block_size) {
  return std::make_shared<RandomTokens>(vocabulary, block_size);
}

int bench(const std::vector<std::string>& arguments) {
  const std::string what = arguments.empty() ? "--help" : arguments.front();
  const std::vector<std::string> rest(arguments.begin() + (arguments.empty() ? 0 : 1),
                                      arguments.end());
  if (what == "kernels") return bench_kernels(rest);
  if (what == "offload") return bench_offload(rest);
  if (what == "step") return bench_step(rest);
  if (what == "generate") return bench_generate(rest);
  if (what == "matmul-algorithms") return bench_matmul_algorithms(rest);
  if (what == "pipeline") return bench_pipeline(rest);
  if (what == "seq2seq") return bench_seq2seq(rest);
  if (what == "tokenizer") return bench_tokenizer(rest);
  if (what == "--help" || what == "-h")
    return std::printf(
               "usage: zerograd bench "
               "kernels|step|generate|seq2seq|pipeline|offload|tokenizer|matmul-algorithms "
               "[flags]\n\n"
               "  kernels    each kernel beside what bounds it\n"
               "  step       a step of train beside the machine's peak, and where it goes\n"
               "  generate   tokens a second beside memory that is read\n"
               "  seq2seq    largest batches and epochs of an encoder-decoder model, DDP and "
               "ZeRO-2\n"
               "  pipeline   how long stages wait for each other, beside the formula\n"
               "  offload    a drive, memory and AdamW beside their limits\n"
               "  tokenizer  text to tokens and back, bytes a second on one thread\n"
               "  matmul-algorithms\n"
               "             the fastest algorithms of cuBLASLt, for train --matmul-algorithms\n\n"
               "  zerograd bench kernels --help      every flag and its default\n"),
           0;
  throw ConfigError(
      "bench: expected kernels, step, generate, seq2seq, pipeline, offload, tokenizer or "
      "matmul-algorithms, got '" +
      printable(what) + "'" +
      did_you_mean(what, {"kernels", "step", "generate", "seq2seq", "pipeline", "offload",
                          "tokenizer", "matmul-algorithms"}));
}

}  // namespace zg::tools
