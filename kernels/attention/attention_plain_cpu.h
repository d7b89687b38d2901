#pragma once

#include "zerograd/kernels/attention/attention_cpu.h"

namespace zg::cpu {

/// Row by row, in the accumulator type: the definition that other versions are tested against.
extern const AttentionTable plain_attention_forward, plain_attention_backward;

}  // namespace zg::cpu
