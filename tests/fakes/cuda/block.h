#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/cuda/fiber.h"
#include "tests/fakes/cuda/tensor_map.h"

// A block of CUDA threads on one thread of the system: a fiber per CUDA thread, run by turns, warp
// by warp. What the programming model leaves open (who runs first) can be shuffled by a seed; what
// it forbids ends the process with the kernel, the block and the thread.
namespace zg::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

inline constexpr unsigned warp_lanes = 32, warpgroup_threads = 128, named_barriers = 16;
inline constexpr uint32_t every_lane = 0xffffffffu;

struct Block;

/// cp.async under way: it lands when its thread waits for its group, not before.
struct PendingCopy {
  void* to;
  const void* from;
  unsigned bytes, zeros, group;
};

/// A thread's part of a product of its group (wgmma), made when the group waits for its commit.
struct PendingProduct {
  float* d;
  int columns;
  bool from_registers, is_bf16;
  uint32_t a[4];
  uint64_t described_a, b;
  unsigned commit;
  std::vector<float> before;  ///< contents of d before the first product that accumulates into it
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
  unsigned commits = 0;
  size_t products_to_finish = 0;
};

/// Where threads meet. Two places for ThreadSanitizer, by turns: a fast thread's next arrival must
/// not be seen at this meeting.
struct Meeting {
  unsigned arrived = 0, generation = 0;
  const char* what = "";
  char places[2] = {};
  void* place() { return &places[generation & 1]; }
};

struct Warp {
  Meeting meetings[warp_lanes];  // by the mask's lowest lane
  uint32_t arrived[warp_lanes] = {};
  uint32_t ready = 0, live = 0;
  void* published[warp_lanes] = {};
};

/// 128 threads that multiply together (wgmma).
struct Group {
  Meeting meeting;
  void* published[warpgroup_threads] = {};
};

struct Block {
  const char* kernel = "";
  Index index;
  Extent threads_extent, grid;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Group> groups;
  Meeting barriers[named_barriers];
  unsigned live = 0;
  uint64_t random = 0;  // 0: threads run in order
  uint64_t spins = 0;
  std::vector<std::byte> memory;
  std::byte* shared = nullptr;  // dynamic shared memory
  size_t shared_bytes = 0;
  std::vector<PendingBox> boxes;
  std::function<void()> body;
  char end = 0;  // a place: the end of a block
};

extern constinit thread_local Thread* current;  ///< null outside kernels

[[noreturn]] void die(const std::string& what);

/// __syncthreads() is barrier 0 of all threads that have not returned.
void block_barrier();
/// bar.sync id, count.
void named_barrier(unsigned id, unsigned count);
/// A warp operation: each lane of `mask` publishes what it brings, the last one to arrive runs
/// `act` on what all published. One rendezvous.
void warp_meeting(uint32_t mask, const char* what, void* mine,
                  void (*act)(void* const* published, uint32_t mask));
/// The same for the 128 threads of a warp group.
void group_meeting(const char* what, void* mine, void (*act)(void* const* published));
/// A step of a busy wait: the others run first.
void spin();
/// Copies of committed groups land, but for those of the newest `newer_groups`.
void finish_copies(unsigned newer_groups);

/// A seed that shuffles the order of threads; 0: none.
void set_schedule(uint64_t seed);

void run_grid(const char* kernel, Extent grid, Extent block, size_t shared_bytes,
              const std::function<void()>& body);

}  // namespace zg::emulator
