#include "tests/fakes/cuda/hopper.h"

#include <cstring>
#include <limits>

#include "tests/fakes/cuda/block.h"
#include "tests/fakes/cuda/tensor_map.h"
#include "zerograd/runtime/dtype.h"

namespace zg::emulator {
namespace {

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
  std::memcpy(barrier, &phase, sizeof phase);
}

void check_barrier(const void* barrier) {
  if (reinterpret_cast<uintptr_t>(barrier) % sizeof(Phase) != 0)
    die("mbarrier: an address that is no multiple of 8 bytes");
}

/// The swizzled offset of byte `offset` of a panel: 16-byte units XOR the row, every 128 bytes.
size_t swizzled(size_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

void write_box(const PendingBox& box) {
  constexpr size_t element = 2;
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
        }
}

/// Takes the first box that the barrier waits for, if there is one.
bool take_box(const void* barrier, PendingBox& box) {
  const TsanIgnored ignored;
  std::vector<PendingBox>& boxes = current->block->boxes;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].barrier != barrier) continue;
    box = boxes[i];
    boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  return false;
}

bool write_next_box(void* barrier) {
  PendingBox box;
  if (!take_box(barrier, box)) return false;
  acquire(barrier);
  write_box(box);
  release(barrier);
  Phase phase = read(barrier);
  phase.bytes -= static_cast<int32_t>(box.bytes);
  write(barrier, phase);
  return true;
}

template <class T>
float element_at(size_t offset) {
  T x;
  if (offset + 2 > current->block->shared_bytes) die("wgmma: a matrix outside shared memory");
  std::memcpy(&x, current->block->shared + swizzled(offset), sizeof x);
  return static_cast<float>(x);
}

struct Descriptor {
  size_t start, panel, eight_rows;
  explicit Descriptor(uint64_t bits)
      : start((bits & 0x3fff) << 4),
        panel((bits >> 16 & 0x3fff) << 4),
        eight_rows((bits >> 32 & 0x3fff) << 4) {
    if (bits >> 62 != 1) die("wgmma: a matrix that is not swizzled by 128 bytes");
  }
  size_t by_rows(size_t row, size_t k) const {
    return start + row / 8 * eight_rows + row % 8 * 128 + k * 2;
  }
  size_t across(size_t k, size_t column) const {
    return start + column / 64 * panel + k / 8 * eight_rows + k % 8 * 128 + column % 64 * 2;
  }
};

template <class T>
float half_of(uint32_t two, size_t which) {
  T x;
  x.bits = static_cast<uint16_t>(which ? two >> 16 : two);
  return static_cast<float>(x);
}

/// Computes the group's i-th pending product, one for each thread.
template <class T>
void multiply(void* const* threads, size_t i) {
  const auto of = [&](size_t thread) -> PendingProduct& {
    return static_cast<Thread*>(threads[thread])->products[i];
  };
  const PendingProduct& first = of(0);
  const auto columns = static_cast<size_t>(first.columns);
  float a[64][16], b[16][128], c[64][128];
  for (size_t thread = 0; thread < warpgroup_threads; ++thread) {
    const PendingProduct& mine = of(thread);
    if (mine.descriptor_a != first.descriptor_a || mine.b != first.b ||
        mine.columns != first.columns || mine.from_registers != first.from_registers)
      die("wgmma: threads of a group differ in their matrices");
    const size_t row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4 * 2;
    for (size_t half = 0; half < 2; ++half) {
      for (size_t n = 0; n < columns / 8; ++n)
        for (size_t down = 0; down < 2; ++down)
          c[row + 8 * down][n * 8 + t + half] = mine.d[n * 4 + 2 * down + half];
      if (!mine.from_registers) continue;
      a[row][t + half] = half_of<T>(mine.a[0], half);
      a[row + 8][t + half] = half_of<T>(mine.a[1], half);
      a[row][t + 8 + half] = half_of<T>(mine.a[2], half);
      a[row + 8][t + 8 + half] = half_of<T>(mine.a[3], half);
    }
  }
  const Descriptor of_b(first.b);
  if (!first.from_registers) {
    const Descriptor of_a(first.descriptor_a);
    for (size_t row = 0; row < 64; ++row)
      for (size_t k = 0; k < 16; ++k) a[row][k] = element_at<T>(of_a.by_rows(row, k));
  }
  for (size_t k = 0; k < 16; ++k)
    for (size_t j = 0; j < columns; ++j)
      b[k][j] = element_at<T>(first.from_registers ? of_b.across(k, j) : of_b.by_rows(j, k));
  for (size_t row = 0; row < 64; ++row)
    for (size_t k = 0; k < 16; ++k)
      for (size_t j = 0; j < columns; ++j) c[row][j] += a[row][k] * b[k][j];
  for (size_t thread = 0; thread < warpgroup_threads; ++thread) {
    const size_t row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4 * 2;
    for (size_t n = 0; n < columns / 8; ++n)
      for (size_t e = 0; e < 4; ++e)
        of(thread).d[n * 4 + e] = c[row + e / 2 * 8][n * 8 + t + e % 2];
  }
}

}  // namespace

void init_barrier(void* barrier, unsigned arrivals) {
  check_barrier(barrier);
  write(barrier, {static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0, 0});
}

void arrive(void* barrier, unsigned expected_bytes) {
  check_barrier(barrier);
  release(barrier);
  Phase phase = read(barrier);
  if (phase.missing == 0) die("mbarrier: more arrivals than it was started with");
  --phase.missing;
  phase.bytes += static_cast<int32_t>(expected_bytes);
  write(barrier, phase);
}

void wait_for_phase(void* barrier, unsigned parity) {
  check_barrier(barrier);
  while (read(barrier).parity == parity)
    if (!write_next_box(barrier)) spin();
  acquire(barrier);
}

void copy_box(std::byte* to, const CUtensorMap& map, int x, int y, int z, int w, void* barrier) {
  Block& block = *current->block;
  PendingBox box{to, {}, {x, y, z, w}, 2, barrier};
  std::memcpy(&box.map, &map, sizeof box.map);
  for (uint32_t extent : box.map.box) box.bytes *= extent;
  if ((to - block.shared) % 1024 != 0)
    die("TMA: a place in shared memory that is no multiple of 1024 bytes");
  if (to < block.shared || to + box.bytes > block.shared + block.shared_bytes)
    die("TMA: a box that does not fit in shared memory");
  std::memset(to, 0xff, box.bytes);
  release(barrier);
  const TsanIgnored ignored;
  block.boxes.push_back(box);
}

void multiply_warpgroup(float* d, int columns, const uint32_t* a, uint64_t descriptor_a, uint64_t b,
                        bool is_bf16) {
  Thread& thread = *current;
  PendingProduct product{d, columns, a != nullptr, is_bf16, {}, descriptor_a, b, thread.commits,
                         {}};
  if (a) std::memcpy(product.a, a, sizeof product.a);
  bool known = false;
  for (const PendingProduct& before : thread.products) known = known || before.d == d;
  if (!known) {
    product.before.assign(d, d + columns / 2);
    for (int i = 0; i < columns / 2; ++i) d[i] = std::numeric_limits<float>::quiet_NaN();
  }
  thread.products.push_back(product);
}

void commit_products() { ++current->commits; }

void finish_products(unsigned newer_commits) {
  Thread& mine = *current;
  size_t done = 0;
  while (done < mine.products.size() && mine.products[done].commit + newer_commits < mine.commits)
    ++done;
  mine.products_to_finish = done;
  warpgroup_rendezvous("wgmma.wait_group", &mine, [](void* const* threads) {
    const Thread& first = *static_cast<const Thread*>(threads[0]);
    for (size_t thread = 0; thread < warpgroup_threads; ++thread)
      if (static_cast<const Thread*>(threads[thread])->products_to_finish !=
          first.products_to_finish)
        die("wgmma: threads of a group wait for different products");
    for (size_t i = 0; i < first.products_to_finish; ++i) {
      for (size_t thread = 0; thread < warpgroup_threads; ++thread) {
        const PendingProduct& product = static_cast<Thread*>(threads[thread])->products[i];
        std::copy(product.before.begin(), product.before.end(), product.d);
      }
      first.products[i].is_bf16 ? multiply<bf16>(threads, i) : multiply<f16>(threads, i);
    }
  });
  // Later pending products accumulate onto the finished results, so save these as their start
  // values.
  std::vector<PendingProduct> rest(mine.products.begin() + static_cast<std::ptrdiff_t>(done),
                                   mine.products.end());
  for (size_t i = 0; i < rest.size(); ++i) {
    bool known = false;
    for (size_t j = 0; j < i; ++j) known = known || rest[j].d == rest[i].d;
    if (known || !rest[i].before.empty()) continue;
    float* const d = rest[i].d;
    rest[i].before.assign(d, d + rest[i].columns / 2);
    for (int k = 0; k < rest[i].columns / 2; ++k) d[k] = std::numeric_limits<float>::quiet_NaN();
  }
  mine.products = std::move(rest);
}

}  // namespace zg::emulator
