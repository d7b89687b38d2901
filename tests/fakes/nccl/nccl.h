#pragma once

#include <map>
#include <string>

namespace zg::emulator {

/// The functions of the double of NCCL by name. ZG_EMULATOR_NCCL=absent: there are none. It may
/// also plant a fault, "RANK:CALL:stall" (error, exit, block, late): what that rank does at its
/// CALL-th call. Ranks that end so leave their messages in ZG_EMULATOR_NCCL_FOLDER, which the test
/// removes.
const std::map<std::string, void*>& nccl_symbols();

}  // namespace zg::emulator
