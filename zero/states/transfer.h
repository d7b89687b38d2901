#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "zerograd/runtime/tensor.h"

namespace zg::zero {

/// Fills a floating tensor with floats made on the host, rounded once to its dtype. `produce` is
/// given the place of the first element and the elements to write, a few MiB at a time, so that no
/// second copy of a large tensor exists. On a meta device nothing is produced.
void write_floats(const Tensor& to,
                  const std::function<void(int64_t begin, std::span<float>)>& produce);

/// The elements of a floating tensor in order, widened to f32, a few MiB at a time. On a meta
/// device nothing is consumed.
void read_floats(const Tensor& from, const std::function<void(std::span<const float>)>& consume);

/// Whether its bytes are on a drive, where no kernel reaches them.
bool in_file(const Tensor& tensor);
/// The tensor itself, or a copy on the host of one in a file.
Tensor in_memory(const Tensor& tensor);
/// copy() on the device's stream. In a trace it is on the track "copies", under a name of two
/// parts; without one it is what allocations are for (NameScope).
void traced_copy(const Tensor& from, const Tensor& to, std::string_view name = {},
                 std::string_view suffix = {});
/// to = from, rounded to its dtype, wherever the two are; a few MiB at a time.
void convert(const Tensor& from, const Tensor& to);

/// To nearest even; for what is loaded in half precision and kept in f32.
void round_to_bf16(std::span<float> values);

}  // namespace zg::zero
