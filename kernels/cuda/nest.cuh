#pragma once

#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/runtime/shape.h"

namespace zg::cuda {

/// Division by a positive constant without dividing. Granlund, Montgomery 1994, "Division by
/// invariant integers using multiplication", figure 4.1.
struct Divisor {
  unsigned multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(unsigned by) {
    while ((uint64_t{1} << shift) < by) ++shift;
    const uint64_t excess = (uint64_t{1} << shift) - by;
    multiplier = static_cast<unsigned>((excess << 32) / by + 1);
  }
  /// x / by, for x below 2^31.
  __device__ unsigned quotient(unsigned x) const { return (__umulhi(x, multiplier) + x) >> shift; }
};

/// A loop nest over the axes of a shape, with the strides of several operands. A kernel turns a
/// flat index into the operands' offsets with locate(). Axes of extent 1 are dropped, and
/// neighbouring axes merged if they are contiguous in every operand, so operands of equal
/// contiguous shapes have one axis. each() lets a thread handle V neighbours at once if
/// has_vectors().
template <int operands>
struct Nest {
  int rank = 0;
  int fits_31_bits = 0;  ///< 1 if numel does; not a bool, which would add undefined padding bytes
  int64_t numel = 1;
  int64_t extents[Shape::max_rank] = {};
  int64_t strides[Shape::max_rank][operands] = {};
  Divisor divisors[Shape::max_rank] = {};  ///< by extents, if numel fits

  Nest(const Shape& shape, const Strides (&of)[operands]) : numel(shape.numel()) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      int64_t next[operands];
      for (int k = 0; k < operands; ++k) next[k] = of[k][static_cast<size_t>(axis)];
      bool merges = rank > 0;
      for (int k = 0; k < operands && merges; ++k)
        merges = strides[rank - 1][k] == next[k] * shape[axis];
      if (!merges) extents[rank++] = 1;
      extents[rank - 1] *= shape[axis];
      for (int k = 0; k < operands; ++k) strides[rank - 1][k] = next[k];
    }
    fits_31_bits = numel < int64_t{1} << 31 ? 1 : 0;
    for (int axis = 1; axis < rank && fits_31_bits && numel > 0; ++axis)
      divisors[axis] = Divisor(static_cast<unsigned>(extents[axis]));
  }

  /// Sets offsets[k] to where element `index`, in row-major order, lies in operand k.
  __device__ void locate(int64_t index, int64_t (&offsets)[operands]) const {
    for (int k = 0; k < operands; ++k) offsets[k] = 0;
    if (rank == 0) return;
    for (int axis = rank - 1; axis > 0; --axis) {
      int64_t rest;
      if (fits_31_bits)
        rest = divisors[axis].quotient(static_cast<unsigned>(index));
      else
        rest = index / extents[axis];
      const int64_t at = index - rest * extents[axis];
      index = rest;
      for (int k = 0; k < operands; ++k) offsets[k] += at * strides[axis][k];
    }
    for (int k = 0; k < operands; ++k) offsets[k] += index * strides[0][k];
  }

  /// Whether V neighbours in row-major order, from a multiple of V on, are V neighbours or one
  /// element in every operand. If there is only one axis, the last group may have fewer than V.
  bool has_vectors(int V) const {
    if (rank == 0 || (rank > 1 && extents[rank - 1] % V != 0)) return false;
    for (int k = 0; k < operands; ++k) {
      const int64_t last = strides[rank - 1][k];
      if (last != 0 && last != 1) return false;
      for (int axis = 0; axis + 1 < rank && last == 1; ++axis)
        if (strides[axis][k] % V != 0) return false;
    }
    return true;
  }

  /// The V neighbours from `offset` on in operand k, whose first element is at `start`.
  template <int V, class T>
  __device__ Vec<T, V> load(int k, const T* start, int64_t offset) const {
    Vec<T, V> values;
    if (V > 1 && strides[rank - 1][k] == 0) {
      const T value = start[offset];
#pragma unroll
      for (int i = 0; i < V; ++i) values.v[i] = value;
      return values;
    }
    return cuda::load<V>(start + offset);
  }

  /// Calls f(V, i, offsets) for the neighbours of this thread, elements i to i + V - 1, or
  /// f(1, i, offsets) for each if there are fewer. V is an integral constant.
  template <int V, class F>
  __device__ void each(const F& f) const {
    const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * V;
    int64_t offsets[operands];
    if constexpr (V > 1)
      if (first + V <= numel) {
        locate(first, offsets);
        return f(std::integral_constant<int, V>(), first, offsets);
      }
    for (int64_t i = first; i < first + V && i < numel; ++i) {
      if constexpr (V == 1)
        locate(i, offsets);
      else  // there is one axis, as has_vectors() says
        for (int k = 0; k < operands; ++k) offsets[k] = i * strides[0][k];
      f(std::integral_constant<int, 1>(), i, offsets);
    }
  }
};

}  // namespace zg::cuda
