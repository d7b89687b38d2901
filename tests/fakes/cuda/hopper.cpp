#include "tests/fakes/cuda/hopper.h"

#include <atomic>
#include <cstring>

#include "tests/fakes/cuda/block.h"
#include "tests/fakes/cuda/tensor_map.h"

namespace zg::emulator {
namespace {

std::atomic<int64_t> copies_before_loss{-1};

/// The eight bytes of a barrier.
struct Phase {
  uint16_t arrivals, missing;  ///< arrivals per phase; arrivals still missing in the current phase
  int32_t bytes : 31;          ///< expected and not yet arrived
  uint32_t parity : 1;
};
static_assert(sizeof(Phase) == 8);

Phase read(const void* barrier) {
  const TsanIgnored ignored;
  Phase phase;
  std::memcpy(&phase, barrier, sizeof phase);
  return phase;
}

void write(void* barrier, Phase phase) {
  const TsanIgnored ignored;
  if (phase.missing == 0 && phase.bytes == 0) {
    phase.parity = phase.parity ^ 1u;
    phase.missing = phase.arrivals;
  }
  constexpr int32_t most_bytes = (1 << 20) - 1;
  if (phase.bytes > most_bytes || phase.bytes < -most_bytes)
    die("mbarrier: more than 2^20 - 1 bytes in a phase");
  std::memcpy(barrier, &phase, sizeof phase);
}

void check_barrier(const void* barrier) {
  if (reinterpret_cast<uintptr_t>(barrier) % sizeof(Phase) != 0)
    die("mbarrier: an address that is not a multiple of 8 bytes");
}

/// The barrier's entry in the block's list.
KnownBarrier& known_barrier(const void* barrier) {
  check_barrier(barrier);
  const TsanIgnored ignored;
  for (KnownBarrier& known : current->block->barriers_in_memory)
    if (known.barrier == barrier) return known;
  die("mbarrier: used before it was initialised");
}

/// Dynamic shared memory as TMA and wgmma see it.
std::vector<std::byte>& async_view() {
  Block& block = *current->block;
  // At its start a block's memory is 0xff.
  if (block.async_view.empty()) block.async_view.assign(block.shared_bytes, std::byte{0xff});
  return block.async_view;
}

/// The swizzled offset of byte `offset` of a panel: 16-byte units XOR the row, every 128 bytes.
size_t swizzled(size_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

void write_box(const PendingBox& box) {
  constexpr size_t element = 2;
  std::byte* const view = async_view().data();
  const TensorMap& map = box.map;
  const auto start = static_cast<size_t>(box.to - current->block->shared);
  size_t at = start;
  for (uint32_t w = 0; w < map.box[3]; ++w)
    for (uint32_t z = 0; z < map.box[2]; ++z)
      for (uint32_t y = 0; y < map.box[1]; ++y)
        for (uint32_t x = 0; x < map.box[0]; ++x, at += element) {
          const int64_t place[4] = {box.place[0] + int64_t{x}, box.place[1] + int64_t{y},
                                    box.place[2] + int64_t{z}, box.place[3] + int64_t{w}};
          bool inside = true;
          const std::byte* from = map.start + place[0] * static_cast<int64_t>(element);
          for (int axis = 0; axis < 4; ++axis)
            inside =
                inside && place[axis] >= 0 && place[axis] < static_cast<int64_t>(map.extents[axis]);
          for (int axis = 1; axis < 4; ++axis)
            from += place[axis] * static_cast<int64_t>(map.strides[axis - 1]);
          std::byte* const to = current->block->shared + swizzled(at);
          if (inside)
            std::memcpy(to, from, element);
          else
            std::memset(to, 0, element);
          std::memcpy(view + swizzled(at), to, element);
        }
}

/// A box has arrived, the last operation of TMA.
void finish_box(const PendingBox& box) {
  acquire(box.barrier);
  write_box(box);
  release(box.barrier);
  Phase phase = read(box.barrier);
  phase.bytes -= static_cast<int32_t>(box.bytes);
  write(box.barrier, phase);
}

/// A pending box, of this barrier unless it is null. Without a seed the first one, with a seed any.
/// Null: there is none.
PendingBox* find_box(const void* barrier) {
  const TsanIgnored ignored;
  PendingBox* chosen = nullptr;
  for (PendingBox& box : current->block->boxes)
    if ((!barrier || box.barrier == barrier) && (!chosen || by_chance(2))) chosen = &box;
  return chosen;
}

/// Takes the box out of the list.
void receive(PendingBox* chosen) {
  PendingBox box;
  {
    const TsanIgnored ignored;
    box = *chosen;
    std::vector<PendingBox>& boxes = current->block->boxes;
    boxes.erase(boxes.begin() + (chosen - boxes.data()));
  }
  finish_box(box);
}

/// One look of a thread that waits for the barrier. False: no box is on its way.
bool look_for_box(const void* barrier) {
  PendingBox* const box = find_box(barrier);
  if (!box) return false;
  if (box->looks > 0) {
    --box->looks;
    yield();
  } else {
    receive(box);
  }
  return true;
}

/// With a seed a box may arrive at any time, not only when a thread waits for it.
void perhaps_receive() {
  if (!by_chance(8)) return;
  if (PendingBox* const box = find_box(nullptr)) receive(box);
}

}  // namespace

void init_barrier(void* barrier, unsigned arrivals) {
  check_barrier(barrier);
  {
    const TsanIgnored ignored;
    for (const KnownBarrier& known : current->block->barriers_in_memory)
      if (known.barrier == barrier) die("mbarrier: initialised twice");
    current->block->barriers_in_memory.push_back({barrier, current->flat, false});
  }
  write(barrier, {static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0, 0});
}

void fence_barrier_init() {
  const TsanIgnored ignored;
  for (KnownBarrier& known : current->block->barriers_in_memory)
    if (known.thread == current->flat) known.fenced = true;
}

void arrive(void* barrier, unsigned expected_bytes) {
  known_barrier(barrier);
  release(barrier);
  Phase phase = read(barrier);
  if (phase.missing == 0) die("mbarrier: more arrivals than it was started with");
  --phase.missing;
  phase.bytes += static_cast<int32_t>(expected_bytes);
  write(barrier, phase);
  perhaps_receive();
}

bool try_wait(void* barrier, unsigned parity) {
  known_barrier(barrier);
  if (read(barrier).parity == parity && !look_for_box(barrier)) yield();
  if (read(barrier).parity == parity) return false;
  acquire(barrier);
  return true;
}

void wait_for_phase(void* barrier, unsigned parity) {
  known_barrier(barrier);
  while (read(barrier).parity == parity)
    if (!look_for_box(barrier)) spin();
  acquire(barrier);
}

void lose_copy(int64_t number) { copies_before_loss = number; }

void copy_box(std::byte* to, const CUtensorMap& map, int x, int y, int z, int w, void* barrier) {
  Block& block = *current->block;
  PendingBox box{to, {}, {x, y, z, w}, 2, barrier};
  std::memcpy(&box.map, &map, sizeof box.map);
  for (uint32_t extent : box.map.box) box.bytes *= extent;
  if ((to - block.shared) % 1024 != 0)
    die("TMA: a place in shared memory that is not a multiple of 1024 bytes");
  if (to < block.shared || to + box.bytes > block.shared + block.shared_bytes)
    die("TMA: a box that does not fit in shared memory");
  if (!known_barrier(barrier).fenced)
    die("TMA: an mbarrier that was initialised without fence.mbarrier_init");
  const auto offset = static_cast<size_t>(to - block.shared);
  if (!is_visible_to_wgmma(offset, box.bytes))
    die("TMA: to shared memory that ordinary code wrote, without fence.proxy.async");
  std::memset(to, 0xff, box.bytes);
  release(barrier);
  {
    const TsanIgnored ignored;
    std::memset(async_view().data() + offset, 0xff, box.bytes);
    // With a seed threads may look for some boxes so often that all others have run before.
    box.looks = by_chance(4) ? 2000 : 0;
    if (copies_before_loss-- != 0) block.boxes.push_back(box);
  }
  perhaps_receive();
}

void fence_shared_writes() {
  const TsanIgnored ignored;
  std::memcpy(async_view().data(), current->block->shared, current->block->shared_bytes);
}

bool is_visible_to_wgmma(size_t offset, size_t bytes) {
  const TsanIgnored ignored;
  return std::memcmp(async_view().data() + offset, current->block->shared + offset, bytes) == 0;
}

}  // namespace zg::emulator
