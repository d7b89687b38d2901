#pragma once

#include <concepts>

#include "zerograd/autograd/tape.h"

// Convolutions, pooling and group_norm, free functions on Var as in ops.h. Images are
// [N, channels, rows, columns], lines [N, channels, length]. Values, gradients and defaults are
// PyTorch's.
namespace zg {

/// A number for rows and one for columns, or one for both.
struct Pair2d {
  int64_t rows, columns;

  Pair2d(std::integral auto both) : rows(both), columns(both) {}  // NOLINT: implicit
  Pair2d(int64_t of_rows, int64_t of_columns) : rows(of_rows), columns(of_columns) {}
};

struct Conv1dOptions {
  int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  /// All padding before the first element, dilation * (K - 1): y[t] reads x up to t.
  bool causal = false;
};
struct Conv2dOptions {
  Pair2d stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
};
struct ConvTranspose1dOptions {
  int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
};
struct ConvTranspose2dOptions {
  Pair2d stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
};

// y[n][o] = bias[o] + the sum over the channels of o's group of x[n][channel], correlated with
// weight[o]; bias [out] may be absent. ShapeError if no window fits, ConfigError for numbers out of
// range. Sums have the bits of matmul; with as many groups as channels in and out (depthwise) they
// are in the order of the weight's elements. A part of the windows is copied at a time, so scratch
// memory does not grow with N.
/// x [N, in, T], weight [out, in / groups, K].
ZG_API Var conv1d(const Var& x, const Var& weight, const Var& bias = {},
                  const Conv1dOptions& options = {});
/// x [N, in, H, W], weight [out, in / groups, rows, columns].
ZG_API Var conv2d(const Var& x, const Var& weight, const Var& bias = {},
                  const Conv2dOptions& options = {});
// The gradient of a convolution with respect to its x, plus the bias. A row of extent L gives
// (L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1 elements.
/// x [N, in, T], weight [in, out / groups, K].
ZG_API Var conv_transpose1d(const Var& x, const Var& weight, const Var& bias = {},
                            const ConvTranspose1dOptions& options = {});
/// x [N, in, H, W], weight [in, out / groups, rows, columns].
ZG_API Var conv_transpose2d(const Var& x, const Var& weight, const Var& bias = {},
                            const ConvTranspose2dOptions& options = {});

// Means and maxima of windows of the last axis, or of the last two. A stride of 0 is the kernel's
// extent. Padding is at most half of the kernel.
/// Padding counts as zeros, or with `counts_padding` false not at all.
ZG_API Var avg_pool1d(const Var& x, int64_t kernel, int64_t stride = 0, int64_t padding = 0,
                      bool counts_padding = true);
ZG_API Var avg_pool2d(const Var& x, Pair2d kernel, Pair2d stride = 0, Pair2d padding = 0,
                      bool counts_padding = true);
/// The gradient goes to the first maximum of a window. NaN counts as largest.
ZG_API Var max_pool1d(const Var& x, int64_t kernel, int64_t stride = 0, int64_t padding = 0,
                      int64_t dilation = 1);
ZG_API Var max_pool2d(const Var& x, Pair2d kernel, Pair2d stride = 0, Pair2d padding = 0,
                      Pair2d dilation = 1);

/// x [N, C, ...] normalised over each of `groups` runs of channels and all axes behind them, then
/// times gamma [C], plus beta [C]; either may be absent. bf16 and f16 are computed in f32.
ZG_API Var group_norm(const Var& x, int64_t groups, const Var& gamma = {}, const Var& beta = {},
                      float epsilon = 1e-5f);

}  // namespace zg
