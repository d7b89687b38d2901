#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "zerograd/runtime/device.h"

namespace zg {

namespace cpu {
struct Job;
}

/// What moves the data of collectives once the ranks have met; all of them run the same job. Called
/// by the communication worker only.
class Carrier {
 public:
  /// Returns once its argument does true; throws CommError when that cannot be any more.
  using Await = std::function<void(const std::function<bool()>& done)>;

  virtual ~Carrier() = default;
  /// Returns when the job is done on this rank. Throws what the library says as DeviceError; after
  /// any exception the carrier is of no more use, and the stream is free.
  virtual void run(const cpu::Job& job, Stream& stream, const Await& await) = 0;
};

/// What a rank says of itself before a library for accelerators (NCCL) is chosen. Plain data, so
/// that it can be sent.
struct CarrierPlace {
  char device[128] = {};   ///< its host and its accelerator, which no two ranks may share
  char id[128] = {};       ///< of the group, where the rank was asked to make one
  char absence[256] = {};  ///< why it cannot take part; empty: it can
};

/// Of a backend, how its ranks come to such a library.
struct CarrierFactory {
  /// Of a rank on the index-th device. `first`: the one whose id counts.
  CarrierPlace (*place)(int index, bool first) = nullptr;
  /// Why these ranks go without; empty: they do not. Throws ConfigError when they were told to.
  std::string (*absence)(std::span<const CarrierPlace> places) = nullptr;
  std::string (*name)() = nullptr;  ///< "NCCL 2.28.9"
  std::unique_ptr<Carrier> (*make)(std::span<const CarrierPlace> places, int rank,
                                   int index) = nullptr;
};

}  // namespace zg
