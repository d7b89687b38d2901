#include "tools/run/data_file.h"

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

std::string indexed_prefix(const std::string& source) {
  if (is_task(source)) return "";
  if (is_regular_file(source + ".idx")) return source;
  if (!source.ends_with(".bin")) return "";
  const std::string prefix = source.substr(0, source.size() - 4);
  return is_regular_file(prefix + ".idx") ? prefix : "";
}

DataKind kind_of(const std::string& source) {
  if (source.empty()) return DataKind::none;
  if (is_task(source)) return DataKind::task;
  if (!indexed_prefix(source).empty()) return DataKind::documents;
  if (source.ends_with(".bin")) return DataKind::tokens;
  if (is_conversations(source)) return DataKind::conversations;
  if (source.ends_with(".txt") || is_regular_file(source)) return DataKind::text;
  const std::string found = is_directory(source)  ? " is a folder"
                            : path_exists(source) ? " is not a regular file"
                                                  : " does not exist";
  raise<ConfigError>(
      "--data: '{}'{}, and {}.idx does not exist; expected sort, adder, PATH.txt, PATH.bin, "
      "PATH.jsonl or PREFIX{}",
      source, found, source, did_you_mean(source, {"sort", "adder"}));
}

Contents contents_of(const std::string& path) {
  if (const std::string prefix = indexed_prefix(path); !prefix.empty())
    return {.bytes = File::open(prefix + ".bin").size(),
            .checksum = contents_of(prefix + ".idx").checksum};
  if (!is_regular_file(path)) return {};
  const File file = File::open(path);
  return {.bytes = file.size(), .checksum = file_checksum(file)};
}

std::string change_of(const Contents& saved, const Contents& now, const std::string& path) {
  if (!saved.known() || !now.known()) return "";
  if (saved.checksum == now.checksum && saved.bytes == now.bytes) return "";
  return fmt::format("data: {} has other contents: {} bytes in the checkpoint, {} now{}", path,
                     saved.bytes, now.bytes,
                     saved.bytes == now.bytes ? "; the checksums differ" : "");
}

std::vector<std::string> warnings_of(const std::string& characters, const std::string& path) {
  std::vector<std::string> lines;
  if (characters.find("\uFEFF") != std::string::npos)
    lines.push_back(path +
                    " has a byte order mark (U+FEFF), which the model learns as a character");
  if (characters.find('\r') != std::string::npos)
    lines.push_back(
        path +
        " has CR characters, perhaps from CR LF line ends, which the model learns, too; "
        "`tr -d '\\r'` removes them");
  return lines;
}

}  // namespace zg::tools
