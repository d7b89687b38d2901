#include "tests/fakes/nccl/nccl.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/cuda/launch.h"
#include "tests/fakes/cuda/queues.h"
#include "zerograd/runtime/cuda/nccl.h"
#include "zerograd/runtime/dtype.h"

// A test double of NCCL for ranks that are threads or processes of one host. Messages are files in
// a folder that the id names. Like NCCL it is ordered by streams, matches only calls in a group or
// on all ranks, otherwise waits forever, and adds floats in its own order.
namespace zg::cuda {

struct Exchange;
struct NcclCommunicator {
  std::filesystem::path folder;
  std::string device;
  int index = 0;  // of the device
  int rank = 0, size = 0;
  std::atomic<NcclResult> state{NcclResult::success};
  bool joined = false;
  /// Enqueued on the stream once the caller has seen that the call is no longer in progress.
  cudaStream_t stream = nullptr;
  std::shared_ptr<Exchange> pending;
  std::vector<int64_t> sent, received;  // messages, by peer
  int64_t calls = 0;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  NcclCommunicator* ended_before = nullptr;
};

namespace {

using emulator::die;
std::atomic<int64_t> operations{0};
std::atomic<bool> held_may_begin{false};

void expect(bool holds, const std::string& what) {
  if (!holds) die("NCCL: " + what);
}

size_t size_of(NcclType type) {
  switch (type) {
    case NcclType::u8:
      return 1;
    case NcclType::f16:
    case NcclType::bf16:
      return 2;
    case NcclType::f32:
      return 4;
    case NcclType::i64:
      return 8;
  }
  die("NCCL: a type that it does not have");
}

template <class T>
void add_as(std::vector<std::byte>& sum, const std::vector<std::byte>& piece) {
  for (size_t at = 0; at < sum.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, &sum[at], sizeof a);
    std::memcpy(&b, &piece[at], sizeof b);
    if constexpr (sizeof(T) == 8)
      a += b;
    else
      a = T(static_cast<float>(a) + static_cast<float>(b));
    std::memcpy(&sum[at], &a, sizeof a);
  }
}

void add(NcclType type, std::vector<std::byte>& sum, const std::vector<std::byte>& piece) {
  if (type == NcclType::f32) return add_as<float>(sum, piece);
  if (type == NcclType::bf16) return add_as<bf16>(sum, piece);
  if (type == NcclType::f16) return add_as<f16>(sum, piece);
  expect(type == NcclType::i64, "a sum of bytes");
  add_as<int64_t>(sum, piece);
}

/// One rank's work in one call: chunks sent to peers, chunks received, and their destinations. The
/// sum for a rank begins with the data of the next rank and continues in rank order.
struct Operation {
  std::string call;
  NcclType type;
  size_t count;
  struct Piece {
    int peer;
    std::byte* place;  // destination of a received chunk; null: it is added to a sum
  };
  std::vector<Piece> out, in;
  std::byte* sum = nullptr;  // destination of the sum, and this rank's own term
  const std::byte* own = nullptr;
  size_t bytes() const { return count * size_of(type); }
};

}  // namespace

/// The calls of one group in flight.
struct Exchange {
  NcclCommunicator* comm;
  std::shared_ptr<std::atomic<bool>> aborted;
  std::vector<Operation> operations;
  std::string fault;
  std::vector<std::filesystem::path> outgoing;
  struct Expected {
    std::filesystem::path file;
    size_t operation;
    int peer;
    std::byte* place;
    std::optional<std::vector<std::byte>> data = {};
  };
  std::vector<Expected> expected;

  std::filesystem::path file(int from, int to, int64_t number) const {
    return comm->folder /
           (std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number));
  }
  static std::string header(const Operation& o) {
    return o.call + " " + std::to_string(static_cast<int>(o.type)) + " " + std::to_string(o.count) +
           "\n";
  }

  bool stalls() const { return fault == "stall" || fault == "fail"; }
  bool may_begin() const { return fault != "hold" || held_may_begin || *aborted; }

  void begin() {
    if (fault == "fail") comm->state = NcclResult::system_error;
    if (*aborted || stalls()) return;
    for (size_t i = 0; i < operations.size(); ++i) {
      const Operation& o = operations[i];
      for (const auto& [peer, place] : o.out) {
        outgoing.push_back(file(comm->rank, peer, comm->sent[static_cast<size_t>(peer)]++));
        const std::string unfinished = outgoing.back().string() + ".part";
        std::ofstream stream(unfinished, std::ios::binary);
        stream << header(o);
        stream.write(reinterpret_cast<const char*>(place), static_cast<std::streamsize>(o.bytes()));
        stream.close();
        std::filesystem::rename(unfinished, outgoing.back());
      }
      for (const auto& [peer, place] : o.in)
        expected.push_back(
            {file(peer, comm->rank, comm->received[static_cast<size_t>(peer)]++), i, peer, place});
    }
  }

  void receive(Expected& e) {
    std::ifstream stream(e.file, std::ios::binary);
    if (!stream) return;
    const Operation& o = operations[e.operation];
    std::string line;
    std::getline(stream, line);
    if (line + "\n" != header(o)) comm->state = NcclResult::invalid_usage;
    e.data.emplace(o.bytes());
    stream.read(reinterpret_cast<char*>(e.data->data()), static_cast<std::streamsize>(o.bytes()));
    std::filesystem::remove(e.file);
  }

  /// Whether all sends were received and all expected data was read. Destinations are not yet
  /// written.
  bool has_arrived() {
    if (*aborted) return true;
    bool all = !stalls();
    for (Expected& e : expected) {
      if (!e.data) receive(e);
      all = all && e.data;
    }
    // A receiver removes the file, so then the send is complete.
    for (const auto& sent : outgoing) all = all && !std::filesystem::exists(sent);
    return all && comm->state == NcclResult::success;
  }

  void finish() {
    for (size_t i = 0; i < operations.size() && !*aborted; ++i) finish(i);
  }

  void finish(size_t index) {
    const Operation& o = operations[index];
    std::vector<std::vector<std::byte>> pieces(static_cast<size_t>(comm->size));
    for (Expected& e : expected) {
      if (e.operation != index) continue;
      if (e.place)
        std::memcpy(e.place, e.data->data(), o.bytes());
      else
        pieces[static_cast<size_t>(e.peer)] = std::move(*e.data);
    }
    if (o.sum) {
      pieces[static_cast<size_t>(comm->rank)].assign(o.own, o.own + o.bytes());
      const auto at = [&](int turn) {
        return static_cast<size_t>((comm->rank + turn) % comm->size);
      };
      std::vector<std::byte> sum = pieces[at(1)];
      for (int turn = 2; turn <= comm->size; ++turn) add(o.type, sum, pieces[at(turn)]);
      std::memcpy(o.sum, sum.data(), o.bytes());
    }
    ++zg::cuda::operations;
  }
};

namespace {

struct Group {
  int depth = 0;
  NcclComm comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Operation> operations;
};
thread_local Group group;

void check_places(const std::vector<Operation>& operations) {
  for (const Operation& o : operations)
    for (const Operation& other : operations)
      for (const auto& in : o.in)
        for (const auto& out : other.out)
          expect(!in.place || in.place + o.bytes() <= out.place ||
                     out.place + other.bytes() <= in.place,
                 "what is received overlaps what is sent");
}

/// The planted fault of this rank, if it is due now.
std::string fault_of(NcclCommunicator& comm) {
  const char* text = std::getenv("ZG_EMULATOR_NCCL");
  int rank = 0;
  long long call = 0;
  char fault[16] = {};
  if (!text || std::sscanf(text, "%d:%lld:%15s", &rank, &call, fault) != 3) return {};
  return rank == comm.rank && comm.calls == call ? fault : "";
}

NcclResult close_group() {
  if (!group.comm) return NcclResult::success;
  NcclCommunicator& comm = *group.comm;
  expect(!comm.pending && comm.state == NcclResult::success,
         "a call before the one before is known to be queued");
  check_places(group.operations);
  ++comm.calls;
  const std::string fault = fault_of(comm);
  if (fault == "exit") std::_Exit(9);
  while (fault == "block") std::this_thread::sleep_for(std::chrono::seconds(1));
  const auto exchange =
      std::make_shared<Exchange>(Exchange{&comm, comm.aborted, std::move(group.operations), fault});
  comm.stream = group.stream;
  comm.pending = exchange;
  if (fault == "error") comm.state = NcclResult::system_error;
  group = {};
  return NcclResult::in_progress;
}

NcclResult group_start() {
  ++group.depth;
  return NcclResult::success;
}
NcclResult group_end() {
  expect(group.depth > 0, "the end of a group that was not begun");
  return --group.depth == 0 ? close_group() : NcclResult::success;
}

NcclResult call(NcclComm comm, cudaStream_t stream, Operation operation) {
  expect(comm && comm->joined, "a call before the ranks have met");
  expect(!group.comm || (group.comm == comm && group.stream == stream),
         "a group of several communicators or streams");
  for (const auto* pieces : {&operation.in, &operation.out})
    for (const auto& piece : *pieces) {
      expect(piece.peer >= 0 && piece.peer < comm->size, "a peer that is not there");
      expect(!piece.place || emulator::is_mapped(piece.place), "memory of no device");
    }
  group.comm = comm;
  group.stream = stream;
  group.operations.push_back(std::move(operation));
  return group.depth > 0 ? NcclResult::success : close_group();
}

std::byte* bytes_at(const void* place, size_t offset = 0) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(place)) + offset;
}

NcclResult send(const void* data, size_t count, NcclType type, int peer, NcclComm comm,
                cudaStream_t stream) {
  return call(comm, stream,
              {.call = "send", .type = type, .count = count, .out = {{peer, bytes_at(data)}}});
}
NcclResult receive(void* data, size_t count, NcclType type, int peer, NcclComm comm,
                   cudaStream_t stream) {
  return call(comm, stream,
              {.call = "send", .type = type, .count = count, .in = {{peer, bytes_at(data)}}});
}

NcclResult all_gather(const void* own, void* all, size_t count, NcclType type, NcclComm comm,
                      cudaStream_t stream) {
  Operation o{.call = "all_gather", .type = type, .count = count};
  const auto place = [&](int rank) { return bytes_at(all, static_cast<size_t>(rank) * o.bytes()); };
  expect(own == place(comm->rank), "an all_gather that is not in place");
  for (int peer = 0; peer < comm->size; ++peer) {
    if (peer == comm->rank) continue;
    o.out.push_back({peer, bytes_at(own)});
    o.in.push_back({peer, place(peer)});
  }
  return call(comm, stream, std::move(o));
}

NcclResult broadcast(const void* from, void* to, size_t count, NcclType type, int root,
                     NcclComm comm, cudaStream_t stream) {
  expect(from == to, "a broadcast that is not in place");
  Operation o{.call = "broadcast", .type = type, .count = count};
  if (comm->rank != root) o.in.push_back({root, bytes_at(to)});
  for (int peer = 0; peer < comm->size && comm->rank == root; ++peer)
    if (peer != root) o.out.push_back({peer, bytes_at(from)});
  return call(comm, stream, std::move(o));
}

NcclResult all_reduce(const void* from, void* to, size_t count, NcclType type, NcclOperation,
                      NcclComm comm, cudaStream_t stream) {
  Operation o{.call = "all_reduce", .type = type, .count = count};
  for (int peer = 0; peer < comm->size; ++peer) {
    if (peer == comm->rank) continue;
    o.out.push_back({peer, bytes_at(from)});
    o.in.push_back({peer, nullptr});
  }
  o.sum = bytes_at(to);
  o.own = bytes_at(from);
  return call(comm, stream, std::move(o));
}

NcclResult reduce(const void* from, void* to, size_t count, NcclType type, NcclOperation, int root,
                  NcclComm comm, cudaStream_t stream) {
  Operation o{.call = "reduce", .type = type, .count = count};
  if (comm->rank != root) {
    o.out.push_back({root, bytes_at(from)});
    return call(comm, stream, std::move(o));
  }
  for (int peer = 0; peer < comm->size; ++peer)
    if (peer != root) o.in.push_back({peer, nullptr});
  o.sum = bytes_at(to);
  o.own = bytes_at(from);
  return call(comm, stream, std::move(o));
}

NcclResult reduce_scatter(const void* from, void* to, size_t count, NcclType type, NcclOperation,
                          NcclComm comm, cudaStream_t stream) {
  Operation o{.call = "reduce_scatter", .type = type, .count = count};
  const auto piece = [&](int rank) {
    return bytes_at(from, static_cast<size_t>(rank) * o.bytes());
  };
  for (int peer = 0; peer < comm->size; ++peer) {
    if (peer == comm->rank) continue;
    o.out.push_back({peer, piece(peer)});
    o.in.push_back({peer, nullptr});
  }
  o.sum = bytes_at(to);
  o.own = piece(comm->rank);
  return call(comm, stream, std::move(o));
}

std::filesystem::path note_of(const std::filesystem::path& folder, int rank) {
  return folder / ("rank." + std::to_string(rank));
}

NcclResult get_version(int* version) {
  *version = 22809;
  return NcclResult::success;
}

NcclResult get_unique_id(NcclId* id) {
  const char* fault = std::getenv("ZG_EMULATOR_NCCL");
  if (fault && std::strcmp(fault, "no id") == 0) return NcclResult::system_error;
  static std::atomic<int> made{0};
  const char* chosen = std::getenv("ZG_EMULATOR_NCCL_FOLDER");
  const char* root = chosen ? chosen : std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
  std::snprintf(id->bytes, sizeof id->bytes, "%s/zg-emulated-nccl-%d-%d", root,
                static_cast<int>(getpid()), made++);
  return NcclResult::success;
}

const char* get_error_string(NcclResult result) {
  return result == NcclResult::invalid_usage ? "invalid usage" : "unhandled system error";
}

NcclResult init(NcclComm* comm, int ranks, NcclId id, int rank, NcclConfig* config) {
  expect(config->size == sizeof(NcclConfig) && config->magic == 0xcafebeef &&
             config->version >= 21400 && config->blocking == 0,
         "a communicator whose calls block");
  char bus[64];
  int device = 0;
  cudaGetDevice(&device);
  cudaDeviceGetPCIBusId(bus, sizeof bus, device);
  auto made = std::make_unique<NcclCommunicator>();
  made->folder = id.bytes;
  made->device = bus;
  made->index = device;
  made->rank = rank;
  made->size = ranks;
  made->sent.assign(static_cast<size_t>(ranks), 0);
  made->received = made->sent;
  std::filesystem::create_directories(made->folder);
  std::ofstream(note_of(made->folder, rank).string() + ".part") << bus;
  std::filesystem::rename(note_of(made->folder, rank).string() + ".part",
                          note_of(made->folder, rank));
  *comm = made.release();
  return NcclResult::in_progress;
}

/// Whether every rank has joined. Two ranks on one device are rejected.
bool have_met(NcclCommunicator& comm) {
  for (int peer = 0; peer < comm.size; ++peer) {
    std::ifstream note(note_of(comm.folder, peer));
    if (!note) return false;
    const std::string device{std::istreambuf_iterator<char>(note), {}};
    if (peer != comm.rank && device == comm.device) comm.state = NcclResult::invalid_usage;
  }
  return true;
}

/// The planted fault "late": the launch waits until a driver call waits for the peers' launches, or
/// for half a second if none does.
void await_delay(NcclCommunicator& comm) {
  if (fault_of(comm) != "late") return;
  for (int i = 0; i < 500 && emulator::waiting_calls() == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

NcclResult get_async_error(NcclComm comm, NcclResult* state) {
  *state = comm->state;
  if (comm->state != NcclResult::success) return NcclResult::success;
  if (!comm->joined && !have_met(*comm)) {
    *state = NcclResult::in_progress;
  } else if (comm->joined && comm->pending) {
    const std::shared_ptr<Exchange> exchange = std::exchange(comm->pending, nullptr);
    await_delay(*comm);
    const auto collective = std::make_shared<const emulator::Collective>(emulator::Collective{
        comm->folder.filename().string() + "-" + std::to_string(comm->calls), comm->aborted});
    emulator::enqueue_collective(
        comm->stream, collective, [exchange] { return exchange->may_begin(); },
        [exchange] { exchange->begin(); });
    emulator::enqueue_collective(
        comm->stream, collective, [exchange] { return exchange->has_arrived(); },
        [exchange] { exchange->finish(); });
    *state = NcclResult::in_progress;  // and is asked again
  } else {
    comm->joined = true;
    *state = comm->state;
  }
  return NcclResult::success;
}

NcclResult abort(NcclComm comm) {
  int before = 0;  // NCCL selects its device, and then the one that was selected before
  cudaGetDevice(&before);
  cudaSetDevice(comm->index);
  cudaSetDevice(before);
  *comm->aborted = true;
  std::error_code ignored;
  std::filesystem::remove(note_of(comm->folder, comm->rank), ignored);
  bool is_last = true;
  for (int peer = 0; peer < comm->size; ++peer)
    is_last = is_last && !std::filesystem::exists(note_of(comm->folder, peer));
  if (is_last) std::filesystem::remove_all(comm->folder, ignored);
  group = {};
  static std::atomic<NcclComm> ended{nullptr};  // a thread that waits for the stream may read them
  comm->ended_before = ended.exchange(comm);
  return NcclResult::success;
}

}  // namespace
}  // namespace zg::cuda

int64_t zg::emulator::nccl_operations() { return cuda::operations; }
void zg::emulator::let_held_collectives_begin(bool begin) { cuda::held_may_begin = begin; }

const std::map<std::string, void*>& zg::emulator::nccl_symbols() {
  const auto symbol = [](auto* function) { return reinterpret_cast<void*>(function); };
  static const std::map<std::string, void*> symbols = {
      {"ncclGetVersion", symbol(cuda::get_version)},
      {"ncclGetUniqueId", symbol(cuda::get_unique_id)},
      {"ncclGetErrorString", symbol(cuda::get_error_string)},
      {"ncclCommInitRankConfig", symbol(cuda::init)},
      {"ncclCommGetAsyncError", symbol(cuda::get_async_error)},
      {"ncclCommAbort", symbol(cuda::abort)},
      {"ncclGroupStart", symbol(cuda::group_start)},
      {"ncclGroupEnd", symbol(cuda::group_end)},
      {"ncclSend", symbol(cuda::send)},
      {"ncclRecv", symbol(cuda::receive)},
      {"ncclAllGather", symbol(cuda::all_gather)},
      {"ncclBroadcast", symbol(cuda::broadcast)},
      {"ncclAllReduce", symbol(cuda::all_reduce)},
      {"ncclReduce", symbol(cuda::reduce)},
      {"ncclReduceScatter", symbol(cuda::reduce_scatter)}};
  return symbols;
}
