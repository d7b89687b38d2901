#include "zerograd/runtime/comm/communicator.h"

#include <algorithm>

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
    raise<ShapeError>("{}: full has {} elements; expected {} shards of {}", op, full.numel(), size,
                      shard.numel());
  if (chunk.count < 0) chunk.count = shard.numel() - chunk.begin;
  if (chunk.begin < 0 || chunk.count < 0 || chunk.begin + chunk.count > shard.numel())
    raise<ShapeError>("{}: a chunk of {} from {} is outside the shard's {} elements", op,
                      chunk.count, chunk.begin, shard.numel());
  return chunk;
}

}  // namespace

void Communicator::sum_by_library() {
  if (size() > 1)
    raise<Unsupported>(
        "nccl_reduce: NCCL does not carry these ranks' data ({}); expected ranks on GPUs of their "
        "own where libnccl.so.2 is installed; try without it: sums are then exact",
        transport());
}

Chunk Communicator::check_all_gather(const Tensor& shard, const Tensor& full, Chunk chunk) const {
  if (full.dtype() != shard.dtype())
    raise<DTypeError>("all_gather: full holds {}; expected the shard's {}", full.dtype(),
                      shard.dtype());
  return checked("all_gather", shard, full, size(), chunk);
}

Chunk Communicator::check_reduce_scatter(const Tensor& full, const Tensor& shard,
                                         Chunk chunk) const {
  return checked("reduce_scatter", shard, full, size(), chunk);
}

void Communicator::check_root(int root) const {
  if (root < 0 || root >= size())
    raise<ConfigError>("broadcast: expected a root in [0, {}), got {}", size(), root);
}

int Communicator::check_group(std::span<const int> members, const std::string& name) const {
  int own = -1;
  const auto refuse = [&](const std::string& what) {
    raise<ConfigError>("group '{}': {}; expected ranks in [0, {}), each once, rank {} among them",
                       name, what, size(), rank());
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

}  // namespace zg
