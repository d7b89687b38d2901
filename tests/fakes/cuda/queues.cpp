#include "tests/fakes/cuda/queues.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "tests/fakes/cuda/launch.h"

namespace zg::emulator {
namespace {

using Connection = std::deque<std::pair<uint64_t, EmulatedStream*>>;
using Lock = std::unique_lock<std::mutex>;
constexpr auto pause = std::chrono::microseconds(50);

/// All streams of the process and the connections of its devices.
struct Queues {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<EmulatedStream*> streams;
  std::map<int, std::vector<Connection>> connections;  // by device
  std::map<int, size_t> made;                          // streams, by device
  uint64_t tickets = 0, random = 0;
  std::string serialised;        // the driver call under way
  std::set<std::string> awaits;  // the collectives that it waits for
};

Queues& all() {
  static Queues& queues = *new Queues;  // threads may outlive static objects
  return queues;
}

thread_local bool working = false;  // this thread runs queued work

size_t connection_count() {
  static const size_t count = [] {
    const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int wanted = text ? std::atoi(text) : 0;
    return static_cast<size_t>(wanted >= 1 && wanted <= 32 ? wanted : 8);
  }();
  return count;
}

bool is_live(const Work& work) {
  return work.collective && !(work.collective->aborted && *work.collective->aborted);
}

const Work* find(const EmulatedStream& stream, uint64_t ticket) {
  for (const Work& work : stream.work)
    if (work.ticket == ticket) return &work;
  return nullptr;
}

/// A collective that is behind another one on a connection cannot begin before that one ends, and
/// none ends before all its ranks have begun. A cycle of such pairs is a deadlock.
void check_connections() {
  std::map<std::string, std::set<std::string>> behind;
  for (const auto& [device, connections] : all().connections)
    for (const Connection& connection : connections) {
      std::vector<const Work*> earlier;
      for (const auto& [ticket, stream] : connection) {
        const Work* const work = find(*stream, ticket);
        if (!work || !is_live(*work)) continue;
        for (const Work* other : earlier)
          if (other->collective->key != work->collective->key)
            behind[work->collective->key].insert(other->collective->key);
        earlier.push_back(work);
      }
    }
  for (const auto& [first, unused] : behind) {
    std::set<std::string> seen;
    std::vector<std::string> next(behind[first].begin(), behind[first].end());
    while (!next.empty()) {
      const std::string key = next.back();
      next.pop_back();
      if (key == first)
        die("a deadlock: collectives of streams that share a hardware connection wait for each "
            "other, among them " +
            first + "; CUDA_DEVICE_MAX_CONNECTIONS is " + std::to_string(connection_count()));
      if (!seen.insert(key).second) continue;
      if (const auto found = behind.find(key); found != behind.end())
        next.insert(next.end(), found->second.begin(), found->second.end());
    }
  }
}

enum class Step { ran, idle, later };

/// Runs the first work of the stream if it is its turn on the connection. `by_waiter`: the caller
/// waits for this stream, so that it may also run a collective.
Step step(EmulatedStream& stream, Lock& lock, std::optional<Access>& access, bool by_waiter) {
  if (stream.work.empty()) return Step::idle;
  if (stream.busy || stream.connection->front().second != &stream) return Step::later;
  Work& work = stream.work.front();
  if (work.collective && !by_waiter) return Step::later;
  stream.busy = true;
  lock.unlock();
  const bool was_working = std::exchange(working, true);
  const bool runs = !work.ready || work.ready();
  if (runs) {
    if (!access) access.emplace();
    work.action();
  }
  working = was_working;
  lock.lock();
  stream.busy = false;
  if (!runs) return Step::later;
  stream.connection->pop_front();
  stream.work.pop_front();
  all().changed.notify_all();
  return Step::ran;
}

uint64_t next_random() {
  uint64_t& state = all().random;
  if (state == 0) state = queue_seed() * 0x9E3779B97F4A7C15u | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state >> 11;
}

/// With a seed: some work of some streams runs now.
void stir(Lock& lock) {
  if (queue_seed() == 0 || working) return;
  std::optional<Access> access;
  for (uint64_t turns = next_random() % 4; turns > 0 && !all().streams.empty(); --turns)
    step(*all().streams[next_random() % all().streams.size()], lock, access, false);
}

/// The launch of a collective waits for a driver call that is serialised. Other launches may too;
/// here they do not, so that the launch which completes the deadlock is always reached.
void await_driver(Lock& lock, const Collective& launched) {
  while (!all().serialised.empty()) {
    if (all().awaits.contains(launched.key))
      die("a deadlock: " + all().serialised + " waits until collective " + launched.key +
          " is done, and the launch of that collective on another device waits for " +
          all().serialised);
    all().changed.wait_for(lock, pause);
  }
}

}  // namespace

uint64_t queue_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("ZG_EMULATOR_SEED");
    return text ? std::strtoull(text, nullptr, 10) : 0;
  }();
  return seed;
}

EmulatedStream* make_stream(int device) {
  const Lock lock(all().mutex);
  std::vector<Connection>& connections = all().connections[device];
  connections.resize(connection_count());
  auto* const stream = new EmulatedStream;
  stream->device = device;
  stream->connection = &connections[all().made[device]++ % connections.size()];
  all().streams.push_back(stream);
  return stream;
}

void destroy_stream(EmulatedStream* stream) {
  drain(*stream, newest_ticket(*stream));
  const Lock lock(all().mutex);
  std::erase(all().streams, stream);
  delete stream;
}

void queue(EmulatedStream* stream, Work work) {
  Lock lock(all().mutex);
  const bool is_collective = work.collective != nullptr;
  if (is_collective) await_driver(lock, *work.collective);
  stir(lock);
  work.ticket = stream->newest = ++all().tickets;
  work.launcher = std::this_thread::get_id();
  stream->connection->emplace_back(work.ticket, stream);
  stream->work.push_back(std::move(work));
  if (is_collective) check_connections();
}

uint64_t newest_ticket(EmulatedStream& stream) {
  const Lock lock(all().mutex);
  return stream.newest;
}

bool advance(EmulatedStream& stream, uint64_t ticket) {
  std::optional<Access> access;
  Lock lock(all().mutex);
  stir(lock);
  while (!stream.work.empty() && stream.work.front().ticket <= ticket) {
    EmulatedStream& first = *stream.connection->front().second;
    if (first.busy) {
      if (working) return false;  // perhaps this thread itself is what keeps it busy
      access.reset();
      all().changed.wait_for(lock, pause);
    } else if (step(first, lock, access, &first == &stream) == Step::later) {
      return false;
    }
  }
  return true;
}

void drain(EmulatedStream& stream, uint64_t ticket) {
  while (!advance(stream, ticket)) std::this_thread::sleep_for(pause);
}

SerialisedCall::SerialisedCall(const char* name, int device) {
  Lock lock(all().mutex);
  while (!all().serialised.empty()) all().changed.wait_for(lock, pause);
  all().serialised = name;
  do {
    all().awaits.clear();
    for (const EmulatedStream* stream : all().streams)
      for (const Work& work : stream->work)
        if ((device == every_device || device == stream->device) && is_live(work)) {
          const std::string& key = work.collective->key;
          if (work.launcher == std::this_thread::get_id())
            die("a deadlock: " + all().serialised + " waits until collective " + key +
                " is done, which this thread has launched; launches of that collective on other "
                "devices wait for " +
                all().serialised);
          all().awaits.insert(key);
        }
    if (!all().awaits.empty()) all().changed.wait_for(lock, pause);
  } while (!all().awaits.empty());
}

SerialisedCall::~SerialisedCall() {
  const Lock lock(all().mutex);
  all().serialised.clear();
  all().changed.notify_all();
}

int waiting_calls() {
  const Lock lock(all().mutex);
  return all().awaits.empty() ? 0 : 1;
}

}  // namespace zg::emulator
