#include <chrono>
#include <cstdio>
#include <filesystem>

#include "tools/subcommands.h"
#include "tools/tokenize_options.h"
#include "zerograd/models/text/corpus.h"
#include "zerograd/models/text/tokenizer_files.h"
#include "zerograd/models/token_writer.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/file_io.h"
#include "zerograd/runtime/file_set.h"
#include "zerograd/runtime/text.h"

namespace zg::tools {
namespace {

namespace fs = std::filesystem;
using Format = TokenizeOptions::Format;

std::string tokenizer_folder(const std::string& prefix) { return prefix + ".tokenizer"; }

/// The output files, replaced together when all are complete.
struct Output {
  std::string name;  // in the set's folder
  FileSet files;

  explicit Output(const fs::path& prefix)
      : name(prefix.filename().string()), files(set_of(prefix, name)) {}

 private:
  // Fails early if the prefix cannot be written, not after hours of work.
  static FileSet set_of(const fs::path& prefix, const std::string& name) try {
    return FileSet(prefix.has_parent_path() ? prefix.parent_path().string() : ".", name);
  } catch (const FileError& error) {
    throw FileError("--out: " + prefix.string() + ".bin cannot be written: " + error.what());
  }
};

// Refuses outputs that would overwrite an input or be mistaken for another kind of data.
void check_outputs(const TokenizeOptions& options) {
  for (const char* end : {".bin", ".idx"})
    for (const std::string& input : options.inputs) {
      std::error_code ignored;  // two paths that cannot be compared are treated as different
      const std::string output = options.prefix + end;
      if (input == output || fs::equivalent(input, output, ignored))
        throw ConfigError("--out: " + output + " is a text to read; expected another PREFIX");
    }
  if (options.format == Format::llmc && path_exists(options.prefix + ".idx"))
    throw ConfigError("--out: " + options.prefix + ".idx is there, so that " + options.prefix +
                      ".bin would be read as Megatron's; expected another PREFIX");
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
  std::vector<std::string> known = {"<|endoftext|>", "</s>"};
  if (!options.eod.empty()) known = {options.eod};
  for (const std::string& token : known)
    if (const std::optional<int32_t> id = tokenizer.id_of_added(token)) return id;
  throw ConfigError("--append-eod: expected " + known.front() +
                    (known.size() > 1 ? " or " + known.back() : "") +
                    " among the tokenizer's added tokens, got neither; try --eod TOKEN");
}

/// Prints on stderr how far the work is, at most every five seconds.
class Progress {
 public:
  void print(const models::CorpusCounts& counts) {
    const auto now = Clock::now();
    if (now - printed_ < std::chrono::seconds(5)) return;
    printed_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double megabytes = 1e-6 * static_cast<double>(counts.bytes);
    std::fprintf(stderr, "%lld documents, %.1f MB, %.1f MB/s\n", (long long)counts.documents,
                 megabytes, megabytes / seconds);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now(), printed_ = begin_;
};

}  // namespace

int tokenize(const std::vector<std::string>& arguments) {
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
  Progress progress;
  const models::CorpusCounts done = models::tokenize_corpus(
      documents, tokenizer, *writer,
      {.end_of_document = end_of_document(options, tokenizer),
       .threads = static_cast<int>(options.workers),
       .progress = [&](const models::CorpusCounts& counts) { progress.print(counts); }});
  writer->finish();
  out.files.finish();
  if (trained && vocabulary < options.train_size)
    std::fprintf(stderr, "note: %lld of %lld tokens: the text has no more pairs to merge\n",
                 (long long)vocabulary, (long long)options.train_size);
  if (trained)
    std::printf("saved %s: %lld tokens\n", tokenizer_folder(options.prefix).c_str(),
                (long long)vocabulary);
  std::printf("saved %s.bin%s: %lld documents, %lld tokens, vocabulary %lld%s\n",
              options.prefix.c_str(), megatron ? (" and " + options.prefix + ".idx").c_str() : "",
              (long long)done.documents, (long long)done.tokens, (long long)vocabulary,
              done.empty > 0 ? text("; %lld empty left out", (long long)done.empty).c_str() : "");
  return 0;
}

}  // namespace zg::tools
