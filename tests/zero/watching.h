#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"

namespace zg::testing {

/// Passes everything on to another communicator, and remembers it.
class Watching final : public Communicator {
 public:
  struct Call {
    Collective kind;
    std::string name;
    int64_t elements;  ///< total over all ranks
  };
  std::vector<Call> calls;

  explicit Watching(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Ticket all_gather(const Tensor& shard, const Tensor& full, const std::string& name,
                    Chunk chunk) override {
    note(Collective::all_gather, name, shard, chunk);
    return inner_.all_gather(shard, full, name, chunk);
  }
  Ticket reduce_scatter(const Tensor& full, const Tensor& shard, bool fresh, Combine combine,
                        const std::string& name, Chunk chunk) override {
    note(Collective::reduce_scatter, name, shard, chunk);
    return inner_.reduce_scatter(full, shard, fresh, combine, name, chunk);
  }
  Ticket all_reduce(const Tensor& x, const std::string& name) override {
    calls.push_back({Collective::all_reduce, name, x.numel()});
    return inner_.all_reduce(x, name);
  }
  Ticket broadcast(const Tensor& x, int root, const std::string& name) override {
    calls.push_back({Collective::broadcast, name, x.numel()});
    return inner_.broadcast(x, root, name);
  }
  Ticket barrier(const std::string& name) override {
    calls.push_back({Collective::barrier, name, 0});
    return inner_.barrier(name);
  }
  Ticket all_to_all(const Pieces& sent, const Pieces& received, const std::string& name) override {
    calls.push_back({Collective::all_to_all, name, received.tensor.numel()});
    return inner_.all_to_all(sent, received, name);
  }
  Ticket scatter(const Pieces& full, const Tensor& x, int root, const std::string& name) override {
    calls.push_back({Collective::scatter, name, x.numel()});
    return inner_.scatter(full, x, root, name);
  }
  std::unique_ptr<Communicator> group(std::span<const int> members,
                                      const std::string& name) override {
    return inner_.group(members, name);
  }
  void wait(Ticket ticket) override { inner_.wait(ticket); }
  void wait_on_device(Ticket ticket) override { inner_.wait_on_device(ticket); }
  void abort(const std::string& cause) noexcept override { inner_.abort(cause); }
  void set_step(int64_t step) override { inner_.set_step(step); }
  WireCounts wire() const override { return inner_.wire(); }

 private:
  void note(Collective kind, const std::string& name, const Tensor& shard, Chunk chunk) {
    const int64_t count = chunk.count < 0 ? shard.numel() - chunk.begin : chunk.count;
    calls.push_back({kind, name, count * size()});
  }

  Communicator& inner_;
};

}  // namespace zg::testing
