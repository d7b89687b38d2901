#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/comm/transport.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Ticket all_gather(const Tensor& shard, const Tensor& full, const std::string&,
                    Chunk chunk) override {
    chunk = check_all_gather(shard, full, chunk);
    take_window(Collective::all_gather, full, chunk);
    return count(full, Collective::all_gather, chunk.count * size_of(shard.dtype()) * (size_ - 1));
  }
  Ticket reduce_scatter(const Tensor& full, const Tensor& shard, bool, Combine, const std::string&,
                        Chunk chunk) override {
    chunk = check_reduce_scatter(full, shard, chunk);
    take_window(Collective::reduce_scatter, full, chunk);
    return count(full, Collective::reduce_scatter,
                 chunk.count * size_of(full.dtype()) * (size_ - 1));
  }
  Ticket all_reduce(const Tensor& x, const std::string&) override {
    return count(x, Collective::all_reduce, x.bytes() * (size_ - 1));
  }
  Ticket broadcast(const Tensor& x, int root, const std::string&) override {
    check_root("broadcast", root);
    take_window(Collective::broadcast, x, {.count = x.numel()});
    return count(x, Collective::broadcast, rank_ == root ? 0 : x.bytes());
  }
  Ticket barrier(const std::string&) override { return count({}, Collective::barrier, 0); }
  Ticket all_to_all(const Pieces& sent, const Pieces& received, const std::string&) override {
    check_all_to_all("all_to_all", sent, received);
    const int64_t own = received.counts[static_cast<size_t>(rank_)];
    return count(received.tensor, Collective::all_to_all,
                 received.tensor.bytes() - own * size_of(received.tensor.dtype()));
  }
  Ticket scatter(const Pieces& full, const Tensor& x, int root, const std::string&) override {
    pieces_of_scatter(full, x, root);
    return count(x, Collective::scatter, rank_ == root ? 0 : x.bytes());
  }
  std::unique_ptr<Communicator> group(std::span<const int> members,
                                      const std::string& name) override {
    const int own = check_group(members, name);
    return std::make_unique<CountingCommunicator>(own, static_cast<int>(members.size()));
  }
  void wait(Ticket) override {}
  void abort(const std::string&) noexcept override {}
  void set_step(int64_t) override {}
  WireCounts wire() const override { return counts_; }
  void sum_by_library() override {}

 private:
  void take_window(Collective op, const Tensor& full, Chunk chunk) {
    const int64_t bytes = CommWindow::bytes_for(op, full, chunk.count, size_);
    if (!window_.covers(bytes)) window_.grow(full.device(), bytes);
  }
  /// With one rank a run waits here for the device's work on x; otherwise its worker waits.
  Ticket count(const Tensor& x, Collective collective, int64_t bytes) {
    if (x && size_ == 1) x.device().compute().synchronize();
    WireCount& count = counts_[static_cast<size_t>(collective)];
    ++count.calls;
    count.bytes += bytes;
    return next_++;
  }
  const int rank_, size_;
  WireCounts counts_{};
  CommWindow window_;
  Ticket next_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> counting_communicator(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    raise<ConfigError>("communicator: expected a rank in [0, size), got rank {} of {}", rank, size);
  return std::make_unique<CountingCommunicator>(rank, size);
}

}  // namespace zg
