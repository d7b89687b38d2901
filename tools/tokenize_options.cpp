#include "tools/tokenize_options.h"

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

Flag input_flag(std::vector<std::string>& inputs) {
  return {{"--input"}, "IN", "", [&inputs](const std::string&, const std::string& value) {
            inputs.push_back(value);
          }};
}

// A flag that accepts only the value of the default behaviour.
Flag only_flag(const char* name, const char* value, std::vector<std::string> choices) {
  return {{name}, value, "", [choices](const std::string& given, const std::string& word) {
            parse_choice(given, word, choices);
          }};
}

std::vector<Flag> tokenizer_flags(TokenizeOptions& options) {
  return {
      text_flag({"--tokenizer", "--tokenizer-name-or-path", "--tokenizer-model"}, "T",
                options.tokenizer,
                "a tokenizer.json, or a folder with one or with vocab.json and merges.txt;\n"
                "train:SIZE makes one of SIZE tokens from the inputs, PREFIX.tokenizer"),
      text_flag({"--vocab-file"}, "F", options.vocabulary_file,
                "with --merge-file instead of --tokenizer: GPT-2's two files"),
      text_flag({"--merge-file"}, "F", options.merges_file, "GPT-2's merges"),
      only_flag("--tokenizer-type", "T",
                {"GPT2BPETokenizer", "PretrainedFromHf", "HFTokenizer", "HuggingFaceTokenizer"}),
      switch_flag({"--append-eod"}, options.append_eod,
                  "end each document with the token that says so"),
      text_flag({"--eod"}, "TOKEN", options.eod,
                "that token [<|endoftext|> or </s>, whichever there is]")};
}

std::vector<Flag> output_flags(TokenizeOptions& options, std::string& megatron_prefix) {
  return {
      text_flag({"--out"}, "PREFIX", options.prefix, "of the files that are written"),
      text_flag({"--output-prefix"}, "P", megatron_prefix, "Megatron's: PREFIX is P_text_document"),
      choice_flag({"--format"}, options.format, {"megatron", "llmc"},
                  "Megatron's PREFIX.bin and PREFIX.idx; or llm.c's\n"
                  "PREFIX.bin, for vocabularies of at most 65536"),
      only_flag("--dataset-impl", "mmap", {"mmap"})};
}

void settle(TokenizeOptions& options, const std::string& megatron_prefix) {
  const bool has_files = !options.vocabulary_file.empty() || !options.merges_file.empty();
  if (options.inputs.empty())
    throw ConfigError("expected texts to tokenize, got none; try zerograd tokenize IN.txt");
  if (options.tokenizer.empty() == !has_files)
    throw ConfigError(
        std::string("--tokenizer: expected one of --tokenizer and --vocab-file with --merge-file, "
                    "got ") +
        (has_files ? "both" : "nothing; try --tokenizer train:32000"));
  if (has_files && (options.vocabulary_file.empty() || options.merges_file.empty()))
    throw ConfigError("--vocab-file: expected --vocab-file and --merge-file together, got one");
  if (options.tokenizer.starts_with("train:"))
    options.train_size =
        parse_integer("--tokenizer train:SIZE", options.tokenizer.substr(6), 257, largest_count);
  if (options.prefix.empty() == megatron_prefix.empty())
    throw ConfigError(std::string("--out: expected one of --out and --output-prefix, got ") +
                      (options.prefix.empty() ? "nothing; try --out PREFIX" : "both"));
  if (options.prefix.empty())
    options.prefix = megatron_prefix + "_" + options.json_key + "_document";
  if (options.prefix.ends_with(".bin")) options.prefix.resize(options.prefix.size() - 4);
  if (!options.eod.empty() && !options.append_eod)
    throw ConfigError("--eod: expected --append-eod with it, got none");
}

}  // namespace

bool parse(const std::vector<std::string>& arguments, TokenizeOptions& options) {
  std::string megatron_prefix;
  const CommandLine line = {
      .usage = "zerograd tokenize IN... --tokenizer T --out PREFIX [flags]",
      .summary =
          "Writes texts as tokens for train --data. Of a .jsonl or .json each line is an object\n"
          "with a document; any other file is one document.",
      .rest = Flag{{},
                   "IN",
                   "a text, or a .jsonl; as many as there are",
                   [&options](const std::string&, const std::string& value) {
                     options.inputs.push_back(value);
                   }},
      .groups = {{"input",
                  {input_flag(options.inputs),
                   text_flag({"--json-key", "--json-keys"}, "KEY", options.json_key,
                             "where a line of JSON has its text [text]"),
                   integer_flag({"--workers"}, options.workers,
                                "threads that tokenize; 0: one for each core")}},
                 {"tokens", tokenizer_flags(options)},
                 {"output", output_flags(options, megatron_prefix)}},
      .notes =
          "Spellings of Megatron's preprocess_data.py work too: --input, --json-keys,\n"
          "--tokenizer-type, --tokenizer-name-or-path, --dataset-impl mmap.\n\n"
          "  zerograd tokenize input.txt --tokenizer train:4096 --out data\n"
          "  zerograd tokenize oscar.jsonl --tokenizer bloom --append-eod --out oscar\n"
          "  zerograd train --data oscar --vocab-size 250880 --split 949,50,1"};
  if (!parse(line, arguments, options.given)) return false;
  settle(options, megatron_prefix);
  return true;
}

}  // namespace zg::tools
