#pragma once

#include <string>
#include <vector>

namespace zg::tools {

/// Takes its arguments without its own name and returns the exit status. Errors are thrown.
using RunCommand = int(const std::vector<std::string>& arguments);

RunCommand train, finetune, plan, tune, eval, generate, launch, consolidate, export_weights, audit,
    diverge, verify, tokenize, bench, info;
// `plan eval` and `plan generate`: predict the memory, without reading weights.
int eval(const std::vector<std::string>& arguments, bool only_planned);
int generate(const std::vector<std::string>& arguments, bool only_planned);

struct Subcommand {
  const char* name;
  const char* summary;
  RunCommand* run;
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
