#include "zerograd/runtime/comm/mpi_world.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const char* end = std::find_if(text, text + length, [](char c) { return c == ',' || c == '\n'; });
  const std::string line(text, static_cast<size_t>(end - text));
  // "MPICH Version:\t4.0.2" on its first line.
  const size_t number = line.find_last_of(" \t") + 1;
  return line.starts_with("MPICH") ? "MPICH " + line.substr(number) : line;
}

namespace cpu::wire {
namespace {

void check(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  raise<CommError>("{}: {}", what, text);
}

// A request is a number in MPICH and a pointer in Open MPI.
static_assert(sizeof(MPI_Request) <= sizeof(uint64_t));

Message message_of(MPI_Request request) {
  Message message{.pending = request != MPI_REQUEST_NULL};
  std::memcpy(&message.handle, &request, sizeof request);
  return message;
}

MPI_Request request_of(const Message& message) {
  MPI_Request request;
  std::memcpy(&request, &message.handle, sizeof request);
  return request;
}

}  // namespace

bool start(int size) {
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // within MPI_Init and MPI_Finalize
  int provided = 0, seen = 0, begun = 0;
  check(MPI_Initialized(&begun), "MPI_Initialized");
  if (begun)
    raise<ConfigError>(
        "run_processes: MPI was started before in this process, and starts only once; expected all "
        "work of the ranks in one call");
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_size(MPI_COMM_WORLD, &seen), "MPI_Comm_size");
  if (seen != size)
    raise<ConfigError>(
        "ranks: {} sees {} processes; expected the {} of the launcher's environment; start with "
        "the mpirun of this MPI",
        mpi_version(), seen, size);
  return provided >= MPI_THREAD_SERIALIZED;
}

void stop() { check(MPI_Finalize(), "MPI_Finalize"); }

Message send(int peer, int tag, const void* data, int64_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request),
        "MPI_Isend");
  return message_of(request);
}

Message receive(int peer, int tag, void* data, int64_t capacity) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(data, static_cast<int>(capacity), MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request),
        "MPI_Irecv");
  return message_of(request);
}

bool complete(Message& message) {
  if (!message.pending) return true;
  MPI_Request request = request_of(message);
  int done = 0;
  check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done) message = {};
  return done != 0;
}

void cancel(Message& message) {
  if (!message.pending) return;
  MPI_Request request = request_of(message);
  check(MPI_Cancel(&request), "MPI_Cancel");
  check(MPI_Request_free(&request), "MPI_Request_free");
  message = {};
}

}  // namespace cpu::wire
}  // namespace zg
