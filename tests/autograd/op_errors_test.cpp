#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/error_message.h"
#include "zerograd/autograd/convolution.h"
#include "zerograd/autograd/ops.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE("an error names the op that was called, not one that it is made of") {
  const Device device = Device::cpu(), other = Device::cpu(1);
  const auto zeros = [&](const Shape& shape, DType dtype) {
    return Var(Tensor::zeros(shape, dtype, device));
  };
  const Var x = zeros({2, 3}, DType::f32), row = zeros({3}, DType::f32), none;
  const Var narrow = zeros({2, 3}, DType::bf16), whole = zeros({2, 3}, DType::i32);
  const Var flag = zeros({2, 3}, DType::boolean), image = zeros({1, 2, 4, 4}, DType::f32);
  const Var far(Tensor::zeros({2, 3}, DType::f32, other));
  const Var far_flag(Tensor::zeros({2, 3}, DType::boolean, other));
  const Tensor ids = Tensor::from(std::vector<int64_t>{0, 9}, {2}, device);
  const Tensor far_ids = Tensor::zeros({2}, DType::i64, other), floats = row.value(), absent;
  const auto product = [](std::span<const Var> a, std::span<const Var> b) {
    return std::vector<Var>{mul(a[0], b[0])};
  };
  const std::pair<const char*, std::function<void()>> rows[] = {
      {"sub", [&] { x - narrow; }},
      {"sub", [&] { whole - 0.5; }},
      {"sub", [&] { 0.5 - whole; }},
      {"sub", [&] { 1 - flag; }},
      {"sub", [&] { none - 1; }},
      {"maximum", [&] { maximum(whole, 0.5); }},
      {"logaddexp", [&] { logaddexp(whole, 1); }},
      {"norm", [&] { norm(whole); }},
      {"norm", [&] { norm(x, 3); }},
      {"norm", [&] { norm(x, INFINITY, 2); }},
      {"max",
       [&] {
         max(zeros({0, 0}, DType::f32), 1);
       }},
      {"reshape", [&] { reshape(x, {-9}); }},
      {"pad", [&] { pad(row, 0, INT64_MAX, 0); }},
      {"slice", [&] { slice(row, {{.step = INT64_MIN}}); }},
      {"neg", [&] { neg(flag); }},
      {"remainder", [&] { remainder(whole, 0.5); }},
      {"div", [&] { div(whole, 0.0); }},
      {"div", [&] { div(0.5, whole); }},
      {"remainder", [&] { remainder(whole, 0.0); }},
      {"where", [&] { where(flag, whole, 0.5); }},
      {"where", [&] { where(far_flag, x, 0.0); }},
      {"masked_fill", [&] { masked_fill(whole, flag, 0.5); }},
      {"masked_fill", [&] { masked_fill(x, far_flag, 1); }},
      {"masked_fill", [&] { masked_fill(x, zeros({4}, DType::boolean), 1); }},
      {"clamp", [&] { clamp(whole, 0.5, 1); }},
      {"clamp", [&] { clamp(flag, 0, 1); }},
      {"relu", [&] { relu(flag); }},
      {"abs", [&] { abs(none); }},
      {"sign", [&] { sign(flag); }},
      {"logical_and", [&] { logical_and(flag, x); }},
      {"logical_and", [&] { logical_and(flag, far_flag); }},
      {"logical_or", [&] { logical_or(flag, zeros({4}, DType::boolean)); }},
      {"logical_not", [&] { logical_not(x); }},
      {"equal", [&] { equal(flag, far_flag); }},
      {"equal", [&] { equal(flag, zeros({4}, DType::boolean)); }},
      {"isnan", [&] { isnan(whole); }},
      {"isfinite", [&] { isfinite(none); }},
      {"rsqrt", [&] { rsqrt(whole); }},
      {"exp2", [&] { exp2(whole); }},
      {"logsigmoid", [&] { logsigmoid(none); }},
      {"elu", [&] { elu(whole); }},
      {"leaky_relu", [&] { leaky_relu(whole); }},
      {"sum", [&] { sum(flag, 2); }},
      {"min", [&] { min(flag); }},
      {"min", [&] { min(x, 2); }},
      {"var", [&] { var(whole); }},
      {"std", [&] { zg::std(whole); }},
      {"std", [&] { zg::std(x, 2); }},
      {"std", [&] { zg::std(row, 0, 3); }},
      {"prod", [&] { prod(flag); }},
      {"prod", [&] { prod(x, 2); }},
      {"any", [&] { any(x); }},
      {"any", [&] { any(flag, 2); }},
      {"all", [&] { all(x); }},
      {"all", [&] { all(flag, 2); }},
      {"all",
       [&] {
         all(flag, {0, 0});
       }},
      {"logsumexp", [&] { logsumexp(x, 2); }},
      {"argmin", [&] { argmin(flag); }},
      {"argmin", [&] { argmin(x, 2); }},
      {"sort", [&] { sort(none); }},
      {"argsort", [&] { argsort(none); }},
      {"argsort", [&] { argsort(flag, 2); }},
      {"topk", [&] { topk(flag, 1); }},
      {"cumsum", [&] { cumsum(flag, 2); }},
      {"cummax", [&] { cummax(flag, 0); }},
      {"cummin", [&] { cummin(flag, 0); }},
      {"cummin", [&] { cummin(x, 2); }},
      {"cumprod", [&] { cumprod(flag, 0); }},
      {"cumprod", [&] { cumprod(x, 2); }},
      {"logcumsumexp", [&] { logcumsumexp(whole, 0); }},
      {"logcumsumexp", [&] { logcumsumexp(x, 2); }},
      {"scan",
       [&] {
         scan({x, row}, 1, product);
       }},
      {"transpose", [&] { transpose(x, 0, 2); }},
      {"unsqueeze", [&] { unsqueeze(x, 4); }},
      {"unsqueeze",
       [&] {
         unsqueeze(zeros({1, 1, 1, 1, 1, 1}, DType::f32), 0);
       }},
      {"squeeze", [&] { squeeze(x, 2); }},
      {"stack",
       [&] {
         stack({x, narrow}, 0);
       }},
      {"stack",
       [&] {
         stack({x, far}, 0);
       }},
      {"stack",
       [&] {
         stack({x, none}, 0);
       }},
      {"concat",
       [&] {
         concat({x, row}, 0);
       }},
      {"repeat", [&] { repeat(x, {1}); }},
      {"repeat",
       [&] {
         repeat(x, {1, -1});
       }},
      {"pad", [&] { pad(x, 2, 0, 0); }},
      {"pad", [&] { pad(whole, 1, 1, 0, 0.5); }},
      {"flip", [&] { flip(x, 2); }},
      {"roll", [&] { roll(x, 1, 2); }},
      {"diag", [&] { diag(image); }},
      {"diag", [&] { diag(x, 4); }},
      {"meshgrid", [&] { meshgrid(std::vector{x}); }},
      {"meshgrid", [&] { meshgrid(std::vector<Var>(7, row)); }},
      {"tril", [&] { tril(row); }},
      {"triu", [&] { triu(none); }},
      {"split",
       [&] {
         split(x, {1, 1}, 1);
       }},
      {"broadcast_to",
       [&] {
         broadcast_to(x, {2, 4});
       }},
      {"slice", [&] { slice(x, 2, 0, 1); }},
      {"slice_scatter", [&] { slice_scatter(x, far, {{}}); }},
      {"slice_scatter", [&] { slice_scatter(x, row, {{}}); }},
      {"index_select", [&] { index_select(x, 2, ids); }},
      {"index_select", [&] { index_select(x, 0, ids); }},
      {"index_select", [&] { index_select(x, 0, far_ids); }},
      {"index_select", [&] { index_select(x, 0, floats); }},
      {"index_select", [&] { index_select(x, 0, absent); }},
      {"index_add", [&] { index_add(x, 0, ids, x); }},
      {"index_add", [&] { index_add(x, 0, far_ids, x); }},
      {"index_add", [&] { index_add(x, 0, ids, far); }},
      {"index_add", [&] { index_add(flag, 0, ids, flag); }},
      {"take", [&] { take(x, ids); }},
      {"take", [&] { take(x, floats); }},
      {"take", [&] { take(x, far_ids); }},
      {"take", [&] { take(none, ids); }},
      {"gather", [&] { gather(row, 0, ids); }},
      {"scatter_add", [&] { scatter_add(row, 0, ids, row); }},
      {"nonzero", [&] { nonzero(none); }},
      {"masked_select", [&] { masked_select(x, x); }},
      {"masked_select", [&] { masked_select(x, zeros({4}, DType::boolean)); }},
      {"one_hot", [&] { one_hot(floats, 3); }},
      {"one_hot", [&] { one_hot(absent, 3); }},
      {"arange", [&] { arange(0, 300, DType::u8, device); }},
      {"linspace", [&] { linspace(0, 1, -1, DType::f32, device); }},
      {"linspace", [&] { linspace(-3, 300, 3, DType::u8, device); }},
      {"linspace", [&] { linspace(0, NAN, 3, DType::i32, device); }},
      {"eye", [&] { eye(-1, 2, DType::f32, device); }},
      {"diag", [&] { diag(row, INT64_MAX); }},
      {"diag", [&] { diag(x, INT64_MIN); }},
      {"full_like", [&] { full_like(absent, 1); }},
      {"full_like", [&] { full_like(ids, 0.5); }},
      {"one_hot",
       [&] {
         one_hot(Tensor::zeros({1, 1, 1, 1, 1, 1}, DType::i64, device), 2);
       }},
      {"multinomial", [&] { multinomial(whole.value(), 1, true, 1, "draw"); }},
      {"matmul", [&] { matmul(x, x); }},
      {"einsum",
       [&] {
         einsum("ij,jk->ik", {x, x});
       }},
      {"einsum",
       [&] {
         einsum("ij,ij->i", {x, narrow});
       }},
      {"einsum",
       [&] {
         einsum("ij,ij->i", {x, far});
       }},
      {"einsum",
       [&] {
         einsum("ij,kj->ik", {x, far});
       }},
      {"einsum", [&] { einsum("abcdefg->a", {image}); }},
      {"tensordot", [&] { tensordot(x, whole, 1, 0); }},
      {"tensordot", [&] { tensordot(whole, whole, 1, 1); }},
      {"tensordot", [&] { tensordot(x, x, 1, 0); }},
      {"tensordot", [&] { tensordot(x, far, 1, 1); }},
      {"tensordot", [&] { tensordot(x, x, 2, 1); }},
      {"tensordot",
       [&] {
         tensordot(x, x, {1, 1}, {1, 0});
       }},
      {"tensordot",
       [&] {
         tensordot(x, zeros({2, 2}, DType::f32), {0, 0}, {0, 1});
       }},
      {"einsum",
       [&] {
         einsum("abcd,efgh->abcdefgh", {image, image});
       }},
      {"dot", [&] { dot(row, x); }},
      {"dot", [&] { dot(row, zeros({1}, DType::f32)); }},
      {"dot", [&] { dot(row, far); }},
      {"outer", [&] { outer(x, row); }},
      {"outer", [&] { outer(row, none); }},
      {"outer", [&] { outer(row, zeros({3}, DType::bf16)); }},
      {"outer", [&] { outer(whole, whole); }},
      {"gated_feed_forward", [&] { gated_feed_forward(x, x, x, row); }},
      {"embedding",
       [&] {
         embedding(ids.view({1, 2}), x);
       }},
      {"cross_entropy", [&] { cross_entropy(x, floats); }},
      {"cross_entropy", [&] { cross_entropy(whole, ids, {.label_smoothing = 0.5}); }},
      {"cross_entropy", [&] { cross_entropy(x, ids, {.label_smoothing = 0.5}); }},
      {"binary_cross_entropy", [&] { binary_cross_entropy(x, row); }},
      {"kl_divergence", [&] { kl_divergence(x, far); }},
      {"mse", [&] { mse(x, narrow); }},
      {"conv1d", [&] { conv1d(x, row); }},
      {"conv1d",
       [&] {
         const Var line = zeros({1, 1, 4}, DType::f32);
         conv1d(line, line, {}, {.padding = INT64_MAX});
       }},
      {"conv2d", [&] { conv2d(image, x); }},
      {"conv_transpose1d", [&] { conv_transpose1d(x, row); }},
      {"conv_transpose2d", [&] { conv_transpose2d(image, x); }},
      {"avg_pool1d", [&] { avg_pool1d(whole, 2); }},
      {"avg_pool2d", [&] { avg_pool2d(whole, 2); }},
      {"max_pool1d", [&] { max_pool1d(whole, 2); }},
      {"max_pool1d",
       [&] {
         max_pool1d(zeros({1, 1, 4}, DType::f32), 2, INT64_MAX);
       }},
      {"max_pool2d", [&] { max_pool2d(image, 9); }},
      {"group_norm", [&] { group_norm(image, 3); }},
      {"group_norm", [&] { group_norm(image, 2, row); }},
      {"group_norm",
       [&] { group_norm(image, 1, Var(), Var(Tensor::zeros({2}, DType::f32, other))); }},
      {"attention", [&] { attention(x, 3); }},
      {"dropout", [&] { dropout(whole, 0.5f, {}); }},
      {"rope", [&] { rope(x, 1, floats); }},
  };
  for (const auto& [name, call] : rows) {
    const std::string message = message_of<Error>(call);
    CHECK_MESSAGE(message.starts_with(std::string(name) + ": "), name, " got ", message);
  }
}
