#pragma once

#include <string>
#include <vector>

namespace zg::tools {

// Each subcommand takes its arguments without its own name and returns the exit status. Errors are
// thrown.
int train(const std::vector<std::string>& arguments);
int finetune(const std::vector<std::string>& arguments);
int plan(const std::vector<std::string>& arguments);
int tune(const std::vector<std::string>& arguments);
int eval(const std::vector<std::string>& arguments);
int generate(const std::vector<std::string>& arguments);
// `plan eval` and `plan generate`: predict the memory, without reading weights.
int eval(const std::vector<std::string>& arguments, bool only_planned);
int generate(const std::vector<std::string>& arguments, bool only_planned);
int launch(const std::vector<std::string>& arguments);
int consolidate(const std::vector<std::string>& arguments);
int export_weights(const std::vector<std::string>& arguments);
int verify(const std::vector<std::string>& arguments);
int tokenize(const std::vector<std::string>& arguments);
int bench(const std::vector<std::string>& arguments);
int info(const std::vector<std::string>& arguments);

/// `run` is one of the functions above.
struct Subcommand {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>& arguments);
};

inline constexpr Subcommand subcommands[] = {
    {"train", "trains a language model on a task, a text or tokens", train},
    {"finetune", "trains a decoder on conversations, the loss on responses alone", finetune},
    {"plan", "predicts the memory that train needs, to the byte", plan},
    {"tune", "the fastest setting that fits, planned and then measured", tune},
    {"eval", "validation loss and scores of a checkpoint", eval},
    {"generate", "continues a prompt with a trained model", generate},
    {"consolidate", "a checkpoint as one safetensors file, and back", consolidate},
    {"export", "a model as Hugging Face's transformers loads it", export_weights},
    {"verify", "reads every byte of checkpoints and names what is damaged", verify},
    {"tokenize", "texts as tokens for train, in Megatron's format or llm.c's", tokenize},
    {"bench", "measures kernels against the machine's limits", bench},
    {"launch", "train as one process for each rank, here or on the hosts of a file", launch},
    {"info", "version, instruction set, memory, devices and measured limits", info},
};

}  // namespace zg::tools
