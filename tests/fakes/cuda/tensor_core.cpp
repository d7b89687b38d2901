#include "tests/fakes/cuda/tensor_core.h"

#include <cstring>

#include "tests/fakes/cuda/block.h"
#include "tests/fakes/cuda/precision.h"
#include "zerograd/runtime/dtype.h"

namespace zg::emulator {
namespace {

struct Fragments {
  float* d;
  const uint32_t* a;
  uint32_t b0, b1;
};

/// One of the two 16-bit values in a register.
template <class T>
float unpack(uint32_t pair, int index) {
  T x;
  x.bits = static_cast<uint16_t>(index ? pair >> 16 : pair);
  return static_cast<float>(x);
}

template <class T>
void multiply_all(void* const* published, uint32_t) {
  float a[16][16], b[16][8], c[16][8];
  const auto of = [&](unsigned lane) { return static_cast<const Fragments*>(published[lane]); };
  const auto for_each = [&](const auto& f) {
    for (unsigned lane = 0; lane < warp_lanes; ++lane)
      for (int half = 0; half < 2; ++half)
        f(*of(lane), static_cast<int>(lane / 4), 2 * static_cast<int>(lane % 4) + half, half);
  };
  for_each([&](const Fragments& mine, int g, int t, int half) {
    a[g][t] = unpack<T>(mine.a[0], half);
    a[g + 8][t] = unpack<T>(mine.a[1], half);
    a[g][t + 8] = unpack<T>(mine.a[2], half);
    a[g + 8][t + 8] = unpack<T>(mine.a[3], half);
    b[t][g] = unpack<T>(mine.b0, half);
    b[t + 8][g] = unpack<T>(mine.b1, half);
    c[g][t] = mine.d[half];
    c[g + 8][t] = mine.d[half + 2];
  });
  for (int i = 0; i < 16; ++i) add_products(c[i], a[i], b[0], 8, 8);
  for_each([&](const Fragments& mine, int g, int t, int half) {
    mine.d[half] = c[g][t];
    mine.d[half + 2] = c[g + 8][t];
  });
}

struct Rows {
  uint32_t* to;
  const uint16_t* row;
};

template <bool transposed>
void load_all(void* const* published, uint32_t) {
  const auto of = [&](unsigned lane) { return static_cast<const Rows*>(published[lane]); };
  for (unsigned matrix = 0; matrix < 4; ++matrix)
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      const unsigned g = lane / 4, t = lane % 4 * 2;
      const auto element = [&](unsigned row, unsigned column) {
        return uint32_t{of(matrix * 8 + row)->row[column]};
      };
      of(lane)->to[matrix] = transposed ? element(t, g) | element(t + 1, g) << 16
                                        : element(g, t) | element(g, t + 1) << 16;
    }
}

void check_place(const char* what, const void* place) {
  const Block& block = *current->block;
  const auto* start = static_cast<const std::byte*>(place);
  if (reinterpret_cast<uintptr_t>(place) % 16 != 0)
    die(std::string(what) + ": an address of shared memory that is not a multiple of 16 bytes");
  if (start < block.shared || start + 16 > block.shared + block.shared_bytes)
    die(std::string(what) + ": an address outside dynamic shared memory");
}

}  // namespace

void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                        bool is_bf16) {
  Fragments mine{d, a, b0, b1};
  warp_rendezvous(every_lane, "mma.sync", &mine, is_bf16 ? multiply_all<bf16> : multiply_all<f16>);
}

void load_matrices(uint32_t (&to)[4], const void* row, bool transposed) {
  check_place("ldmatrix", row);
  Rows mine{to, static_cast<const uint16_t*>(row)};
  warp_rendezvous(every_lane, "ldmatrix", &mine, transposed ? load_all<true> : load_all<false>);
}

void copy_async(void* to, const void* from, int bytes) {
  constexpr unsigned all = 16;
  check_place("cp.async", to);
  if (reinterpret_cast<uintptr_t>(from) % all != 0)
    die("cp.async: an address of global memory that is not a multiple of 16 bytes");
  const auto valid = static_cast<unsigned>(bytes);
  if (valid > all) die("cp.async: " + std::to_string(bytes) + " bytes; expected 0 to 16");
  std::memset(to, 0xff, all);
  current->copies.push_back({to, from, valid, all - valid, current->copy_group});
}

void commit_copies() { ++current->copy_group; }

}  // namespace zg::emulator
