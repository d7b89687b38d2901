#include "tests/fakes/level_zero/compiler.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "tests/fakes/level_zero/host_text.h"
#include "tests/fakes/level_zero/settings.h"

namespace zg::test_driver {
namespace {

namespace fs = std::filesystem;

// Fused multiply-adds are instructions of the target. The compiler adds none (-ffp-contract=off).
#ifdef __SANITIZE_ADDRESS__  // its runtime comes with the program
constexpr std::array code_flags{"-O2", "-march=x86-64-v3", "-ffp-contract=off", "-fPIC",
                                "-fsanitize=address"};
#else
constexpr std::array code_flags{"-O2", "-march=x86-64-v3", "-ffp-contract=off", "-fPIC",
                                "-Wl,-z,defs"};
#endif

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + file.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const fs::path& file, std::string_view text) {
  std::ofstream out(file, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + file.string());
}

/// Runs an LLVM program. Its output is part of the error that is thrown.
void run_program(const fs::path& folder, const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const fs::path said = folder / "said";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed) throw std::runtime_error("cannot start " + command[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status))
    throw std::runtime_error(command[0] + " failed: " + read_text(said));
}

/// FNV-1a; each half of the name uses another start value.
uint64_t hash(std::string_view bytes, uint64_t value) {
  for (const char c : bytes) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return value;
}

std::string hash_of(const std::vector<std::string_view>& parts) {
  std::string name;
  for (uint64_t value : {uint64_t{0xcbf29ce484222325}, uint64_t{0x9ae16a3b2f90404f}}) {
    for (const std::string_view part : parts) value = hash(part, value * 31 + part.size());
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
    name += digits;
  }
  return name;
}

/// Throws for functions without a definition: no device has them, or the driver's library lacks
/// them.
void check_resolved(const std::string& kernels, const std::string& library) {
  const Functions needed = functions_of(kernels), known = functions_of(library);
  std::string unresolved;
  for (const std::string& name : needed.declared) {
    if (name.starts_with("llvm.") || name.starts_with("zg_") || known.defined.contains(name))
      continue;
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> plain(
        abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
    unresolved +=
        (unresolved.empty() ? "" : ", ") + std::string(plain ? plain.get() : name.c_str());
  }
  if (!unresolved.empty())
    throw std::runtime_error("unresolved: " + unresolved +
                             "; built-in functions are in tests/fakes/level_zero/library");
}

/// A folder that only this process uses.
struct TemporaryFolder {
  fs::path path;
  explicit TemporaryFolder(const fs::path& parent) {
    static std::atomic<int> made = 0;
    path = parent / ("new." + std::to_string(getpid()) + "." + std::to_string(made++));
    fs::remove_all(path);  // a killed process with the same id may have left it
    fs::create_directory(path);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

/// Only one process at a time compiles a module. The others wait and use its result.
struct FileLock {
  int file;
  explicit FileLock(const fs::path& name)
      : file(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (file < 0 || flock(file, LOCK_EX)) throw std::runtime_error("cannot lock " + name.string());
  }
  ~FileLock() { close(file); }
};

void compile(const fs::path& folder, std::span<const std::byte> spirv,
             const std::vector<KernelSignature>& kernels, bool rounded,
             const std::string& library) {
  write_text(folder / "module.spv", {reinterpret_cast<const char*>(spirv.data()), spirv.size()});
  run_program(folder, {ZG_LLVM_SPIRV, "-r", "--spirv-target-env=CL2.0", folder / "module.spv", "-o",
                       folder / "module.bc"});
  run_program(folder, {ZG_LLVM_DIS, folder / "module.bc", "-o", folder / "module.ll"});
  std::string text = host_text_of_kernels(read_text(folder / "module.ll"), kernels);
  if (!rounded) text = with_reciprocals(text);
  const std::string library_text = host_text(library);
  check_resolved(text, library_text);
  write_text(folder / "kernels.ll", text);
  write_text(folder / "library.ll", library_text);
  run_program(folder, {ZG_LLVM_LINK, folder / "kernels.ll", "--only-needed", folder / "library.ll",
                       ZG_DRIVER_HOOKS, "-o", folder / "all.bc"});
  std::vector<std::string> command{ZG_CLANG, "-w", "-shared"};
  command.insert(command.end(), code_flags.begin(), code_flags.end());
  command.insert(command.end(), {folder / "all.bc", "-o", folder / "module.so", "-lm"});
  run_program(folder, command);
}

}  // namespace

std::vector<std::string> compiled_copies(std::span<const std::byte> spirv,
                                         const std::vector<KernelSignature>& kernels, bool rounded,
                                         unsigned copies) {
  const fs::path cache = settings().cache;
  fs::create_directories(cache);
  const std::string library = read_text(ZG_DRIVER_LIBRARY), hooks = read_text(ZG_DRIVER_HOOKS);
  std::string flags = "1";  // hashed with the module's text
  for (const char* flag : code_flags) flags += flag;
  if (!rounded) flags += " by reciprocals";
  const std::string name =
      hash_of({{reinterpret_cast<const char*>(spirv.data()), spirv.size()}, library, hooks, flags});
  std::vector<std::string> files;
  for (unsigned i = 0; i < copies; ++i)
    files.push_back(cache / (name + "." + std::to_string(i) + ".so"));
  // The last file is written last, so all of them exist.
  if (fs::exists(files.back())) return files;
  const FileLock lock(cache / (name + ".lock"));
  if (fs::exists(files.back())) return files;
  const TemporaryFolder folder(cache);
  compile(folder.path, spirv, kernels, rounded, library);
  for (const std::string& file : files) {
    fs::copy_file(folder.path / "module.so", folder.path / "copy.so",
                  fs::copy_options::overwrite_existing);
    fs::rename(folder.path / "copy.so", file);
  }
  return files;
}

}  // namespace zg::test_driver
