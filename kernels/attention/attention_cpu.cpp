#include "zerograd/kernels/attention/attention_cpu.h"

#include <algorithm>
#include <cmath>

#include "zerograd/kernels/attention/attention_plain_cpu.h"
#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/cpu/workspace.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(AttentionTable, attention_forward_table)
ZG_DECLARE_LEVELS(AttentionTable, attention_backward_table)

namespace {

/// The vector code of a level where there is some (there is none for f64, nor for heads that are
/// too large for its tiles), else the plain one.
template <class Args>
const AttentionCode& choose(const AttentionTable* vectors, const AttentionTable& plain,
                            const Args& a) {
  const int type = static_cast<int>(a.q.dtype());
  const bool tiled = vectors && vectors->type[type].run && a.shape.D <= largest_tiled_head;
  return tiled ? vectors->type[type] : plain.type[type];
}

const AttentionCode& code_of(const AttentionForward& a, Isa isa) {
  return choose(ZG_AT_LEVEL(isa, attention_forward_table), plain_attention_forward, a);
}

const AttentionCode& code_of(const AttentionBackward& a, Isa isa) {
  return choose(ZG_AT_LEVEL(isa, attention_backward_table), plain_attention_backward, a);
}

template <class Args>
AttentionCall call_of(const Args& a) {
  const AttentionShape& s = a.shape;
  return {.shape = s,
          .scale = s.scale != 0.0f ? double{s.scale} : 1.0 / std::sqrt(static_cast<double>(s.D)),
          .bias_head = a.bias && a.bias.shape().rank() == 3 ? s.T * s.keys : 0,
          .mask = dropout_mask(s.dropout_key, s.dropout),
          .q = a.q.raw(),
          .k = a.k.raw(),
          .v = a.v.raw(),
          .bias = a.bias.raw(),
          .alibi_slopes = a.alibi_slopes.raw(),
          .out = a.out.raw(),
          .log_sum = a.log_sum.raw()};
}

template <class Args>
int64_t scratch_of_workers(const Args& a, const Device::Traits& traits) {
  const AttentionCode& code = code_of(a, traits.isa);
  const int64_t workers = std::min<int64_t>(traits.threads, code.tasks(a.shape));
  return workers * code.scratch_bytes(a.shape);
}

void run(const AttentionCode& code, const AttentionCall& call, Workspace scratch, Stream& stream) {
  const int64_t bytes = code.scratch_bytes(call.shape);
  team(stream.traits().threads, code.tasks(call.shape),
       [&](int64_t task, int worker) { code.run(call, task, scratch.data + worker * bytes); });
}

}  // namespace

int64_t workspace_bytes(const AttentionForward& a, const Device::Traits& traits) {
  return scratch_of_workers(a, traits);
}
int64_t workspace_bytes(const AttentionBackward& a, const Device::Traits& traits) {
  return scratch_of_workers(a, traits);
}

void attention_forward(const AttentionForward& a, Workspace scratch, Stream& stream) {
  run(code_of(a, stream.traits().isa), call_of(a), scratch, stream);
}

void attention_backward(const AttentionBackward& a, Workspace scratch, Stream& stream) {
  AttentionCall call = call_of(a);
  call.dout = a.dout.raw();
  call.dq = a.dq.raw();
  call.dk = a.dk.raw();
  call.dv = a.dv.raw();
  run(code_of(a, stream.traits().isa), call, scratch, stream);
}

}  // namespace zg::cpu
