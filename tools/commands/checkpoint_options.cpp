#include "tools/commands/checkpoint_options.h"

#include "tools/options/fields.h"
#include "tools/options/lora_flags.h"
#include "tools/options/model_flags.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {

bool parse(const std::vector<std::string>& arguments, VerifyOptions& options) {
  const CommandLine line = {
      .usage = "zerograd verify DIR",
      .summary =
          "Reads every byte of every checkpoint in DIR, or of one step_N, and names each damage "
          "by\n"
          "file, tensor and place. Exit status 5 when there is any.",
      .positionals = {positional("DIR", "a checkpoints' DIR or one step_N", options.checkpoint,
                                 PathUse::reads)},
      .notes =
          "For a DIR the last line says which step --resume, eval and generate would take: the\n"
          "newest without damage.\n\n"
          "  zerograd verify checkpoints\n"
          "  zerograd verify checkpoints/step_300"};
  return parse(line, arguments, options.given);
}

bool parse(const std::vector<std::string>& arguments, ConsolidateOptions& options) {
  const CommandLine line = {
      .usage =
          "zerograd consolidate CHECKPOINT F [--dtype f32|bf16]\n"
          "       zerograd consolidate --split F DIR [--ranks N]",
      .summary =
          "Writes a checkpoint's master parameters as one safetensors file, or such a file as a\n"
          "checkpoint, a few MiB at a time.",
      .positionals = {checkpoint_flag({}, "FROM", options.from,
                                      "a checkpoint's DIR or one step_N; to split: a file"),
                      positional("TO", "the file to write; to split: a DIR without checkpoints",
                                 options.to, PathUse::writes)},
      .groups = {{"to a file",
                  {{{"--dtype"},
                    "f32|bf16",
                    "of the file: the masters as they are, or rounded [f32]",
                    [&options](const std::string& name, const std::string& value) {
                      const size_t choice = parse_choice(name, value, {"f32", "bf16"});
                      options.dtype = choice == 0 ? DType::f32 : DType::bf16;
                    }}}},
                 {"to a checkpoint",
                  {switch_flag({"--split"}, options.split, "write DIR/step_0 from a file"),
                   integer_flag({"--ranks"}, options.ranks, "shards", {1, nullptr}),
                   flag_named("--model-type", options.train),
                   flag_named("--n-head", options.train)}}},
      .notes =
          "A file holds each parameter once, by name, and the settings of its run, so that eval,\n"
          "generate and --split need no flags for it. step_0 has these parameters, AdamW's\n"
          "moments of zero and no step behind it. --resume trains it from step 0 with adamw or\n"
          "adam, --init with any optimizer; eval and generate read it.\n"
          "A file of other make does not say how many heads it has: give --n-head or "
          "--model-type.\n\n"
          "  zerograd consolidate checkpoints weights.safetensors --dtype bf16\n"
          "  zerograd consolidate --split weights.safetensors eight --ranks 8"};
  if (!parse(line, arguments, options.train.given)) return false;
  check_model(options.train);
  for (const char* flag : {"--ranks", "--n-head", "--model-type"})
    if (!options.split && options.train.given.count(flag))
      throw ConfigError(std::string(flag) + ": expected --split with it, got none");
  if (options.split && options.train.given.count("--dtype"))
    throw ConfigError("--dtype: a checkpoint's masters are f32; leave the flag out of --split");
  return true;
}

bool parse(const std::vector<std::string>& arguments, ExportOptions& options) {
  const CommandLine line = {
      .usage =
          "zerograd export CHECKPOINT --hf DIR [--dtype f32|f16|bf16] [--merge]\n"
          "       zerograd export CHECKPOINT --gguf FILE [--dtype f32|f16|bf16|q8_0] [--merge]\n"
          "       zerograd export CHECKPOINT --peft DIR",
      .summary =
          "Writes a model as transformers loads it with "
          "AutoModelForCausalLM.from_pretrained(DIR):\n"
          "config.json, model.safetensors with the masters in f32, and the tokenizer that it was\n"
          "trained with. What else is in DIR stays.\n"
          "Or writes a Llama, Mistral, Qwen2, Qwen3 or SmolLM2 as one file for llama.cpp.\n"
          "Or writes adapters as PEFT loads them with PeftModel.from_pretrained(base, DIR).",
      .positionals = {checkpoint_positional(options.checkpoint)},
      .groups = {{"to",
                  {path_flag({"--hf"}, "DIR", options.hugging_face, PathUse::writes,
                             "the folder to write"),
                   path_flag({"--gguf"}, "FILE", options.gguf, PathUse::writes,
                             "the GGUF file to write"),
                   choice_flag({"--dtype"}, options.dtype, {"f32", "f16", "bf16", "q8_0"},
                               "of the folder's tensors or a GGUF file's matrices; q8_0: GGUF"),
                   switch_flag({"--merge"}, options.merge,
                               "add the adapters to the weights that they were trained for"),
                   path_flag({"--peft"}, "DIR", options.peft, PathUse::writes,
                             "write adapter_config.json and adapter_model.safetensors there")}},
                 {"model (the checkpoint's own unless given)",
                  {flag_named("--model-type", options.train), flag_named("--n-head", options.train),
                   tokenizer_flag({"--tokenizer"}, "PATH", options.tokenizer,
                                  "where the run's tokenizer is now, or one for tokens of a file;\n"
                                  "none: a GGUF file without one"),
                   adapter_flag(options.adapters), base_flag(options.adapters)}}},
      .notes =
          "Characters are no tokenizer that transformers or llama.cpp knows: of a model that "
          "reads\n"
          "them none is written. A folder of --tokenizer also has the chat template of a GGUF "
          "file.\n\n"
          "  zerograd export checkpoints --hf gpt2-mine\n"
          "  zerograd export llama-mine --hf llama-half --dtype bf16\n"
          "  zerograd train --from-hf gpt2-mine --data tokens.bin\n"
          "  zerograd export llama-mine --gguf llama-mine.gguf --dtype q8_0\n"
          "  zerograd export runs/adapters --peft adapters\n"
          "  zerograd export runs/adapters --merge --hf merged"};
  if (!parse(line, arguments, options.train.given)) return false;
  const int64_t targets =
      !options.hugging_face.empty() + !options.gguf.empty() + !options.peft.empty();
  if (targets != 1)
    throw ConfigError(
        targets == 0
            ? "--hf: expected a folder to write, got nothing; try --hf DIR, --gguf FILE or --peft "
              "DIR"
            : "export: expected one of --hf, --gguf and --peft, got more; export twice");
  if (!options.peft.empty() && options.train.given.count("--dtype"))
    throw ConfigError("--dtype: adapters are written in f32; leave the flag out of --peft");
  if (options.gguf.empty() && options.dtype == models::GGUFType::q8_0)
    throw ConfigError("--dtype: expected f32, f16 or bf16 for --hf, got q8_0; try --gguf FILE");
  if (options.merge && !options.peft.empty())
    throw ConfigError("--merge: expected --hf DIR or --gguf FILE with it, got --peft");
  check_model(options.train);
  return true;
}

}  // namespace zg::tools
