#include "zerograd/runtime/cuda/nccl.h"

#include <cstdlib>
#include <string_view>

#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

const Nccl& opened() {
  static const Nccl functions;
  return functions;
}

// Empty: NCCL can be used.
std::string why_unusable() {
  const Library& library = opened().library;
  if (!library.absence().empty() || library.lacking().empty()) return library.absence();
  return fmt::format("libnccl.so.2 lacks {}; expected NCCL 2.14 or newer", library.lacking());
}

/// The values of ZG_CUDA_COMM; any: the variable is not set.
enum class CommSetting { any, direct, nccl };

CommSetting comm_setting() {
  const char* value = std::getenv("ZG_CUDA_COMM");
  const std::string_view text = value ? value : "";
  if (text.empty()) return CommSetting::any;
  if (text == "direct") return CommSetting::direct;
  if (text == "nccl") return CommSetting::nccl;
  raise<ConfigError>(
      "ZG_CUDA_COMM is '{}'; expected direct or nccl; try to unset ZG_CUDA_COMM: then NCCL is used "
      "where it is available",
      text);
}

}  // namespace

const Nccl* nccl() {
  const CommSetting setting = comm_setting();
  if (setting == CommSetting::direct) return nullptr;
  if (why_unusable().empty()) return &opened();
  if (setting == CommSetting::any) return nullptr;
  raise<ConfigError>(
      "ZG_CUDA_COMM=nccl, but NCCL cannot be used: {}; install it, set LD_LIBRARY_PATH, or use "
      "ZG_CUDA_COMM=direct",
      why_unusable());
}

std::string nccl_absence() {
  return comm_setting() == CommSetting::direct ? "ZG_CUDA_COMM=direct" : why_unusable();
}

bool requires_nccl() { return comm_setting() == CommSetting::nccl; }

std::string describe_nccl() {
  const Nccl* library = nccl();
  int version = 0;
  if (!library) return fmt::format("no NCCL ({})", nccl_absence());
  if (library->get_version(&version) != NcclResult::success) return "NCCL of unknown version";
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace zg::cuda
