#include "zerograd/runtime/command_line/command_line.h"

#include <filesystem>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

namespace fs = std::filesystem;

/// The path with all links resolved. The file itself need not exist yet.
fs::path resolved(const std::string& given) {
  std::error_code error;
  fs::path path = fs::absolute(given, error);
  // A link whose target is missing: a file that is written through it gets the target's name.
  constexpr int max_links = 40;  // the limit of Linux
  for (int i = 0; i < max_links && fs::is_symlink(path, error) && !fs::exists(path, error); ++i)
    path = path.parent_path() / fs::read_symlink(path, error);
  const fs::path known = fs::weakly_canonical(path, error);
  return error ? path : known;
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  return a == b || fs::equivalent(a, b, missing);
}

bool lies_in(const fs::path& inner, const fs::path& outer) {
  for (fs::path path = inner;; path = path.parent_path()) {
    if (is_same(path, outer)) return true;
    if (path == path.parent_path()) return false;
  }
}

/// Whether a folder has the same file under another name. The files of a downloaded model are often
/// links.
bool has_linked(const fs::path& folder, const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return false;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (is_same(it->path(), file)) return true;
  return false;
}

bool is_input(const NamedPath& path) {
  return path.use == PathUse::reads || path.use == PathUse::resumes || path.use == PathUse::watches;
}

void check_pair(const NamedPath& input, const fs::path& in, const NamedPath& output,
                const fs::path& out) {
  const std::string flags = fmt::format("{} and {}: ", input.flag, output.flag);
  if (is_same(in, out) && (input.use != PathUse::watches || output.use == PathUse::writes))
    raise<ConfigError>("{}both name {}; expected another path to write", flags, input.path);
  if (input.use == PathUse::watches) return;
  if (lies_in(out, in) || has_linked(in, out))
    raise<ConfigError>("{}{} is a file of {}, which is read; expected a path outside", flags,
                       output.path, input.path);
  if (lies_in(in, out) && (input.use == PathUse::reads || output.use == PathUse::writes))
    raise<ConfigError>("{}{} has {} in it, which is read; expected another folder", flags,
                       output.path, input.path);
}

}  // namespace

const char* name_of(PathUse use) {
  constexpr const char* names[] = {"none", "reads", "resumes", "watches", "writes", "adds"};
  return names[static_cast<size_t>(use)];
}

std::vector<NamedPath> used(PathUse use, const std::vector<std::string>& paths) {
  std::vector<NamedPath> named;
  for (const std::string& path : paths) named.push_back({"", use, path});
  return named;
}

void check_paths(const std::vector<NamedPath>& paths) {
  std::vector<std::pair<const NamedPath*, fs::path>> inputs, outputs;
  for (const NamedPath& path : paths) {
    if (path.path.empty() || path.use == PathUse::none) continue;
    std::error_code missing;
    if (fs::is_other(path.path, missing)) continue;  // a device or a pipe
    (is_input(path) ? inputs : outputs).emplace_back(&path, resolved(path.path));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [output, out] = outputs[i];
    for (const auto& [input, in] : inputs) {
      check_pair(*input, in, *output, out);
      if (output->use == PathUse::writes)  // a leftover of this name will be removed
        check_pair(*input, in, *output, out.string() + ".unfinished");
    }
    for (size_t j = 0; j < i; ++j)
      if (const auto& [other, path] = outputs[j];
          is_same(path, out) && other->flag != output->flag &&
          (output->use == PathUse::writes || other->use == PathUse::writes))
        raise<ConfigError>("{} and {}: both name {}; expected two paths", other->flag, output->flag,
                           output->path);
  }
}

}  // namespace zg
