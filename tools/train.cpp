#include "runtime/comm.h"
#include "runtime/error.h"
#include "tools/interrupt.h"
#include "tools/subcommands.h"
#include "tools/training.h"

namespace zg::tools {
namespace {

int train_on_ranks(const Run& run) {
  const InterruptScope interrupt;
  int status = 0;
  run_local(static_cast<int>(run.options.ranks),
            [&](Communicator& ranks, const Device& device) {
              const int own = Training(run, ranks, device).run([&] { return interrupt.signal(); });
              if (ranks.rank() == 0) status = own;
            },
            {.timeout_s = run.options.comm_timeout_s, .device = run.options.place.device});
  return status;
}

void write_trace(const Run& run) {
  if (run.trace) run.trace->write(run.options.trace);
}

}  // namespace

int train(const std::vector<std::string>& arguments) {
  TrainOptions options;
  if (!parse(arguments, options)) return 0;
  const Run run = prepare_run(options);
  int status = 0;
  try {
    status = train_on_ranks(run);
  } catch (...) {
    try {
      write_trace(run);
    } catch (const FileError&) {  // the first error is the one to report
    }
    throw;
  }
  write_trace(run);
  return status;
}

}  // namespace zg::tools
