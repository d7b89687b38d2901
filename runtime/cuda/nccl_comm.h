#pragma once

#include "zerograd/runtime/comm/transport.h"

namespace zg::cuda {

/// Ranks on GPUs of their own, whose data NCCL moves. Sums are added here, in rising rank; NCCL's
/// own, whose order is open, only where Job::by_library asks for them.
TransportFactory nccl_transports();

}  // namespace zg::cuda
