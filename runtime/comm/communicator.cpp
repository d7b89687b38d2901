#include "zerograd/runtime/comm/communicator.h"

#include <algorithm>

#include "zerograd/runtime/text/format.h"

namespace zg {

const char* name_of(Collective collective) {
  constexpr const char* names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                   "barrier",    "all_to_all",     "scatter"};
  return names[static_cast<size_t>(collective)];
}

WireCounts added(WireCounts a, const WireCounts& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    a[i].calls += b[i].calls;
    a[i].bytes += b[i].bytes;
  }
  return a;
}

namespace {

std::string list_of(const std::vector<int64_t>& numbers) {
  std::string list;
  for (const int64_t number : numbers) list += (list.empty() ? "" : ", ") + std::to_string(number);
  return "[" + list + "]";
}

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

void Communicator::check_root(const char* op, int root) const {
  if (root < 0 || root >= size())
    raise<ConfigError>("{}: expected a root in [0, {}), got {}", op, size(), root);
}

void Communicator::check_all_to_all(const char* op, const Pieces& sent,
                                    const Pieces& received) const {
  const auto check = [&](const char* which, const Pieces& pieces) {
    int64_t sum = 0;
    bool fits = pieces.tensor && pieces.counts.size() == static_cast<size_t>(size());
    for (const int64_t count : pieces.counts) {
      fits = fits && count >= 0;
      sum += count;
    }
    if (!fits || sum != pieces.tensor.numel())
      raise<ShapeError>(
          "{}: {}: {} elements and pieces of {}; expected one piece of 0 or more elements for each "
          "of {} ranks, together all elements",
          op, which, pieces.tensor ? pieces.tensor.numel() : 0, list_of(pieces.counts), size());
    if (pieces.tensor.buffer()->space() != Space::device)
      raise<DeviceError>("{}: {} is in {} memory; expected memory of the ranks' devices", op, which,
                         name_of(pieces.tensor.buffer()->space()));
  };
  check("sent", sent);
  check("received", received);
  if (sent.tensor.dtype() != received.tensor.dtype())
    raise<DTypeError>("{}: received holds {}; expected the {} that is sent", op,
                      received.tensor.dtype(), sent.tensor.dtype());
  const auto own = static_cast<size_t>(rank());
  if (sent.counts[own] != received.counts[own])
    raise<ShapeError>("{}: rank {} sends {} elements to itself and receives {}; expected as many",
                      op, rank(), sent.counts[own], received.counts[own]);
  const int64_t apart = sent.tensor.byte_offset() - received.tensor.byte_offset();
  if (sent.tensor.buffer() == received.tensor.buffer() && apart < received.tensor.bytes() &&
      -apart < sent.tensor.bytes())
    raise<ShapeError>("{}: received overlaps what is sent; expected another tensor", op);
}

std::array<Pieces, 2> Communicator::pieces_of_scatter(const Pieces& full, const Tensor& x,
                                                      int root) const {
  check_root("scatter", root);
  const std::vector<int64_t> none(static_cast<size_t>(size()));
  Pieces sent = rank() == root ? full : Pieces{x.flat(0, 0), none}, received{x, none};
  received.counts[static_cast<size_t>(root)] = x.numel();
  check_all_to_all("scatter", sent, received);
  return {std::move(sent), std::move(received)};
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

Messages::Messages(Communicator& ranks, std::span<const Path> paths, const std::string& name)
    : rank_(ranks.rank()) {
  for (const Path& path : paths) {
    const int ends[] = {path.from, path.to};
    if (path.from == rank_ || path.to == rank_)
      paths_.push_back(
          {path, ranks.group(ends, fmt::format("{}, {} to {}", name, path.from, path.to))});
  }
}

Messages::Message Messages::pass(Path path, const Tensor& x, const std::string& name) const {
  for (const Own& own : paths_)
    if (own.path.from == path.from && own.path.to == path.to)
      return {own.group.get(), own.group->broadcast(x, 0, name)};
  raise<ConfigError>(
      "message '{}': there is no path from rank {} to rank {}; expected one of those that were "
      "given to Messages",
      name, path.from, path.to);
}

Messages::Message Messages::send(const Tensor& x, int to, const std::string& name) const {
  return pass({rank_, to}, x, name);
}

Messages::Message Messages::receive(const Tensor& x, int from, const std::string& name) const {
  return pass({from, rank_}, x, name);
}

WireCounts Messages::wire() const {
  WireCounts counts{};
  for (const Own& own : paths_) counts = added(counts, own.group->wire());
  return counts;
}

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text) {
  const Device device = Device::cpu(ranks.rank(), {.threads = 1, .separate = true});
  const auto world = static_cast<size_t>(ranks.size());
  std::vector<int64_t> sizes(world);
  sizes[static_cast<size_t>(ranks.rank())] = std::ssize(text);
  const Tensor lengths = Tensor::from(sizes, {ranks.size()}, device);
  ranks.wait(ranks.all_reduce(lengths, "lengths of texts"));
  sizes = lengths.to_host<int64_t>();
  const int64_t longest = *std::ranges::max_element(sizes);
  constexpr int64_t most = int64_t{1} << 40;
  if (*std::ranges::min_element(sizes) < 0 || longest > most ||
      sizes[static_cast<size_t>(ranks.rank())] != std::ssize(text))
    raise<CommError>(
        "texts of the ranks: rank {}: expected {} bytes of its own, and of each rank at most {}, "
        "got {} and {}; a message was damaged",
        ranks.rank(), text.size(), most, sizes[static_cast<size_t>(ranks.rank())], longest);

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
