#include "zerograd/runtime/comm/communicator.h"

#include <algorithm>

#include "zerograd/runtime/comm/transport.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

const char* name_of(Collective collective) {
  constexpr const char* names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                   "barrier"};
  return names[static_cast<size_t>(collective)];
}

namespace {

Chunk checked(const char* op, const Tensor& shard, const Tensor& full, int size, Chunk chunk) {
  if (full.numel() != shard.numel() * size)
    throw ShapeError(fmt::format("{}: full has {} elements; expected {} shards of {}", op,
                                 full.numel(), size, shard.numel()));
  if (chunk.count < 0) chunk.count = shard.numel() - chunk.begin;
  if (chunk.begin < 0 || chunk.count < 0 || chunk.begin + chunk.count > shard.numel())
    throw ShapeError(fmt::format("{}: a chunk of {} from {} is outside the shard's {} elements", op,
                                 chunk.count, chunk.begin, shard.numel()));
  return chunk;
}

}  // namespace

void Communicator::sum_by_library() {
  if (size() > 1)
    throw Unsupported(fmt::format(
        "nccl_reduce: NCCL does not carry these ranks' data ({}); expected ranks on GPUs of their "
        "own where libnccl.so.2 is installed; try without it: sums are then exact",
        transport()));
}

Chunk Communicator::check_all_gather(const Tensor& shard, const Tensor& full, Chunk chunk) const {
  if (full.dtype() != shard.dtype())
    throw DTypeError(fmt::format("all_gather: full holds {}; expected the shard's {}", full.dtype(),
                                 shard.dtype()));
  return checked("all_gather", shard, full, size(), chunk);
}

Chunk Communicator::check_reduce_scatter(const Tensor& full, const Tensor& shard,
                                         Chunk chunk) const {
  return checked("reduce_scatter", shard, full, size(), chunk);
}

void Communicator::check_root(int root) const {
  if (root < 0 || root >= size())
    throw ConfigError(fmt::format("broadcast: expected a root in [0, {}), got {}", size(), root));
}

int Communicator::check_group(std::span<const int> members, const std::string& name) const {
  int own = -1;
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(
        fmt::format("group '{}': {}; expected ranks in [0, {}), each once, rank {} among them",
                    name, what, size(), rank()));
  };
  for (size_t i = 0; i < members.size(); ++i) {
    const int member = members[i];
    if (member < 0 || member >= size()) refuse(fmt::format("there is no rank {}", member));
    if (std::find(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(i), member) !=
        members.begin() + static_cast<std::ptrdiff_t>(i))
      refuse(fmt::format("rank {} is there twice", member));
    if (member == rank()) own = static_cast<int>(i);
  }
  if (name.empty()) refuse("it has no name");
  if (own < 0) refuse(fmt::format("rank {} is not a member", rank()));
  return own;
}

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
    check_root(root);
    take_window(Collective::broadcast, x, {.count = x.numel()});
    return count(x, Collective::broadcast, rank_ == root ? 0 : x.bytes());
  }
  Ticket barrier(const std::string&) override { return count({}, Collective::barrier, 0); }
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
    throw ConfigError(
        fmt::format("communicator: expected a rank in [0, size), got rank {} of {}", rank, size));
  return std::make_unique<CountingCommunicator>(rank, size);
}

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text) {
  const Device device = Device::cpu(ranks.rank(), {.threads = 1});
  const auto world = static_cast<size_t>(ranks.size());
  std::vector<int64_t> sizes(world);
  sizes[static_cast<size_t>(ranks.rank())] = static_cast<int64_t>(text.size());
  const Tensor lengths = Tensor::from(sizes, {ranks.size()}, device);
  ranks.wait(ranks.all_reduce(lengths, "lengths of texts"));
  sizes = lengths.to_host<int64_t>();
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());

  std::vector<uint8_t> bytes(text.begin(), text.end());
  bytes.resize(static_cast<size_t>(longest));
  const Tensor shard = Tensor::from(bytes, {longest}, device);
  const Tensor full = Tensor::empty({longest * ranks.size()}, DType::u8, device);
  ranks.wait(ranks.all_gather(shard, full, "texts"));
  bytes = full.to_host<uint8_t>();
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < world; ++rank) {
    const auto first = bytes.begin() + static_cast<int64_t>(rank) * longest;
    texts.emplace_back(first, first + sizes[rank]);
  }
  return texts;
}

namespace {

// Larger windows are not faster. Smaller ones need more rounds, and a GPU is idle between rounds.
constexpr int64_t max_window_bytes = int64_t{32} << 20, min_slot_bytes = int64_t{1} << 20;

}  // namespace

int64_t CommWindow::bytes_for(Collective op, const Tensor& full, int64_t count, int size) {
  const Device::Type backend = full.device().traits().backend;
  if (size == 1 || count == 0 || backend == Device::Type::cpu) return 0;
  // Libraries such as NCCL can access device memory only: tensors in host memory are copied to the
  // window and back.
  const bool on_device = full.buffer()->space() == Space::device;
  const bool copies = op == Collective::all_gather || op == Collective::broadcast;
  if (copies && (on_device || backend == Device::Type::hpu)) return 0;
  const int64_t longest =
      std::max(min_slot_bytes, max_window_bytes / size / arena_granule * arena_granule);
  const int64_t slot = std::min(longest, arena_bytes(count * size_of(full.dtype())));
  if (op == Collective::broadcast) return slot;
  return slot * size * (op == Collective::reduce_scatter && !on_device ? 2 : 1);
}

void CommWindow::grow(const Device& device, int64_t bytes) {
  const PurposeScope purpose(device, Purpose::comm);
  const NameScope name(device, "pieces of peers");
  tensor_ = {};
  tensor_ = Tensor::empty({bytes}, DType::u8, device);
}

}  // namespace zg
