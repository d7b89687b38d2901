#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "zerograd/runtime/comm/call.h"

namespace zg::cpu {

/// Moves the data of collectives by messages of the host: straight from and to its memory, or
/// through windows of it where pieces are to be added, or lie in an accelerator's memory.
class HostWindows {
 public:
  using Out = std::function<const std::byte*(int peer)>;
  using In = std::function<std::byte*(int peer)>;
  /// Sends out(peer) to and receives in(peer) from every peer, `bytes` each; null: nothing.
  using Exchange = std::function<void(int64_t bytes, const Out& out, const In& in)>;

  HostWindows(int rank, int size, bool on_host);
  void run(const Job& job, Stream& stream, const Exchange& exchange);

 private:
  using Take = std::function<void(int peer, int64_t offset, const std::byte* from, size_t bytes)>;
  void gather(const Job& job, Stream& stream, const Exchange& exchange);
  void combine(const Job& job, Stream& stream, const Exchange& exchange);
  void sum(const Job& job, Stream& stream, const Exchange& exchange);
  void broadcast(const Job& job, Stream& stream, const Exchange& exchange);
  void pass(int64_t bytes, const Out& out, const Take& take, Stream& stream,
            const Exchange& exchange);

  void take_windows();

  const int rank_, size_;
  const bool on_host_;
  std::vector<std::byte> window_;    // for what comes,
  std::vector<std::byte> outgoing_;  // and on the way from an accelerator's memory for what goes
};

}  // namespace zg::cpu
