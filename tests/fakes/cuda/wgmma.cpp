#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "tests/fakes/cuda/block.h"
#include "tests/fakes/cuda/hopper.h"
#include "tests/fakes/cuda/precision.h"
#include "zerograd/runtime/dtype.h"

namespace zg::emulator {
namespace {

/// A register holds this value while a product uses it. As f32 it is a signalling NaN, which any
/// f32 arithmetic makes a quiet NaN, so let_go() finds the write. As two bf16 or f16 it is two NaN.
constexpr uint32_t poison = 0xffbfffff;

/// The offset at which the 128-byte swizzle stores byte `offset` of shared memory: bits 4 to 6 are
/// XORed with bits 7 to 9.
size_t swizzled(size_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

template <class T>
float element_at(size_t offset) {
  T x;
  if (offset + sizeof x > current->block->shared_bytes)
    die("wgmma: a matrix outside shared memory");
  const size_t at = swizzled(offset);
  if (!is_visible_to_wgmma(at, sizeof x))
    die("wgmma: shared memory that ordinary code wrote, without fence.proxy.async");
  std::memcpy(&x, current->block->shared + at, sizeof x);
  return static_cast<float>(x);
}

/// A matrix descriptor (hopper.cuh) in bytes: the start address, the distance between panels and
/// the distance between groups of eight rows.
struct Descriptor {
  size_t start, panel_stride, eight_row_stride;
  explicit Descriptor(uint64_t bits)
      : start((bits & 0x3fff) << 4),
        panel_stride((bits >> 16 & 0x3fff) << 4),
        eight_row_stride((bits >> 32 & 0x3fff) << 4) {
    if (bits >> 62 != 1) die("wgmma: a matrix that is not swizzled by 128 bytes");
  }
  /// The offset of an element of a K-major matrix: K is contiguous.
  size_t k_major(size_t row, size_t k) const {
    return start + row / 8 * eight_row_stride + row % 8 * 128 + k * 2;
  }
  /// The offset of an element of an MN-major matrix: the columns are contiguous.
  size_t mn_major(size_t k, size_t column) const {
    return start + column / 64 * panel_stride + k / 8 * eight_row_stride + k % 8 * 128 +
           column % 64 * 2;
  }
};

/// One of the two 16-bit values in a register.
template <class T>
float unpack(uint32_t pair, size_t index) {
  T x;
  x.bits = static_cast<uint16_t>(index ? pair >> 16 : pair);
  return static_cast<float>(x);
}

HeldRegisters* find_held(Thread& thread, const void* start) {
  for (HeldRegisters& held : thread.held)
    if (held.start == start) return &held;
  return nullptr;
}
uint32_t* values_of(Thread& thread, const void* start) {
  return find_held(thread, start)->values.data();
}

/// Whether [start, start + count) lies within these registers.
bool contains(const FencedRegisters& fenced, const uint32_t* start, size_t count) {
  return start >= fenced.start && start + count <= fenced.start + fenced.values.size();
}

void check_fence(const Thread& thread, const uint32_t* start, size_t count) {
  for (const FencedRegisters& fenced : thread.fenced) {
    if (!contains(fenced, start, count)) continue;
    if (std::memcmp(fenced.values.data() + (start - fenced.start), start,
                    count * sizeof(uint32_t)) != 0)
      die("wgmma: registers of a product were written after wgmma.fence");
    return;
  }
  die("wgmma: registers of a product without wgmma.fence since they were last accessible");
}

/// From here on a product uses the registers.
void hold(Thread& thread, uint32_t* start, size_t count) {
  if (HeldRegisters* const held = find_held(thread, start)) {
    if (held->values.size() != count)
      die("wgmma: accumulators in use by a product of another shape, without a wait");
    ++held->products;
    return;
  }
  check_fence(thread, start, count);
  thread.held.push_back({start, std::vector<uint32_t>(start, start + count), 1});
  std::fill_n(start, count, poison);
}

/// A product is done. After the last one the registers are accessible again, and the next product
/// needs a new fence.
void let_go(Thread& thread, const uint32_t* start) {
  HeldRegisters& held = *find_held(thread, start);
  if (--held.products > 0) return;
  for (size_t i = 0; i < held.values.size(); ++i)
    if (held.start[i] != poison)
      die("wgmma: thread " + std::to_string(thread.flat) +
          " wrote to registers of a product before it waited for the product");
  std::copy(held.values.begin(), held.values.end(), held.start);
  std::erase_if(thread.fenced, [&](const FencedRegisters& fenced) {
    return contains(fenced, held.start, held.values.size());
  });
  thread.held.erase(thread.held.begin() + (&held - thread.held.data()));
}

void check_same(const PendingProduct& first, const PendingProduct& mine) {
  if (mine.operands.descriptor_a != first.operands.descriptor_a ||
      mine.operands.b != first.operands.b || mine.operands.columns != first.operands.columns ||
      mine.operands.accumulate != first.operands.accumulate ||
      mine.operands.k_major != first.operands.k_major || !mine.operands.a != !first.operands.a)
    die("wgmma: threads of a group differ in their matrices");
  if (mine.fences != first.fences) die("wgmma: threads of a group differ in their wgmma.fence");
}

/// Computes the warpgroup's i-th pending wgmma. Thread::products[i] of each of its 128 threads is
/// that thread's share of it.
template <class T>
void multiply(void* const* threads, size_t i) {
  const auto thread_at = [&](size_t thread) -> Thread& {
    return *static_cast<Thread*>(threads[thread]);
  };
  const PendingProduct& first = thread_at(0).products[i];
  const ProductOperands& operands = first.operands;
  const auto columns = static_cast<size_t>(operands.columns);
  float a[64][16], b[16][128], c[64][128];
  for (size_t thread = 0; thread < warpgroup_threads; ++thread) {
    const PendingProduct& mine = thread_at(thread).products[i];
    check_same(first, mine);
    const size_t row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4 * 2;
    const uint32_t* const d = values_of(thread_at(thread), mine.d);
    const uint32_t* const own =
        operands.a ? values_of(thread_at(thread), mine.operands.a) : nullptr;
    for (size_t half = 0; half < 2; ++half) {
      for (size_t n = 0; n < columns / 8; ++n)
        for (size_t down = 0; down < 2; ++down)
          c[row + 8 * down][n * 8 + t + half] =
              operands.accumulate ? std::bit_cast<float>(d[n * 4 + 2 * down + half]) : 0.0f;
      if (!own) continue;
      a[row][t + half] = unpack<T>(own[0], half);
      a[row + 8][t + half] = unpack<T>(own[1], half);
      a[row][t + 8 + half] = unpack<T>(own[2], half);
      a[row + 8][t + 8 + half] = unpack<T>(own[3], half);
    }
  }
  const Descriptor of_b(operands.b);
  if (!operands.a) {
    const Descriptor of_a(operands.descriptor_a);
    for (size_t row = 0; row < 64; ++row)
      for (size_t k = 0; k < 16; ++k) a[row][k] = element_at<T>(of_a.k_major(row, k));
  }
  // hopper.cuh has three forms of wgmma: with a in registers, b is MN-major or K-major; with a in
  // shared memory, b is K-major.
  const bool mn_major = operands.a && !operands.k_major;
  for (size_t k = 0; k < 16; ++k)
    for (size_t j = 0; j < columns; ++j)
      b[k][j] = element_at<T>(mn_major ? of_b.mn_major(k, j) : of_b.k_major(j, k));
  for (size_t row = 0; row < 64; ++row) add_products(c[row], a[row], b[0], 128, operands.columns);
  for (size_t thread = 0; thread < warpgroup_threads; ++thread) {
    const size_t row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4 * 2;
    uint32_t* const d = values_of(thread_at(thread), thread_at(thread).products[i].d);
    for (size_t n = 0; n < columns / 8; ++n)
      for (size_t e = 0; e < 4; ++e)
        d[n * 4 + e] = std::bit_cast<uint32_t>(c[row + e / 2 * 8][n * 8 + t + e % 2]);
  }
}

/// Computes the warpgroup's first `count` pending products, if they are not yet.
void compute(void* const* threads, size_t count) {
  std::vector<PendingProduct>& products = static_cast<Thread*>(threads[0])->products;
  for (size_t i = 0; i < count; ++i) {
    if (std::exchange(products[i].done, true)) continue;
    products[i].operands.is_bf16 ? multiply<bf16>(threads, i) : multiply<f16>(threads, i);
  }
}

/// Completes the products that the warpgroup waits for. The last of its 128 threads to wait calls
/// this once, for all of them.
void finish_all(void* const* threads) {
  const Thread& first = *static_cast<const Thread*>(threads[0]);
  const size_t count = first.products_to_finish;
  for (size_t thread = 0; thread < warpgroup_threads; ++thread)
    if (static_cast<const Thread*>(threads[thread])->products_to_finish != count)
      die("wgmma: threads of a group wait for different products");
  compute(threads, count);
  for (size_t i = 0; i < warpgroup_threads; ++i) {
    Thread& thread = *static_cast<Thread*>(threads[i]);
    for (size_t p = 0; p < count; ++p) {
      let_go(thread, thread.products[p].d);
      if (thread.products[p].operands.a) let_go(thread, thread.products[p].operands.a);
    }
    thread.products.erase(thread.products.begin(),
                          thread.products.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

struct RegisterCount {
  unsigned count;
};

/// All threads of a warpgroup ask for the same count.
void agree_on_registers(const char* what, unsigned count) {
  RegisterCount mine{count};
  warpgroup_rendezvous(what, &mine, [](void* const* published) {
    for (size_t i = 1; i < warpgroup_threads; ++i)
      if (static_cast<const RegisterCount*>(published[i])->count !=
          static_cast<const RegisterCount*>(published[0])->count)
        die("setmaxnreg: threads of a group differ in their count");
  });
}

/// The reason that a deadlock message shows. wake_all() wakes the threads that wait for it.
constexpr const char* register_wait =
    "setmaxnreg.inc, for registers that no other warpgroup has given back";

}  // namespace

void fence_registers(void* registers, size_t bytes) {
  auto* const start = static_cast<uint32_t*>(registers);
  Thread& thread = *current;
  std::erase_if(thread.fenced,
                [&](const FencedRegisters& fenced) { return fenced.start == start; });
  thread.fenced.push_back({start, std::vector<uint32_t>(start, start + bytes / sizeof(uint32_t))});
}

/// The instruction wgmma.fence. fence_registers() names its registers before.
void begin_products() { ++current->fences; }

void multiply_warpgroup(float* d, const ProductOperands& operands) {
  Thread& thread = *current;
  if (thread.fences == 0) die("wgmma: a product before the first wgmma.fence");
  hold(thread, reinterpret_cast<uint32_t*>(d), static_cast<size_t>(operands.columns / 2));
  if (operands.a) hold(thread, operands.a, 4);
  thread.products.push_back(
      {reinterpret_cast<uint32_t*>(d), operands, thread.fences, thread.commits});
}

/// The number of the thread's pending products that belong to its commits before this one.
size_t products_before(const Thread& thread, unsigned commit) {
  size_t count = 0;
  while (count < thread.products.size() && thread.products[count].commit < commit) ++count;
  return count;
}

/// With a seed the products may be done at once: as soon as all threads have committed them.
void commit_products() {
  Thread& mine = *current;
  ++mine.commits;
  const TsanIgnored ignored;
  std::vector<Thread>& all = mine.block->threads;
  const size_t first = mine.flat / warpgroup_threads * warpgroup_threads;
  if (first + warpgroup_threads > all.size()) return;  // reported at the wait
  void* group[warpgroup_threads];
  for (size_t i = 0; i < warpgroup_threads; ++i) {
    if (all[first + i].commits < mine.commits) return;
    group[i] = &all[first + i];
  }
  if (by_chance(2)) compute(group, products_before(mine, mine.commits));
}

void finish_products(unsigned newer_commits) {
  Thread& mine = *current;
  const unsigned newer = std::min(newer_commits, mine.commits);
  mine.products_to_finish = products_before(mine, mine.commits - newer);
  warpgroup_rendezvous("wgmma.wait_group", &mine, finish_all);
}

void decrease_registers(unsigned count) {
  agree_on_registers("setmaxnreg.dec", count);
  Block& block = *current->block;
  Warpgroup& group = block.groups[current->flat / warpgroup_threads];
  if (group.registers < count) die("setmaxnreg.dec: to more registers than the warpgroup has");
  block.free_registers += (group.registers - count) * warpgroup_threads;
  group.registers = count;
  wake_all(register_wait);
}

void increase_registers(unsigned count) {
  agree_on_registers("setmaxnreg.inc", count);
  Block& block = *current->block;
  Warpgroup& group = block.groups[current->flat / warpgroup_threads];
  if (group.registers > count) die("setmaxnreg.inc: to fewer registers than the warpgroup has");
  while (group.registers < count) {
    const unsigned wanted = (count - group.registers) * warpgroup_threads;
    if (block.free_registers < wanted) {
      wait_until_woken(register_wait);
    } else {
      block.free_registers -= wanted;
      group.registers = count;
    }
  }
}

}  // namespace zg::emulator
