#include "zerograd/models/tokenizer/corpus.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

using Ids = std::vector<int32_t>;

bool has_lines(const std::string& path) {
  return path.ends_with(".jsonl") || path.ends_with(".json");
}

std::string text_of(const std::string& line, const std::string& key, const std::string& path,
                    int64_t number) {
  const auto object = parse_json_object(line, path, {.line = number});
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    raise<FileError>(
        "{}:{}: expected an object with a text under \"{}\", got '{}'; try another key", path,
        number, key, printable(line));
  return found->get<std::string>();
}

/// Encodes the texts on several threads; the result has the order of `texts`.
std::vector<Ids> encode(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                        size_t workers) {
  std::vector<Ids> ids(texts.size());
  std::vector<std::exception_ptr> failures(workers);
  std::atomic<size_t> next = 0;
  const auto work = [&](size_t worker) {
    try {
      for (size_t i; (i = next++) < texts.size();)
        if (!texts[i].empty()) ids[i] = tokenizer.encode_document(texts[i]);
    } catch (...) {
      failures[worker] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (size_t worker = 1; worker < std::min(workers, texts.size()); ++worker)
        threads.emplace_back(work, worker);
    } catch (const std::system_error&) {  // no more threads: the existing ones do the work
    }
    work(0);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return ids;
}

}  // namespace

bool TextDocuments::next(std::string& document) {
  for (; path_ < paths_.size(); ++path_) {
    if (!has_lines(paths_[path_])) {
      document = read_text(paths_[path_++]);
      return true;
    }
    if (next_line(document)) return true;
  }
  return false;
}

bool TextDocuments::next_line(std::string& document) {
  const std::string& path = paths_[path_];
  errno = 0;
  if (line_ == 0) lines_ = std::ifstream(path, std::ios::binary);
  std::string line;
  while (std::getline(lines_, line)) {
    ++line_;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    document = text_of(line, key_, path, line_);
    return true;
  }
  if (!lines_.is_open() || lines_.bad())
    raise<FileError>("{}: cannot be read: {}", path, std::generic_category().message(errno));
  line_ = 0;
  return false;
}

CorpusCounts tokenize_corpus(TextDocuments& documents, const Tokenizer& tokenizer,
                             TokenWriter& writer, const CorpusOptions& options) {
  constexpr size_t bytes_at_once = size_t{32} << 20;
  const size_t workers = options.threads > 0 ? static_cast<size_t>(options.threads)
                                             : std::max(1u, std::thread::hardware_concurrency());
  CorpusCounts counts;
  std::string document;
  for (bool more = true; more;) {
    std::vector<std::string> texts;
    size_t bytes = 0;
    while (bytes < bytes_at_once && (more = documents.next(document))) {
      bytes += document.size();
      texts.push_back(std::move(document));
    }
    for (Ids& ids : encode(tokenizer, texts, workers)) {
      if (ids.empty()) {
        ++counts.empty;
        continue;
      }
      if (options.end_of_document) ids.push_back(*options.end_of_document);
      writer.add_document(ids);
      ++counts.documents;
      counts.tokens += std::ssize(ids);
    }
    counts.bytes += static_cast<int64_t>(bytes);
    if (options.progress) options.progress(counts);
  }
  return counts;
}

namespace {

class TokenizerCodec final : public TextCodec {
 public:
  explicit TokenizerCodec(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::vector<int32_t> encode(const std::string& text) const override {
    return tokenizer_.encode(text);
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string bytes;
    for (const int32_t id : ids)
      bytes += id < tokenizer_.vocabulary() ? tokenizer_.decode_one(id, false) : utf8(0xfffd);
    return readable_utf8(bytes);
  }

 private:
  Tokenizer tokenizer_;
};

}  // namespace

std::unique_ptr<const TextCodec> tokenizer_codec(const Tokenizer& tokenizer) {
  return std::make_unique<TokenizerCodec>(tokenizer);
}

std::unique_ptr<Dataset> tokenized_dataset(const std::string& path, const Tokenizer& tokenizer,
                                           const TextOptions& options) {
  const std::string text = read_text(path);
  if (text.empty()) throw ConfigError(path + ": the file is empty; expected text");
  std::vector<int32_t> ids;
  try {
    ids = tokenizer.encode_document(text);
  } catch (const ConfigError& error) {
    throw ConfigError(path + ": " + error.what());
  }
  return window_dataset({.path = path,
                         .tokens = tokens_in_memory(std::move(ids)),
                         .vocabulary = tokenizer.vocabulary(),
                         .codec = tokenizer_codec(tokenizer)},
                        options);
}

}  // namespace zg::models
