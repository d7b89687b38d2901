#include "tests/fakes/cuda/block.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "tests/fakes/cuda/precision.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace zg::emulator {

constinit thread_local Thread* current = nullptr;

namespace {

constexpr size_t shared_alignment = 1024;
constexpr unsigned most_threads = 1024;
constexpr size_t most_shared = 227 << 10;  // per block on sm_90
constexpr uint64_t most_spins = 10'000'000;
constexpr unsigned registers_of_block = 65536, most_registers = 256;  // per block, per thread

std::atomic<uint64_t> schedule_seed{0};

/// Two blocks that run in turns, each on a system thread of its own. Shared arrays are one for each
/// system thread, and AddressSanitizer has one of each.
struct Turns {
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  bool over[2] = {};
  int changes = 300;  ///< that are left, because each takes microseconds

  void wait_for(int mine) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return turn == mine || over[1 - mine]; });
  }
  void pass(int mine, bool ends = false) {
    {
      const std::lock_guard lock(mutex);
      if (over[1 - mine]) return;
      over[mine] = ends;
      turn = 1 - mine;
    }
    changed.notify_all();
    if (!ends) wait_for(mine);
  }
};
thread_local Turns* turns = nullptr;  // of this thread's block; null: it runs alone
thread_local int my_turn = 0;

std::string place_of(const Block& block) {
  return "block " + std::to_string(block.index.x) + "," + std::to_string(block.index.y) + "," +
         std::to_string(block.index.z) + " of " + block.kernel;
}

uint64_t next_random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

/// The next thread to run after `from`: its own warp first, then the others in order.
Thread* pick(Block& block, unsigned from) {
  if (turns && next_random(block.random) % 4 == 0 && turns->changes > 0) {
    --turns->changes;
    turns->pass(my_turn);
  }
  unsigned warp = from / warp_lanes, lane = from % warp_lanes;
  const auto warps = static_cast<unsigned>(block.warps.size());
  if (block.random) {
    const uint64_t random = next_random(block.random);
    warp = static_cast<unsigned>(random >> 33) % warps;
    lane = static_cast<unsigned>(random >> 20) % warp_lanes;
  }
  for (unsigned i = 0; i < warps; ++i) {
    const unsigned at = (warp + i) % warps;
    const uint32_t ready = block.warps[at].ready;
    if (!ready) continue;
    const uint32_t later = i == 0 && lane < 31 ? ready & (every_lane << (lane + 1)) : 0u;
    const uint32_t chosen = i == 0 && later ? later : ready;
    return &block.threads[at * warp_lanes + static_cast<unsigned>(std::countr_zero(chosen))];
  }
  return nullptr;
}

[[noreturn]] void report_deadlock(const Block& block) {
  std::string message = "deadlock in " + place_of(block) + ":";
  std::vector<std::pair<std::string, unsigned>> waits;
  for (const Thread& thread : block.threads) {
    const std::string what = thread.state == Thread::State::done ? "has returned"
                             : thread.state == Thread::State::waiting
                                 ? std::string("waits at ") + thread.waits_for
                                 : "runs";
    bool counted = false;
    for (auto& [name, count] : waits)
      if (name == what) counted = ++count > 0;
    if (!counted) waits.emplace_back(what, 1);
  }
  for (const auto& [name, count] : waits)
    message += " " + std::to_string(count) + " x " + name + ";";
  message += " a barrier in divergent code, or a wrong mask or count?";
  current = nullptr;
  die(message);
}

void change_to(Thread* next) {
  Thread* const before = std::exchange(current, next);
  Fiber::change(before ? before->fiber.get() : nullptr, next ? next->fiber.get() : nullptr,
                before && before->state == Thread::State::done);
}

void sleep(const char* what) {
  Thread& thread = *current;
  Block& block = *thread.block;
  thread.state = Thread::State::waiting;
  thread.waits_for = what;
  block.warps[thread.warp].ready &= ~(1u << thread.lane);
  Thread* next = pick(block, thread.flat);
  if (!next) report_deadlock(block);
  change_to(next);
}

void wake(Thread& thread) {
  thread.state = Thread::State::ready;
  thread.block->warps[thread.warp].ready |= 1u << thread.lane;
}

void wake_waiting(Block& block, const char* what) {
  for (Thread& thread : block.threads)
    if (thread.state == Thread::State::waiting && thread.waits_for == what) wake(thread);
}

void wake_barrier(Block& block, unsigned id) {
  Rendezvous& barrier = block.barriers[id];
  barrier.arrived = 0;
  ++barrier.generation;
  wake_waiting(block, barrier.what);
}

// A waiting thread stores the address of the name of what it waits for.
const char* barrier_name(unsigned id) {
  static const char* const names[named_barriers] = {
      "__syncthreads", "barrier 1",  "barrier 2",  "barrier 3", "barrier 4",  "barrier 5",
      "barrier 6",     "barrier 7",  "barrier 8",  "barrier 9", "barrier 10", "barrier 11",
      "barrier 12",    "barrier 13", "barrier 14", "barrier 15"};
  return names[id];
}

void arrive_at(unsigned id, unsigned expected) {
  Block& block = *current->block;
  Rendezvous& barrier = block.barriers[id];
  barrier.what = barrier_name(id);
  void* const place = barrier.place();
  release(place);
  if (++barrier.arrived == expected)
    wake_barrier(block, id);
  else
    sleep(barrier.what);
  acquire(place);
}

void write_box(const PendingCopy& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(static_cast<std::byte*>(copy.to) + copy.bytes, 0, copy.zeros);
}

void thread_main() {
  Fiber::entered();
  Thread& thread = *current;
  Block& block = *thread.block;
  acquire(&block);
  block.body();
  for (const PendingCopy& copy : thread.copies) write_box(copy);
  release(&block.end);
  thread.state = Thread::State::done;
  Warp& warp = block.warps[thread.warp];
  warp.ready &= ~(1u << thread.lane);
  warp.live &= ~(1u << thread.lane);
  --block.live;
  // Threads that have returned count as arrived, as on a GPU.
  if (block.live > 0 && block.barriers[0].arrived == block.live) wake_barrier(block, 0);
  if (block.live == 0) {
    change_to(nullptr);
  } else {
    Thread* next = pick(block, thread.flat);
    if (!next) report_deadlock(block);
    change_to(next);
  }
  std::abort();  // not reached
}

void start_threads(Block& block) {
  const Extent& extent = block.threads_extent;
  block.live = static_cast<unsigned>(block.threads.size());
  for (Warp& warp : block.warps) warp.ready = warp.live = 0;
  for (unsigned i = 0; i < block.live; ++i) {
    Thread& thread = block.threads[i];
    thread.block = &block;
    thread.flat = i;
    thread.lane = i % warp_lanes;
    thread.warp = i / warp_lanes;
    thread.index = {i % extent.x, i / extent.x % extent.y, i / (extent.x * extent.y)};
    thread.state = Thread::State::ready;
    thread.copies.clear();
    thread.copy_group = 0;
    thread.products.clear();
    thread.held.clear();
    thread.fenced.clear();
    thread.fences = thread.commits = 0;
    if (!thread.fiber) thread.fiber = std::make_unique<Fiber>();
    thread.fiber->prepare(thread_main);
    block.warps[thread.warp].ready |= 1u << thread.lane;
    block.warps[thread.warp].live |= 1u << thread.lane;
  }
}

/// 0, 1, 2, ..., shuffled by a seed.
std::vector<uint64_t> order_of_blocks(uint64_t seed, uint64_t blocks) {
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t i = blocks; seed && i > 1; --i) std::swap(order[i - 1], order[mixed(seed, i) % i]);
  return order;
}

void run_block(Block& block) {
  start_threads(block);
  // Initial shared memory is undefined: fill it with NaN of every float format.
  if (block.shared_bytes) std::memset(block.shared, 0xff, block.shared_bytes);
  block.spins = 0;
  block.boxes.clear();
  block.barriers_in_memory.clear();
  block.async_view.clear();
  for (Warpgroup& group : block.groups) group.registers = block.registers;
  block.free_registers = 0;
  release(&block);
  change_to(pick(block, block.live - 1));
  acquire(&block.end);
}

}  // namespace

void die(const std::string& what) {
  std::string message = "emulator: " + what;
  if (current)
    message += " [thread " + std::to_string(current->flat) + ", " + place_of(*current->block) + "]";
  message += " [ZG_EMULATOR_SEED=" + std::to_string(environment_seed());
  if (schedule_seed) message += ", schedule " + std::to_string(schedule_seed);
  message += "]";
  std::fprintf(stderr, "%s\n", message.c_str());
  std::abort();
}

void block_barrier() { arrive_at(0, current->block->live); }

void named_barrier(unsigned id, unsigned count) {
  if (id >= named_barriers || count == 0 || count % warp_lanes != 0)
    die("barrier " + std::to_string(id) + " of " + std::to_string(count) +
        " threads; expected an id below 16 and whole warps");
  arrive_at(id, count);
}

void warp_rendezvous(uint32_t mask, const char* what, void* mine,
                     void (*act)(void* const*, uint32_t)) {
  Thread& thread = *current;
  Warp& warp = thread.block->warps[thread.warp];
  if (!(mask >> thread.lane & 1u))
    die(std::string(what) + ": the mask leaves out the lane that calls it");
  if (mask & ~warp.live)
    die(std::string(what) + ": the mask names lanes that do not exist or have returned");
  const auto slot = static_cast<unsigned>(std::countr_zero(mask));
  Rendezvous& rendezvous = warp.rendezvous_of_mask[slot];
  uint32_t& arrived = warp.arrived[slot];
  if (!arrived)
    rendezvous.what = what;
  else if (std::strcmp(rendezvous.what, what) != 0)
    die("lanes of a warp meet in different operations: " + std::string(rendezvous.what) + " and " +
        what);
  void* const place = rendezvous.place();
  release(place);
  warp.published[thread.lane] = mine;
  arrived |= 1u << thread.lane;
  if (arrived == mask) {
    acquire(place);
    if (act) act(warp.published, mask);
    release(place);
    arrived = 0;
    ++rendezvous.generation;
    for (uint32_t rest = mask & ~(1u << thread.lane); rest; rest &= rest - 1)
      wake(thread.block
               ->threads[thread.warp * warp_lanes + static_cast<unsigned>(std::countr_zero(rest))]);
  } else {
    sleep(what);
  }
  acquire(place);
}

void warpgroup_rendezvous(const char* what, void* mine, void (*act)(void* const*)) {
  Thread& thread = *current;
  Block& block = *thread.block;
  if (block.groups.empty()) die(std::string(what) + ": expected whole groups of 128 threads");
  Warpgroup& group = block.groups[thread.flat / warpgroup_threads];
  void* const place = group.rendezvous.place();
  release(place);
  group.published[thread.flat % warpgroup_threads] = mine;
  if (++group.rendezvous.arrived == warpgroup_threads) {
    acquire(place);
    act(group.published);
    release(place);
    group.rendezvous.arrived = 0;
    ++group.rendezvous.generation;
    const unsigned first = thread.flat / warpgroup_threads * warpgroup_threads;
    for (unsigned i = first; i < first + warpgroup_threads; ++i)
      if (i != thread.flat) wake(block.threads[i]);
  } else {
    sleep(what);
  }
  acquire(place);
}

void wait_until_woken(const char* what) { sleep(what); }
void wake_all(const char* what) { wake_waiting(*current->block, what); }

void yield() {
  Thread& thread = *current;
  Block& block = *thread.block;
  // Start from another thread each time. Otherwise spinning warps starve the one they wait for.
  // The hash keeps some threads that all wait from taking turns for ever.
  const uint64_t hash = uint64_t(++block.spins) * 0x9e3779b97f4a7c15u >> 33;
  const auto start = static_cast<unsigned>(hash % block.threads.size());
  Warp& warp = block.warps[thread.warp];
  warp.ready &= ~(1u << thread.lane);
  Thread* next = pick(block, start);
  warp.ready |= 1u << thread.lane;
  if (next) change_to(next);
}

void spin() {
  const Block& block = *current->block;
  unsigned ready = 0;
  for (const Warp& warp : block.warps) ready += static_cast<unsigned>(std::popcount(warp.ready));
  if (ready == 1 || block.spins > most_spins)
    die("a wait that can never end: no other thread can run, or none arrives");
  yield();
}

void trap() {
  Thread& thread = *current;
  thread.block->trapped = true;
  thread.state = Thread::State::done;
  release(&thread.block->end);
  change_to(nullptr);
  std::abort();  // not reached
}

void finish_copies(unsigned newer_groups) {
  Thread& thread = *current;
  size_t kept = 0;
  for (const PendingCopy& copy : thread.copies) {
    if (copy.group + newer_groups < thread.copy_group)
      write_box(copy);
    else
      thread.copies[kept++] = copy;
  }
  thread.copies.resize(kept);
}

void set_schedule(uint64_t seed) { schedule_seed = seed; }

bool by_chance(unsigned calls) {
  const TsanIgnored ignored;
  uint64_t& random = current->block->random;
  return random && (next_random(random) >> 30) % calls == 0;
}

bool run_grid(const char* kernel, Extent grid, Extent extent, size_t shared_bytes,
              const std::function<void()>& body, int registers) {
#ifdef __SANITIZE_ADDRESS__
  static std::mutex one_at_a_time;  // __shared__ arrays are plain statics here
  const std::lock_guard lock(one_at_a_time);
#endif
  const uint64_t threads = uint64_t{extent.x} * extent.y * extent.z;
  if (current) die("a kernel launches a kernel");
  if (threads == 0 || threads > most_threads)
    die(std::string(kernel) + ": a block of " + std::to_string(threads) +
        " threads; expected 1 to " + std::to_string(most_threads));
  if (shared_bytes > most_shared)
    die(std::string(kernel) + ": " + std::to_string(shared_bytes) +
        " bytes of shared memory; expected at most " + std::to_string(most_shared));
  const auto prepare = [&](Block& block) {
    block.kernel = kernel;
    block.grid = grid;
    block.threads_extent = extent;
    block.threads.resize(threads);
    block.warps.resize((threads + warp_lanes - 1) / warp_lanes);
    if (threads % warpgroup_threads == 0) block.groups.resize(threads / warpgroup_threads);
    block.memory.resize(shared_bytes + 2 * shared_alignment);
    const auto address = reinterpret_cast<uintptr_t>(block.memory.data());
    block.shared = reinterpret_cast<std::byte*>((address + shared_alignment - 1) /
                                                shared_alignment * shared_alignment);
    block.shared_bytes = shared_bytes;
    // As nvcc bounds registers for __launch_bounds__(threads), which setmaxnreg needs.
    const auto bound = registers_of_block / static_cast<unsigned>(threads) / 8 * 8;
    block.registers =
        registers > 0 ? static_cast<unsigned>(registers) : std::min(bound, most_registers);
    block.body = body;
  };
  Block block;
  prepare(block);
#ifdef __SANITIZE_ADDRESS__
  std::byte* const behind = block.shared + shared_bytes;
  __asan_poison_memory_region(
      behind, static_cast<size_t>(block.memory.data() + block.memory.size() - behind));
#endif
  const uint64_t seed = schedule_seed ? schedule_seed.load() : environment_seed();
  const std::vector<uint64_t> order = order_of_blocks(seed, uint64_t{grid.x} * grid.y * grid.z);
  const auto run = [&](Block& one, uint64_t i) {
    one.index = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                 static_cast<unsigned>(i / (uint64_t{grid.x} * grid.y))};
    one.random = seed ? mixed(seed, i) | 1 : 0;
    run_block(one);
  };
  size_t next = 0;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  constexpr size_t most_in_turns = 4;
  for (; seed && next + 1 < order.size() && next < most_in_turns && !block.trapped; next += 2) {
    Turns pair;
    Block other;
    prepare(other);
    const auto run_in_turns = [&](Block& one, int mine) {
      turns = &pair;
      my_turn = mine;
      pair.wait_for(mine);
      run(one, order[next + static_cast<size_t>(mine)]);
      pair.pass(mine, /*ends=*/true);
      turns = nullptr;
    };
    std::thread second([&] { run_in_turns(other, 1); });
    run_in_turns(block, 0);
    second.join();
    block.trapped = block.trapped || other.trapped;
  }
#endif
  for (; next < order.size() && !block.trapped; ++next) run(block, order[next]);
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(block.memory.data(), block.memory.size());
#endif
  return !block.trapped;
}

}  // namespace zg::emulator
