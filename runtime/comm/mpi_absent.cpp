// Takes the place of mpi_comm.cpp in a build without MPI.
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/error.h"

namespace zg {

std::string mpi_version() { return {}; }

void run_processes(const std::function<void(Communicator&, const Device&)>&,
                   const ProcessOptions&) {
  throw Unsupported(
      "ranks: this build links no MPI, so its processes cannot meet; try ranks as threads of one "
      "process (--ranks N), or install an MPI (libopenmpi-dev, openmpi-bin) and build with "
      "-DZG_MPI=ON");
}

}  // namespace zg
