#include <algorithm>

#include "zerograd/runtime/storage/swap.h"
#include "zerograd/runtime/tensor.h"
#include "zerograd/runtime/text/format.h"

// Copies between all spaces, also files.
namespace zg {
namespace {

constexpr int64_t file_chunk = 1 << 20;  // elements that are copied to or from a file at a time

/// Calls f(begin, elements on the host) for n elements, a chunk at a time.
template <class F>
void through_host(int64_t n, DType dtype, const Device& device, const F& f) {
  const PurposeScope purpose(device, Purpose::workspace);
  const int64_t chunk_numel = std::min(n, file_chunk);
  const Tensor chunk = Tensor::empty({chunk_numel}, dtype, device, host_space(device));
  for (int64_t begin = 0; begin < n; begin += chunk_numel)
    f(begin, chunk.flat(0, std::min(chunk_numel, n - begin)));
}

}  // namespace

void copy(const Tensor& src, const Tensor& dst, Stream& stream) {
  if (!src || !dst || src.numel() != dst.numel() || src.dtype() != dst.dtype())
    raise<ShapeError>("copy: expected equal sizes and element types, got {} {} to {} {}",
                      src.shape(), src.dtype(), dst.shape(), dst.dtype());
  dst.buffer()->note_write();
  const bool from_file = src.buffer()->space() == Space::file;
  if (from_file || dst.buffer()->space() == Space::file) {
    if (host_reaches(from_file ? dst : src))
      return wait_for_swap(src.device(), start_swap(src, dst));
    return through_host(src.numel(), src.dtype(), src.device(),
                        [&](int64_t begin, const Tensor& chunk) {
                          copy(src.flat(begin, chunk.numel()), chunk, stream);
                          copy(chunk, dst.flat(begin, chunk.numel()), stream);
                        });
  }
  if (src.raw() && dst.raw() && src.numel() > 0)
    stream.copy(dst.raw(), src.raw(), static_cast<size_t>(src.bytes()));
}

namespace {

void fill_zero_in_file(const Tensor& dst) {
  Stream& stream = dst.device().compute();
  through_host(dst.numel(), dst.dtype(), dst.device(), [&](int64_t begin, const Tensor& zeros) {
    if (begin == 0) fill_zero(zeros, stream);
    copy(zeros, dst.flat(begin, zeros.numel()), stream);
  });
}

}  // namespace

void fill_zero(const Tensor& dst, Stream& stream) {
  if (dst) dst.buffer()->note_write();
  if (dst && dst.buffer()->space() == Space::file) return fill_zero_in_file(dst);
  if (dst.raw() && dst.numel() > 0) stream.fill_zero(dst.raw(), static_cast<size_t>(dst.bytes()));
}

}  // namespace zg
