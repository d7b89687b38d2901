#pragma once

#include <map>
#include <string>

namespace zg::emulator {

/// The functions of the test double of NCCL (nccl.cpp), by name. ZG_EMULATOR_NCCL=absent: the
/// emulator has no libnccl. ZG_EMULATOR_NCCL=RANK:CALL:FAULT plants a fault in the CALL-th group of
/// calls of rank RANK of each communicator: the group never finishes (stall), gets an error
/// (error), gets it once it runs on the device (fail), ends the process (exit), never returns
/// (block), is launched late (late), or begins on the device only when it is let (hold). Ranks that
/// end by a fault leave message files in the folder ZG_EMULATOR_NCCL_FOLDER (default: /dev/shm);
/// the test removes that folder.
const std::map<std::string, void*>& nccl_symbols();
/// For the fault "hold".
void let_held_collectives_begin(bool begin);

}  // namespace zg::emulator
