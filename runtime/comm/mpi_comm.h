#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/mpi_world.h"
#include "zerograd/runtime/comm/queued_comm.h"

namespace zg::cpu {

/// Moves the data of collectives by MPI messages between host memories. Data that is added, or is
/// in an accelerator's memory, goes through two host buffers ("windows"); other data is sent
/// directly.
class HostWindows {
 public:
  using Out = MpiWorld::Out;
  using In = MpiWorld::In;
  /// Sends out(peer) to and receives in(peer) from every peer; empty: nothing.
  using Exchange = std::function<void(const Out& out, const In& in)>;

  HostWindows(int rank, int size, bool on_host);
  void run(const Job& job, Stream& stream, const Exchange& exchange);

 private:
  void gather(const Job& job, Stream& stream, const Exchange& exchange);
  void combine(const Job& job, Stream& stream, const Exchange& exchange);
  void sum(const Job& job, Stream& stream, const Exchange& exchange);
  void broadcast(const Job& job, Stream& stream, const Exchange& exchange);
  void exchange_pieces(const Job& job, Stream& stream, const Exchange& exchange);
  void pass(const Out& out, const In& in, Stream& stream, const Exchange& exchange);
  void pass_directly(const Out& out, const In& in, const Exchange& exchange) const;
  int64_t longest_of(const Out& out, const In& in) const;

  void take_windows();

  const int rank_, size_;
  const bool on_host_;
  std::vector<std::byte> window_;    // receives from other ranks
  std::vector<std::byte> outgoing_;  // data of an accelerator before it is sent
};

/// The communicator of one rank in a group of processes.
class MpiCommunicator : public QueuedCommunicator {
 public:
  /// Called once all members have met. Chooses the library that moves their data, if there is one.
  MpiCommunicator(std::shared_ptr<MpiWorld> world, std::shared_ptr<MpiGroup> group,
                  const Device& device, std::chrono::milliseconds watch_every);

  std::unique_ptr<Communicator> group(std::span<const int> members,
                                      const std::string& name) override;
  void abort(const std::string& cause) noexcept override;

 protected:
  void choose_transport(const std::vector<TransportEndpoint>& endpoints);

  const std::shared_ptr<MpiWorld> world_;
  const std::shared_ptr<MpiGroup> group_;

 private:
  void run(const Job& job, Ticket ticket) override;
  void run_transport(const Job& job, Meeting& meeting);
  void failed(const std::exception_ptr& error) override { world_->failed(error); }
  void owner_waits(bool waits) override { world_->owner_waits(waits ? group_.get() : nullptr); }
  void owner_saw_failure() override { world_->note_owner_saw_failure(); }

  HostWindows windows_;
};

/// All ranks, with the thread that starts and ends MPI.
class MpiRanks final : public MpiCommunicator {
 public:
  MpiRanks(const ProcessRank& place, const ProcessOptions& options, const Device& device);
  ~MpiRanks() override;

  /// All collectives are done; returns when every rank is here. Throws CommError.
  void finish();
  /// After a failure, if that was asked for.
  void dump();
  void abort(const std::string& cause) noexcept override;

 private:
  MpiRanks(const std::shared_ptr<MpiWorld>& world, const ProcessOptions& options,
           const Device& device);
  void serve();
  void connect();
  bool failed_here();
  void watch() override { world_->watch(); }
  void await_owner();
  [[noreturn]] void end_process(const std::string& text);
  template <class Done>
  void await_end_or(const Done& done, double timeouts, const char* what);

  const bool dumps_;
  const std::function<bool()> told_to_end_;
  const double timeout_s_;
  const std::vector<std::pair<std::string, std::string>> same_;
  bool connected_ = false, ended_ = false;  // by mutex_
};

}  // namespace zg::cpu
