#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/cuda/fiber.h"
#include "tests/fakes/cuda/hopper.h"
#include "tests/fakes/cuda/tensor_map.h"

// The emulator of CUDA kernels. It runs a block on one system thread, with one fiber for each CUDA
// thread; the fibers take turns, warp by warp. A seed (set_schedule(), ZG_EMULATOR_SEED) shuffles
// the order of threads and of blocks, which the programming model leaves open, and the first blocks
// of a grid run two at a time, in turns. If a kernel does
// what the programming model forbids, the process ends with a message that names the kernel, the
// block and the thread.
namespace zg::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Extent {
  unsigned x, y, z;
  constexpr Extent(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline constexpr unsigned warp_lanes = 32, warpgroup_threads = 128, named_barriers = 16;
inline constexpr uint32_t every_lane = 0xffffffffu;

struct Block;

/// A pending cp.async. The bytes are copied when the thread waits for the copy's group, not before.
struct PendingCopy {
  void* to;
  const void* from;
  unsigned bytes, zeros, group;
};

/// One thread's share of a pending wgmma. It is computed when the warpgroup waits for it; with a
/// seed perhaps when it is committed.
struct PendingProduct {
  uint32_t* d;
  ProductOperands operands;
  unsigned fences, commit;
  bool done = false;
};

/// Registers that pending products use, and the values that the products see there.
struct HeldRegisters {
  uint32_t* start;
  std::vector<uint32_t> values;
  unsigned products;
};

/// Registers that a wgmma.fence has ordered, and their contents then.
struct FencedRegisters {
  const uint32_t* start;
  std::vector<uint32_t> values;
};

/// An mbarrier, the thread that initialised it, and whether that thread's fence followed.
struct KnownBarrier {
  const void* barrier;
  unsigned thread;
  bool fenced;
};

/// One CUDA thread.
struct Thread {
  enum class State : uint8_t { ready, waiting, done };
  Block* block = nullptr;
  Index index;
  unsigned flat = 0, lane = 0, warp = 0;
  State state = State::ready;
  const char* waits_for = "";
  std::unique_ptr<Fiber> fiber;
  std::vector<PendingCopy> copies;
  unsigned copy_group = 0;
  std::vector<PendingProduct> products;
  std::vector<HeldRegisters> held;
  std::vector<FencedRegisters> fenced;
  unsigned fences = 0, commits = 0;
  size_t products_to_finish = 0;
};

/// A point where some threads wait for each other. ThreadSanitizer sees each use as a release and
/// an acquire of an address. Two addresses alternate, so that an early arrival at the next use is
/// not taken for one at this use.
struct Rendezvous {
  unsigned arrived = 0, generation = 0;
  const char* what = "";
  char places[2] = {};
  void* place() { return &places[generation & 1]; }
};

struct Warp {
  Rendezvous rendezvous_of_mask[warp_lanes];  // by the mask's lowest lane
  uint32_t arrived[warp_lanes] = {};
  uint32_t ready = 0, live = 0;
  void* published[warp_lanes] = {};
};

/// The 128 threads of a wgmma.
struct Warpgroup {
  Rendezvous rendezvous;
  unsigned registers = 0;  ///< per thread
  void* published[warpgroup_threads] = {};
};

struct Block {
  const char* kernel = "";
  Index index;
  Extent threads_extent, grid;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> groups;
  Rendezvous barriers[named_barriers];
  unsigned live = 0;
  uint64_t random = 0;  // 0: threads run in order
  uint64_t spins = 0;
  bool trapped = false;
  std::vector<std::byte> memory;
  std::byte* shared = nullptr;  // dynamic shared memory
  size_t shared_bytes = 0;
  std::vector<PendingBox> boxes;
  std::vector<KnownBarrier> barriers_in_memory;
  std::vector<std::byte> async_view;  ///< shared memory as TMA and wgmma see it; empty: not needed
  unsigned registers = 0, free_registers = 0;  ///< of a thread at its start; of no warpgroup
  std::function<void()> body;
  char end = 0;  // an address for ThreadSanitizer: the end of the block
};

extern constinit thread_local Thread* current;  ///< null outside kernels

/// Ends the process. The message names thread, block and kernel, and the seed.
[[noreturn]] void die(const std::string& what);

/// __syncthreads() is barrier 0 of all threads that have not returned.
void block_barrier();
/// bar.sync id, count.
void named_barrier(unsigned id, unsigned count);
/// A warp operation. Each lane of `mask` passes a pointer to its operands; the last lane to arrive
/// calls `act` with the pointers of all lanes, and then all lanes continue.
void warp_rendezvous(uint32_t mask, const char* what, void* mine,
                     void (*act)(void* const* published, uint32_t mask));
/// The same for the 128 threads of a warpgroup.
void warpgroup_rendezvous(const char* what, void* mine, void (*act)(void* const* published));
/// Waits until a thread of the block calls wake_all(what): the same pointer.
void wait_until_woken(const char* what);
void wake_all(const char* what);
/// One iteration of a busy wait: the other threads run first. It ends the process if the wait goes
/// on for too long; yield() does not.
void spin();
void yield();
/// __trap(): ends the kernel.
[[noreturn]] void trap();
/// Performs the thread's copies of all committed groups except the newest `newer_groups`.
void finish_copies(unsigned newer_groups);

/// With a seed: true once in so many calls. Without one: false.
bool by_chance(unsigned calls);

/// Sets the seed that shuffles the order of threads and blocks; 0: that of the environment, with
/// which the order is the usual one if it is 0 too.
void set_schedule(uint64_t seed);

/// False: the kernel has executed __trap(), and some of its blocks have not run. `registers`: of a
/// thread at its start; 0: the most that the block allows.
bool run_grid(const char* kernel, Extent grid, Extent block, size_t shared_bytes,
              const std::function<void()>& body, int registers = 0);

}  // namespace zg::emulator
