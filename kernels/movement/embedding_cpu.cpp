#include "zerograd/kernels/movement/movement.h"

#include <algorithm>
#include <utility>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/text/format.h"

// Memory bound: every row is read and written once. Elements are only added, in a fixed order, so
// every instruction set gives the same bits.
namespace zg::cpu {
namespace {

template <class Id>
void check_ids(const char* op, const Id* ids, int64_t N, int64_t V) {
  for (int64_t n = 0; n < N; ++n)
    if (ids[n] < 0 || ids[n] >= V)
      raise<ShapeError>("{}: ids[{}] is {}; expected an id in [0, {})", op, n, ids[n], V);
}

/// Rows of one task: about 16 Ki elements.
int64_t rows_per_chunk(int64_t C) {
  return std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, C));
}

template <class F>
void for_rows(const Stream& stream, int64_t rows, int64_t C, const F& f) {
  parallel_for(stream.traits().threads, rows, rows_per_chunk(C), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row);
  });
}

template <class T, class Id>
void forward(const EmbeddingForward& a, const Stream& stream) {
  using A = accumulator_t<T>;
  const int64_t N = a.y.extent(0), C = a.y.extent(1);
  const Id* ids = a.ids.data<Id>();
  check_ids("embedding_forward", ids, N, a.weight.extent(0));
  const T* weight = a.weight.data<T>();
  const T* position = a.position ? a.position.data<T>() + a.first_position * C : nullptr;
  T* y = a.y.data<T>();
  for_rows(stream, N, C, [&](int64_t n) {
    const T* w = weight + int64_t{ids[n]} * C;
    T* out = y + n * C;
    if (!position) {
      std::copy(w, w + C, out);
      return;
    }
    const T* p = position + n % a.T * C;
    for (int64_t c = 0; c < C; ++c) out[c] = T(static_cast<A>(w[c]) + static_cast<A>(p[c]));
  });
}

template <class T>
void add_row(accumulator_t<T>* sum, const T* row, int64_t C) {
  for (int64_t c = 0; c < C; ++c) sum[c] += static_cast<accumulator_t<T>>(row[c]);
}

/// The tokens grouped by id, each group in rising n: a counting sort. It costs little compared with
/// the rows.
class TokensById {
 public:
  static int64_t bytes(int64_t N, int64_t V) { return (N + V) * int64_t{sizeof(int64_t)}; }

  template <class Id>
  TokensById(const Id* ids, int64_t N, int64_t V, Workspace workspace)
      : end_(reinterpret_cast<int64_t*>(workspace.data)), tokens_(end_ + V) {
    std::fill(end_, end_ + V, 0);
    for (int64_t n = 0; n < N; ++n) ++end_[ids[n]];
    int64_t begin = 0;  // start of each group; the next loop advances it to the group's end
    for (int64_t id = 0; id < V; ++id) begin += std::exchange(end_[id], begin);
    for (int64_t n = 0; n < N; ++n) tokens_[end_[ids[n]]++] = n;
  }
  const int64_t* begin(int64_t id) const { return tokens_ + (id == 0 ? 0 : end_[id - 1]); }
  const int64_t* end(int64_t id) const { return tokens_ + end_[id]; }

 private:
  int64_t* end_;
  int64_t* tokens_;
};

template <class T, class Id>
void backward(const EmbeddingBackward& a, Workspace workspace, const Stream& stream) {
  using A = accumulator_t<T>;
  const int64_t N = a.dy.extent(0), C = a.dy.extent(1);
  const T* dy = a.dy.data<T>();
  if (a.dweight) {
    const int64_t V = a.dweight.extent(0);
    const Id* ids = a.ids.data<Id>();
    check_ids("embedding_backward", ids, N, V);
    const TokensById tokens(ids, N, V, workspace);
    A* dweight = a.dweight.data<A>();
    for_rows(stream, V, C, [&](int64_t id) {
      constexpr int64_t width = 256;  // columns of a row that are summed at a time
      for (int64_t c = 0; c < C; c += width) {
        const int64_t count = std::min(width, C - c);
        A sum[width] = {};
        for (const int64_t* n = tokens.begin(id); n != tokens.end(id); ++n)
          add_row(sum, dy + *n * C + c, count);
        A* row = dweight + id * C + c;
        if (a.adds)
          add_row(row, sum, count);
        else
          std::copy(sum, sum + count, row);
      }
    });
  }
  if (a.dposition) {
    A* dposition = a.dposition.data<A>();
    for_rows(stream, a.dposition.extent(0), C, [&](int64_t p) {
      A* sum = dposition + p * C;
      std::fill(sum, sum + C, A(0));
      const int64_t t = p - a.first_position;
      if (t < 0 || t >= a.T) return;
      for (int64_t n = t; n < N; n += a.T) add_row(sum, dy + n * C, C);
    });
  }
}

}  // namespace

void embedding_forward(const EmbeddingForward& a, Workspace, Stream& stream) {
  visit_floating(a.y.dtype(), [&]<class T>() {
    visit_index(a.ids.dtype(), [&]<class Id>() { forward<T, Id>(a, stream); });
  });
}

int64_t workspace_bytes(const EmbeddingBackward& a, const Device::Traits&) {
  return a.dweight ? TokensById::bytes(a.dy.extent(0), a.dweight.extent(0)) : 0;
}

void embedding_backward(const EmbeddingBackward& a, Workspace workspace, Stream& stream) {
  visit_floating(a.dy.dtype(), [&]<class T>() {
    visit_index(a.ids.dtype(), [&]<class Id>() { backward<T, Id>(a, workspace, stream); });
  });
}

}  // namespace zg::cpu
