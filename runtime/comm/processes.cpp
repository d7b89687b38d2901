#include "zerograd/runtime/comm/processes.h"

#include <unistd.h>

#include <algorithm>

#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

std::optional<int> first_of(std::initializer_list<const char*> variables) {
  for (const char* variable : variables)
    if (const auto number = number_in_variable(variable)) return number;
  return std::nullopt;
}

}  // namespace

// Open MPI's mpirun, MPICH's (and srun --mpi=pmi2), srun --mpi=pmix.
std::optional<ProcessRank> process_rank() {
  const auto rank = first_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"});
  const auto size =
      first_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  if (!rank || !size) return std::nullopt;
  if (*rank >= *size)
    raise<ConfigError>("ranks: expected a rank below the {} that the launcher names, got {}", *size,
                       *rank);
  ProcessRank place = {.rank = *rank, .size = *size};
  place.local_rank = first_of({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
                         .value_or(place.rank);
  place.local_size = first_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}).value_or(0);
  // Slurm gives the tasks of each host, "4(x2),3": the number of the first host is used.
  if (!place.local_size)
    place.local_size = number_in_variable("SLURM_STEP_TASKS_PER_NODE", "(,").value_or(place.size);
  return place;
}

// The launcher itself is not bound to cores, so its affinity mask has the cores of all its
// processes.
int threads_per_process(int local_size) {
  const int own = available_cores();
  const int together = std::max(own, cores_of(getppid()));
  return cpu::threads_or(std::clamp(together / std::max(1, local_size), 1, own));
}

}  // namespace zg
