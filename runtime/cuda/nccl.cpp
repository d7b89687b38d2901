#include "zerograd/runtime/cuda/nccl.h"

#include <cstdlib>
#include <string_view>
#include <type_traits>

#include "zerograd/runtime/cuda/library.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

struct Opened {
  Nccl functions = {};
  std::string why_unusable;  // empty: NCCL can be used
};

Opened open() {
  static const Library library({"libnccl.so.2"});
  Opened opened{.why_unusable = library.absence()};
  if (!library.present()) return opened;
  opened.why_unusable.clear();
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    if (!function && opened.why_unusable.empty())
      opened.why_unusable = fmt::format("libnccl.so.2 lacks {}; expected NCCL 2.14 or newer", name);
  };
  Nccl& f = opened.functions;
  find(f.get_version, "ncclGetVersion");
  find(f.get_unique_id, "ncclGetUniqueId");
  find(f.get_error_string, "ncclGetErrorString");
  find(f.comm_init_rank_config, "ncclCommInitRankConfig");
  find(f.comm_get_async_error, "ncclCommGetAsyncError");
  find(f.comm_abort, "ncclCommAbort");
  find(f.group_start, "ncclGroupStart");
  find(f.group_end, "ncclGroupEnd");
  find(f.send, "ncclSend");
  find(f.recv, "ncclRecv");
  find(f.all_gather, "ncclAllGather");
  find(f.broadcast, "ncclBroadcast");
  find(f.all_reduce, "ncclAllReduce");
  find(f.reduce, "ncclReduce");
  find(f.reduce_scatter, "ncclReduceScatter");
  return opened;
}

const Opened& opened() {
  static const Opened found = open();
  return found;
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
  if (opened().why_unusable.empty()) return &opened().functions;
  if (setting == CommSetting::any) return nullptr;
  raise<ConfigError>(
      "ZG_CUDA_COMM=nccl, but NCCL cannot be used: {}; install it, set LD_LIBRARY_PATH, or use "
      "ZG_CUDA_COMM=direct",
      opened().why_unusable);
}

std::string nccl_absence() {
  return comm_setting() == CommSetting::direct ? "ZG_CUDA_COMM=direct" : opened().why_unusable;
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
