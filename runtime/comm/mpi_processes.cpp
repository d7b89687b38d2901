#include <iterator>

#include "zerograd/runtime/comm/mpi_comm.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/error.h"

namespace zg {

void run_processes(const std::function<void(Communicator&, const Device&)>& f,
                   const ProcessOptions& options) {
  const ProcessRank place = process_rank().value_or(ProcessRank{});
  if (options.same.size() > std::size(cpu::Hello{}.same))
    throw ConfigError("run_processes: expected at most 8 values to compare");
  DeviceOptions device_options = options.device;
  if (device_options.threads == 0) device_options.threads = threads_per_process(place.local_size);
  const bool is_cpu = options.type == Device::Type::cpu;
  const Device device =
      device_of_rank(options.type, is_cpu ? place.rank : place.local_rank, device_options);
  DeviceState::of(device).rank = place.rank;
  if (place.size == 1)
    return run_local(1, f,
                     {.timeout_s = options.timeout_s,
                      .device = device_options,
                      .type = options.type,
                      .dump_collectives = options.dump_collectives});
  cpu::MpiRanks communicator(place, options, device);
  try {
    f(communicator, device);
    communicator.finish();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    communicator.abort(cpu::describe(error));
    communicator.dump();
    std::rethrow_exception(cpu::of_rank(error, place.rank, place.size));
  }
}

}  // namespace zg
