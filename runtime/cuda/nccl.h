#pragma once

#include <cuda_runtime_api.h>
#include <cstddef>
#include <string>

#include "zerograd/runtime/comm/transport.h"
#include "zerograd/runtime/cuda/library.h"

namespace zg::cuda {

// The part of NCCL's interface that is used. Its values have not changed since 2.14, so a build
// does not need NCCL's header.
using NcclComm = struct NcclCommunicator*;
struct NcclId {
  char bytes[128];
};
enum class NcclResult : int { success = 0, system_error = 2, invalid_usage = 5, in_progress = 7 };
enum class NcclType : int { u8 = 1, i64 = 4, f16 = 6, f32 = 7, bf16 = 9 };
enum class NcclOperation : int { sum = 0 };
/// ncclConfig_t of 2.14. A later library sees by `version` which fields exist, and uses its
/// defaults for the others.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;  ///< 0: calls return at once, and the caller waits with a deadline
};

/// The functions of NCCL that are used, named without the prefix nccl.
struct Nccl {
  Library library{{"libnccl.so.2"}};

  NcclResult (*get_version)(int*) = library.find("ncclGetVersion");
  NcclResult (*get_unique_id)(NcclId*) = library.find("ncclGetUniqueId");
  const char* (*get_error_string)(NcclResult) = library.find("ncclGetErrorString");
  NcclResult (*comm_init_rank_config)(NcclComm*, int ranks, NcclId, int rank,
                                      NcclConfig*) = library.find("ncclCommInitRankConfig");
  NcclResult (*comm_get_async_error)(NcclComm, NcclResult*) = library.find("ncclCommGetAsyncError");
  NcclResult (*comm_abort)(NcclComm) = library.find("ncclCommAbort");
  NcclResult (*group_start)() = library.find("ncclGroupStart");
  NcclResult (*group_end)() = library.find("ncclGroupEnd");
  NcclResult (*send)(const void*, size_t count, NcclType, int peer, NcclComm,
                     cudaStream_t) = library.find("ncclSend");
  NcclResult (*recv)(void*, size_t count, NcclType, int peer, NcclComm,
                     cudaStream_t) = library.find("ncclRecv");
  NcclResult (*all_gather)(const void*, void*, size_t count, NcclType, NcclComm,
                           cudaStream_t) = library.find("ncclAllGather");
  NcclResult (*broadcast)(const void*, void*, size_t count, NcclType, int root, NcclComm,
                          cudaStream_t) = library.find("ncclBroadcast");
  NcclResult (*all_reduce)(const void*, void*, size_t count, NcclType, NcclOperation, NcclComm,
                           cudaStream_t) = library.find("ncclAllReduce");
  NcclResult (*reduce)(const void*, void*, size_t count, NcclType, NcclOperation, int root,
                       NcclComm, cudaStream_t) = library.find("ncclReduce");
  NcclResult (*reduce_scatter)(const void*, void*, size_t count, NcclType, NcclOperation, NcclComm,
                               cudaStream_t) = library.find("ncclReduceScatter");
};

/// The library, opened at the first call. Null if it is not installed or lacks one of the
/// functions, or if ZG_CUDA_COMM=direct selects zerograd's own copies between GPUs. With
/// ZG_CUDA_COMM=nccl it throws ConfigError when NCCL is absent. Any thread may call.
const Nccl* nccl();
std::string nccl_absence();  ///< why nccl() is null
bool requires_nccl();        ///< ZG_CUDA_COMM=nccl

/// "NCCL 2.28.9", or "no NCCL (reason)".
std::string describe_nccl();

/// Transports that move data with NCCL; each rank has its own GPU. zerograd adds the terms of a sum
/// itself, in rising rank. NCCL's own sums, whose order is not defined, are used only if
/// Job::by_library is set.
TransportFactory nccl_transports();

}  // namespace zg::cuda
