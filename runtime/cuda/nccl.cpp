#include "zerograd/runtime/cuda/nccl.h"

#include <cstdlib>
#include <string_view>
#include <type_traits>

#include "zerograd/runtime/cuda/library.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

struct Opened {
  Nccl functions = {};
  std::string absence;
};

Opened open() {
  static const Library library({"libnccl.so.2"});
  Opened opened{.absence = library.absence()};
  if (!library.present()) return opened;
  opened.absence.clear();
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    if (!function && opened.absence.empty())
      opened.absence = fmt::format("libnccl.so.2 lacks {}; expected NCCL 2.14 or newer", name);
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

enum class Wish { any, direct, nccl };

Wish wish() {
  const char* value = std::getenv("ZG_CUDA_COMM");
  const std::string_view text = value ? value : "";
  if (text.empty()) return Wish::any;
  if (text == "direct") return Wish::direct;
  if (text == "nccl") return Wish::nccl;
  throw ConfigError(fmt::format(
      "ZG_CUDA_COMM is '{}'; expected direct or nccl, or unset it for NCCL where it can be used",
      text));
}

}  // namespace

const Nccl* nccl() {
  const Wish wished = wish();
  if (wished == Wish::direct) return nullptr;
  if (opened().absence.empty()) return &opened().functions;
  if (wished == Wish::any) return nullptr;
  throw ConfigError(
      fmt::format("ZG_CUDA_COMM=nccl, but NCCL is absent: {}; install it, set LD_LIBRARY_PATH, or "
                  "use ZG_CUDA_COMM=direct",
                  opened().absence));
}

std::string nccl_absence() {
  return wish() == Wish::direct ? "ZG_CUDA_COMM=direct" : opened().absence;
}

bool insists_on_nccl() { return wish() == Wish::nccl; }

std::string describe_nccl() {
  const Nccl* library = nccl();
  int version = 0;
  if (!library || library->get_version(&version) != NcclResult::success)
    return fmt::format("no NCCL ({})", nccl_absence());
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace zg::cuda
