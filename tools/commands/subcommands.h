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
int audit(const std::vector<std::string>& arguments);
int diverge(const std::vector<std::string>& arguments);
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
    {"finetune", "trains a decoder on conversations; only responses count in the loss", finetune},
    {"plan", "predicts the memory that train needs, to the byte", plan},
    {"tune", "finds the fastest setting that fits, by plans and short runs", tune},
    {"eval", "prints the validation loss and scores of a checkpoint", eval},
    {"generate", "continues a prompt with a trained model", generate},
    {"consolidate", "converts a checkpoint to one safetensors file, and back", consolidate},
    {"export", "writes a model for transformers, PEFT or llama.cpp", export_weights},
    {"verify", "reads every byte of checkpoints and names what is damaged", verify},
    {"audit", "checks, compares and replays the audit trails of runs", audit},
    {"diverge", "finds the first step, unit and op in which two audited runs differ", diverge},
    {"tokenize", "converts texts to tokens for train, in Megatron's or llm.c's format", tokenize},
    {"bench", "measures kernels against the machine's limits", bench},
    {"launch", "starts train as one process for each rank, here or on several hosts", launch},
    {"info", "prints version, instruction set, memory, devices and measured limits", info},
};

}  // namespace zg::tools
