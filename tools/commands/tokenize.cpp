#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/commands/subcommands.h"
#include "tools/options/flags.h"
#include "zerograd/models/data/token_writer.h"
#include "zerograd/models/tokenizer/corpus.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/file_set.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

struct TokenizeOptions {
  enum class Format : uint8_t { megatron, llmc };

  Given given;
  std::vector<std::string> inputs;
  std::string tokenizer;   ///< a path, or train:SIZE
  int64_t train_size = 0;  ///< SIZE of train:SIZE; 0: an existing tokenizer is used
  std::string vocabulary_file, merges_file;  ///< GPT-2's two files, instead of a path
  std::string prefix;                        ///< path prefix of the output files
  Format format = Format::megatron;
  std::string json_key = "text";
  bool append_eod = false;
  std::string eod;  ///< empty: the tokenizer's end-of-document token
  int64_t workers = 0;
};

namespace fs = std::filesystem;
using Format = TokenizeOptions::Format;

std::string tokenizer_folder(const std::string& prefix) { return prefix + ".tokenizer"; }

std::string document_suffix(const TokenizeOptions& options) {
  return fmt::format("_{}_document", options.json_key);
}

Flag input_flag(Names names, const std::string& help, std::vector<std::string>& inputs) {
  Flag flag = {
      std::move(names), "IN", help,
      [&inputs](const std::string&, const std::string& value) { inputs.push_back(value); }};
  flag.use = PathUse::reads;
  flag.paths = [&inputs] { return used(PathUse::reads, inputs); };
  return flag;
}

// The value, with `end` appended, is the PREFIX of the output files.
Flag prefix_flag(Names names, const char* value, std::string& prefix, const std::string& help,
                 std::function<std::string()> end) {
  Flag flag = path_flag(std::move(names), value, prefix, PathUse::writes, help);
  flag.paths = [&prefix, end = std::move(end)] {
    std::string whole = prefix + end();
    if (whole.ends_with(".bin")) whole.resize(whole.size() - 4);
    if (prefix.empty()) return std::vector<NamedPath>();
    return used(PathUse::writes, {whole + ".bin", whole + ".idx", tokenizer_folder(whole)});
  };
  return flag;
}

// A flag of Megatron's script that accepts only its default.
Flag only_flag(const char* name, const char* value, const std::vector<std::string>& choices) {
  return {{name}, value, "", [choices](const std::string& given, const std::string& word) {
            parse_choice(given, word, choices);
          }};
}

std::vector<Flag> tokenizer_flags(TokenizeOptions& options) {
  return {
      tokenizer_flag({"--tokenizer", "--tokenizer-name-or-path", "--tokenizer-model"}, "T",
                     options.tokenizer,
                     "a tokenizer.json, or a folder with one or with vocab.json and merges.txt;\n"
                     "train:SIZE trains one of SIZE tokens on the inputs, PREFIX.tokenizer"),
      path_flag({"--vocab-file"}, "F", options.vocabulary_file, PathUse::reads,
                "with --merge-file instead of --tokenizer: GPT-2's two files"),
      path_flag({"--merge-file"}, "F", options.merges_file, PathUse::reads, "GPT-2's merges"),
      only_flag("--tokenizer-type", "T",
                {"GPT2BPETokenizer", "PretrainedFromHf", "HFTokenizer", "HuggingFaceTokenizer"}),
      switch_flag({"--append-eod"}, options.append_eod,
                  "end each document with the end-of-document token"),
      text_flag({"--eod"}, "TOKEN", options.eod,
                "its end-of-document token [<|endoftext|>, </s> or <|end_of_text|>]")};
}

std::vector<Flag> output_flags(TokenizeOptions& options, std::string& megatron_prefix) {
  return {prefix_flag({"--out"}, "PREFIX", options.prefix, "path prefix of the output files",
                      [] { return std::string(); }),
          prefix_flag({"--output-prefix"}, "P", megatron_prefix,
                      "Megatron's: PREFIX is P_text_document",
                      [&options] { return document_suffix(options); }),
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
    raise<ConfigError>(
        "--tokenizer: expected one of --tokenizer and --vocab-file with --merge-file, got {}",
        has_files ? "both" : "nothing; try --tokenizer train:32000");
  if (has_files && (options.vocabulary_file.empty() || options.merges_file.empty()))
    throw ConfigError("--vocab-file: expected --vocab-file and --merge-file together, got one");
  if (options.tokenizer.starts_with("train:"))
    options.train_size =
        parse_integer("--tokenizer train:SIZE", options.tokenizer.substr(6), 257, largest_count);
  if (options.prefix.empty() == megatron_prefix.empty())
    raise<ConfigError>("--out: expected one of --out and --output-prefix, got {}",
                       options.prefix.empty() ? "nothing; try --out PREFIX" : "both");
  if (options.prefix.empty()) options.prefix = megatron_prefix + document_suffix(options);
  if (options.prefix.ends_with(".bin")) options.prefix.resize(options.prefix.size() - 4);
  if (!options.eod.empty() && !options.append_eod)
    throw ConfigError("--eod: expected --append-eod with it, got none");
}

bool parse(const std::vector<std::string>& arguments, TokenizeOptions& options) {
  std::string megatron_prefix;
  const CommandLine line = {
      .usage = "zerograd tokenize IN... --tokenizer T --out PREFIX [flags]",
      .summary =
          "Writes texts as tokens for train --data. In a .jsonl or .json each line is an object\n"
          "with a document; any other file is one document.",
      .rest = input_flag({}, "one or more texts or .jsonl files", options.inputs),
      .groups = {{"input",
                  {input_flag({"--input"}, "", options.inputs),
                   text_flag({"--json-key", "--json-keys"}, "KEY", options.json_key,
                             "key of the text in a line of JSON [text]"),
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

/// The output files, replaced together when all are complete.
struct Output {
  std::string name;  // the PREFIX without its folder
  FileSet files;

  explicit Output(const fs::path& prefix)
      : name(prefix.filename().string()), files(set_of(prefix, name)) {}

 private:
  // Fails early if the prefix cannot be written, not after hours of work.
  static FileSet set_of(const fs::path& prefix, const std::string& name) try {
    return FileSet(prefix.has_parent_path() ? prefix.parent_path().string() : ".", name);
  } catch (const FileError& error) {
    raise<FileError>("--out: {}.bin cannot be written: {}", prefix.string(), error.what());
  }
};

// Refuses an output that would be mistaken for another kind of data.
void check_outputs(const TokenizeOptions& options) {
  if (options.format == Format::llmc && path_exists(options.prefix + ".idx"))
    raise<ConfigError>(
        "--out: {}.idx is there, so that {}.bin would be read as Megatron's; expected another "
        "PREFIX",
        options.prefix, options.prefix);
}

models::Tokenizer trained_on(const TokenizeOptions& options) {
  models::TextDocuments documents(options.inputs, options.json_key);
  std::string all, document;
  while (documents.next(document)) all += (all.empty() ? "" : "\n") + document;
  return models::train_tokenizer(all, {.vocabulary = options.train_size});
}

models::Tokenizer tokenizer_for(const TokenizeOptions& options) {
  if (options.train_size > 0) return trained_on(options);
  if (!options.tokenizer.empty()) return models::load_tokenizer(options.tokenizer);
  return models::tokenizer_from_gpt2(
      {.vocabulary = read_text(options.vocabulary_file), .merges = read_text(options.merges_file)},
      fs::path(options.vocabulary_file).parent_path().string());
}

// The token that ends each document; absent if none was requested.
std::optional<int32_t> end_of_document(const TokenizeOptions& options,
                                       const models::Tokenizer& tokenizer) {
  if (!options.append_eod) return std::nullopt;
  std::vector<std::string> known = {"<|endoftext|>", "</s>", "<|end_of_text|>"};
  if (!options.eod.empty()) known = {options.eod};
  for (const std::string& token : known)
    if (const std::optional<int32_t> id = tokenizer.id_of_added(token)) return id;
  raise<ConfigError>(
      "--append-eod: expected {}{} among the tokenizer's added tokens, got neither; try --eod "
      "TOKEN",
      known.front(), known.size() > 1 ? " or " + known.back() : "");
}

/// Prints on stderr how far the work is, at most every five seconds.
class ProgressLine {
 public:
  void print(const models::CorpusCounts& counts) {
    const auto now = Clock::now();
    if (now - printed_ < std::chrono::seconds(5)) return;
    printed_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double megabytes = 1e-6 * static_cast<double>(counts.bytes);
    print_line(stderr, "{} documents, {:.1f} MB, {:.1f} MB/s", counts.documents, megabytes,
               megabytes / seconds);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now(), printed_ = begin_;
};

}  // namespace

int tokenize(const std::vector<std::string>& arguments) try {
  TokenizeOptions options;
  if (!parse(arguments, options)) return 0;
  check_outputs(options);
  Output out(options.prefix);
  const models::Tokenizer tokenizer = tokenizer_for(options);
  const int64_t vocabulary = tokenizer.vocabulary();
  const bool megatron = options.format == Format::megatron, trained = options.train_size > 0;
  if (trained) models::add_tokenizer(tokenizer, out.files, tokenizer_folder(out.name));
  const auto writer = megatron
                          ? models::indexed_dataset_writer(out.files, out.name, vocabulary)
                          : models::token_file_writer(out.files, out.name + ".bin", vocabulary);
  models::TextDocuments documents(options.inputs, options.json_key);
  ProgressLine progress;
  const models::CorpusCounts done = models::tokenize_corpus(
      documents, tokenizer, *writer,
      {.end_of_document = end_of_document(options, tokenizer),
       .threads = static_cast<int>(options.workers),
       .progress = [&](const models::CorpusCounts& counts) { progress.print(counts); }});
  writer->finish();
  out.files.finish();
  if (trained && vocabulary < options.train_size)
    print_line(stderr, "note: {} of {} tokens: the text has no more pairs to merge", vocabulary,
               options.train_size);
  if (trained)
    print_line(stdout, "saved {}: {} tokens", tokenizer_folder(options.prefix), vocabulary);
  print_line(stdout, "saved {}.bin{}: {} documents, {} tokens, vocabulary {}{}", options.prefix,
             megatron ? fmt::format(" and {}.idx", options.prefix) : "", done.documents,
             done.tokens, vocabulary,
             done.empty > 0 ? fmt::format("; {} empty left out", done.empty) : "");
  return 0;
} catch (const FileError& error) {
  // The library does not know the flag's name, so it is added here.
  std::string message = error.what();
  const std::string advice = "; try another key";
  if (message.ends_with(advice))
    message.replace(message.size() - advice.size(), advice.size(), "; try --json-key");
  throw FileError(message);
}

}  // namespace zg::tools
