#include "tools/run/inputs.h"

#include <ctime>
#include <utility>

#include "zerograd/models/tokenizer/corpus.h"
#include "zerograd/models/tokenizer/text_stream.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

bool has_messages(const std::string& source) {
  return is_conversations(source) && is_regular_file(source) &&
         read_text(source).find("\"messages\"") != std::string::npos;
}

std::string today() {
  char text[11];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof text, "%Y-%m-%d", std::localtime(&now));
  return text;
}

/// `flag` names the file in errors.
std::vector<models::Conversation> conversations_in(const std::string& flag, const std::string& path,
                                                   const models::ConversationFileOptions& file,
                                                   const std::string& folder,
                                                   std::vector<std::string>& notes) {
  const auto message = [&](const Error& error) { return flag + ": " + error.what(); };
  try {
    return models::read_conversations(path, file, &notes.emplace_back());
  } catch (const Unsupported& error) {
    if (file.chat) throw Unsupported(message(error));
    raise<Unsupported>(
        "{}{}; try --chat-format F.jinja, or F.json with a prefix and a suffix for each role, or "
        "lines with prompt and response",
        message(error), folder.empty() ? "" : fmt::format("; {} has no chat template", folder));
  } catch (const FileError& error) {
    throw FileError(message(error));
  } catch (const ConfigError& error) {
    throw ConfigError(message(error));
  }
}

}  // namespace

std::unique_ptr<models::Dataset> conversation_dataset(const DataOptions& options,
                                                      const DatasetRequest& request) {
  models::ConversationFileOptions file = {.end = request.end};
  if (const models::Tokenizer* tokenizer = request.tokenizer) {
    file.encode = [tokenizer](const std::string& text) {
      return tokenizer->encode_with_spans(text);
    };
    file.first = tokenizer->parts().around.before;  // as generate begins a prompt
    for (const models::AddedToken& token : tokenizer->parts().added)
      if (request.end == token.id) file.end_text = token.content;
  } else {
    file.encode = [numbers = std::shared_ptr(models::character_stream("", "numbers"))](
                      const std::string& text) {
      models::EncodedText encoded{.ids = numbers->encode(text), .spans = {}};
      for (size_t end = 0; encoded.spans.size() < encoded.ids.size();) {
        const size_t begin = text.find_first_of("0123456789", end);
        end = std::min(text.find_first_not_of("0123456789", begin), text.size());
        encoded.spans.push_back({begin, end});
      }
      return encoded;
    };
    file.separator = " ";
  }
  if (!options.chat_format.empty())
    file.chat = models::chat_format(options.chat_format, "--chat-format");
  else if (request.tokenizer && !request.end)
    throw ConfigError(
        "--data: a response ends with a token that ends a text, </s> or <|endoftext|>, and the "
        "tokenizer has none; try another --tokenizer, or messages with --chat-format");
  const std::string& validation_source = options.validation_source;
  const bool has_own = !validation_source.empty();
  std::vector<models::Conversation> training, validation;
  std::vector<std::string> notes;
  if (!has_own || !request.validation_only)
    training = conversations_in("--data", options.source, file, request.folder, notes);
  validation = has_own
                   ? conversations_in("--val-data", validation_source, file, request.folder, notes)
                   : models::split_off(training, options.validation_fraction);
  const auto count = training.size() + validation.size();
  auto dataset = std::make_unique<models::ConversationDataset>(
      std::move(training), std::move(validation),
      models::ConversationOptions{
          .block_size = request.block_size > 0 ? request.block_size : conversation_block_size,
          .pack = options.pack,
          .order = options.order,
          .seed = request.seed,
          .vocabulary = request.tokenizer ? request.tokenizer->vocabulary() : 0,
          .codec = request.tokenizer ? models::tokenizer_codec(*request.tokenizer) : nullptr,
          .notes = notes});
  if (!request.validation_only && dataset->epoch_samples(models::Split::train) == 0)
    raise<ConfigError>(
        "--data: none of {} conversations is left to train on: no training conversation of {} has "
        "a target in its first {} tokens; try a larger --block-size or a smaller --val-fraction",
        count, options.source, dataset->block_size() + 1);
  return dataset;
}

std::vector<std::string> notes_of(const models::Dataset& dataset) {
  const auto* conversations = dynamic_cast<const models::ConversationDataset*>(&dataset);
  if (!conversations) return {};
  std::vector<std::string> notes = conversations->notes();
  int64_t all = 0, cut = 0, left_out = 0;
  for (const models::Split split : {models::Split::train, models::Split::validation}) {
    const models::ConversationDataset::Counts& counts = conversations->counts(split);
    all += counts.conversations + counts.left_out;
    cut += counts.cut;
    left_out += counts.left_out;
  }
  if (cut + left_out > 0)
    notes.push_back(fmt::format(
        "{} of {} conversations are longer than the block size {} and lose their end; {} more have "
        "no response within it and are left out; --block-size N takes longer ones",
        cut, all, dataset.block_size(), left_out));
  return notes;
}

std::optional<models::ChatFormat> chat_format_of(const std::string& path, const std::string& folder,
                                                 const std::string& saved) {
  models::ChatTemplate jinja;
  try {
    if (!path.empty() && !path.ends_with(".jinja"))
      return models::chat_format(read_text(path), path);
    if (!folder.empty()) jinja = models::folder_chat_template(folder);
    if (!path.empty()) {
      jinja.text = read_text(path);
      jinja.tool_text.clear();
    }
  } catch (const FileError& error) {
    raise<FileError>("{}{}", path.empty() ? "" : "--chat-format: ", error.what());
  }
  if (jinja.text.empty()) return std::nullopt;
  if (!saved.empty())
    if (const auto format = models::chat_format(saved, "chat format");
        format.jinja && format.jinja->text == jinja.text)
      return format;
  if ((jinja.text + jinja.tool_text).find("strftime_now") != std::string::npos)
    jinja.date = today();
  return models::ChatFormat{.first = "", .roles = {}, .jinja = std::move(jinja)};
}

void resolve_chat_format(DataOptions& data, const std::string& folder, const std::string& saved) {
  const std::string& path = data.chat_format_path;
  const auto is_needed = [&] {
    return data.chat_format.empty() &&
           (has_messages(data.source) || has_messages(data.validation_source));
  };
  if (!path.empty() || is_needed())
    if (const auto format = chat_format_of(path, folder, saved))
      data.chat_format = models::chat_format_json(*format);
}

}  // namespace zg::tools
