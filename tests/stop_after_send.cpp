// Preloaded by tests/long/failure: stops rank ZG_STOP_RANK right after its ZG_STOP_SEND-th message,
// so that of several messages to other ranks only some are sent.
#include <mpi.h>

#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>

extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  static const int rank = std::atoi(std::getenv("ZG_STOP_RANK"));
  static int left = std::atoi(std::getenv("ZG_STOP_SEND"));
  const int result = PMPI_Isend(data, count, type, peer, tag, comm, request);
  int own = -1, size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &own);
  if (own != rank || --left != 0) return result;
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  std::fprintf(stderr, "inject: stop on rank %d/%d pid %d after a message\n", own, size, getpid());
  raise(SIGSTOP);
  return result;
}
