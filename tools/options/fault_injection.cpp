#include "tools/options/fault_injection.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/print.h"

namespace zg::tools {
namespace {

using Fault = FaultInjection::Fault;
using Phase = FaultInjection::Phase;

// Hangs. After the timeout the other ranks report this rank and the process is ended.
[[noreturn]] void stall() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

void inject(const FaultInjection& injection, Phase phase, int64_t step, Communicator& ranks,
            const Device& device) {
  if (!injection.applies(ranks.rank(), step, phase) || injection.fault == Fault::infinity ||
      device.type() == Device::Type::meta)
    return;
  const bool alone = ranks.size() == 1;
  const std::string where =
      fmt::format("in step {}", step) +
      (phase == Phase::begin ? "" : ", phase " + phase_words[static_cast<size_t>(phase) - 1]);
  print_line(stderr, "inject: {} on rank {}/{} pid {} in step {}",
             fault_words[static_cast<size_t>(injection.fault) - 1], ranks.rank(), ranks.size(),
             static_cast<int>(getpid()), step);
  switch (injection.fault) {
    case Fault::none:
    case Fault::infinity:
      return;
    case Fault::error:
      raise<ShapeError>("inject: a fault {}", where);
    case Fault::leave:  // with a single rank no peer would notice
      if (alone) raise<CommError>("inject: a fault ended the rank {}", where);
      throw LeftEarly{};
    case Fault::stall:
      if (alone) raise<CommError>("inject: a fault stalled the rank {}", where);
      stall();
    case Fault::kill:
      std::raise(SIGKILL);
      return;
    case Fault::stop:
      std::raise(SIGSTOP);
      return;
    case Fault::memory:
      Tensor::empty({int64_t{1} << 50}, DType::u8, device);
      return;
    case Fault::mismatch:
      ranks.wait(ranks.barrier("inject: a fault"));
      return;
  }
}

}  // namespace zg::tools
