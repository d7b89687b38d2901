// Times ops for op_table: op_times ROW THREADS prints the median seconds of a call, and of a call
// with its gradients.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "zerograd/autograd/convolution.h"
#include "zerograd/autograd/ops.h"

using namespace zg;

namespace {

struct Row {
  std::vector<Shape> shapes;
  std::function<Var(std::span<const Var>)> function;
};

/// The places of index_add.
Tensor places(const Device& device) {
  std::vector<int64_t> places(8192);
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(i) * 7919 % 1000;
  return Tensor::from(places, {8192}, device);
}

/// The rows of op_table, by name.
const std::map<std::string, Row> rows = {
    {"depthwise conv1d",
     {{{8, 1536, 1024}, {1536, 1, 4}, {1536}},
      [](auto in) { return conv1d(in[0], in[1], in[2], {.groups = 1536, .causal = true}); }}},
    {"conv2d 3x3, 64 channels",
     {{{8, 64, 56, 56}, {64, 64, 3, 3}, {64}},
      [](auto in) { return conv2d(in[0], in[1], in[2], {.padding = 1}); }}},
    {"conv2d 3x3, 128 channels",
     {{{8, 128, 28, 28}, {128, 128, 3, 3}, {128}},
      [](auto in) { return conv2d(in[0], in[1], in[2], {.padding = 1}); }}},
    {"conv2d 4x4, stride 2",
     {{{8, 64, 56, 56}, {128, 64, 4, 4}},
      [](auto in) { return conv2d(in[0], in[1], {}, {.stride = 2, .padding = 1}); }}},
    {"conv_transpose2d 4x4, stride 2",
     {{{8, 128, 28, 28}, {128, 64, 4, 4}},
      [](auto in) { return conv_transpose2d(in[0], in[1], {}, {.stride = 2, .padding = 1}); }}},
    {"max_pool2d 3x3", {{{8, 64, 56, 56}}, [](auto in) { return max_pool2d(in[0], 3, 2, 1); }}},
    {"group_norm", {{{8, 64, 56, 56}}, [](auto in) { return group_norm(in[0], 8); }}},
    {"softmax, axis 1", {{{64, 512, 96}}, [](auto in) { return softmax(in[0], 1); }}},
    {"softmax, last axis", {{{6144, 512}}, [](auto in) { return softmax(in[0], 1); }}},
    {"log_softmax, last axis", {{{2048, 1024}}, [](auto in) { return log_softmax(in[0], 1); }}},
    {"where x < 0",
     {{{2048, 1024}, {2048, 1024}}, [](auto in) { return where(less(in[0], 0.0), in[0], in[1]); }}},
    {"clamp", {{{2048, 1024}}, [](auto in) { return clamp(in[0], -1.0, 1.0); }}},
    {"elu", {{{2048, 1024}}, [](auto in) { return elu(in[0]); }}},
    {"softplus", {{{2048, 1024}}, [](auto in) { return softplus(in[0]); }}},
    {"add of 64 elements", {{{64}, {64}}, [](auto in) { return in[0] + in[1]; }}},
    {"mean of rows of 49", {{{32768, 49}}, [](auto in) { return mean(in[0], {1}); }}},
    {"sum of rows of 196", {{{8192, 196}}, [](auto in) { return sum(in[0], {1}); }}},
    {"max of rows of 49", {{{32768, 49}}, [](auto in) { return max(in[0], {1}); }}},
    {"sum, axis 0", {{{8192, 768}}, [](auto in) { return sum(in[0], {0}); }}},
    {"max, last axis", {{{2048, 1024}}, [](auto in) { return max(in[0], {1}); }}},
    {"permute 0 2 1 3",
     {{{16, 256, 12, 64}},
      [](auto in) {
        return permute(in[0], {0, 2, 1, 3});
      }}},
    {"einsum bthd,bshd->bhts",
     {{{4, 256, 12, 64}, {4, 256, 12, 64}}, [](auto in) { return einsum("bthd,bshd->bhts", in); }}},
    {"attention of 12 transposed heads",
     {{{4, 256, 12, 64}, {4, 256, 12, 64}, {4, 256, 12, 64}},
      [](auto in) {
        const Var q = transpose(in[0], 1, 2), k = transpose(in[1], 1, 2);
        const Var scores = matmul(q, transpose(k, 2, 3));
        return matmul(softmax(scores), transpose(in[2], 1, 2));
      }}},
    {"sort 1024x1024, axis 1", {{{1024, 1024}}, [](auto in) { return sort(in[0], 1).values; }}},
    {"sort 1048576", {{{1048576}}, [](auto in) { return sort(in[0]).values; }}},
    {"cumsum 1024x1024, axis 1", {{{1024, 1024}}, [](auto in) { return cumsum(in[0], 1); }}},
    {"cumsum 1024x1024, axis 0", {{{1024, 1024}}, [](auto in) { return cumsum(in[0], 0); }}},
    {"cummax 1024x1024, axis 1", {{{1024, 1024}}, [](auto in) { return cummax(in[0], 1).values; }}},
    {"cummax 1024x1024, axis 0", {{{1024, 1024}}, [](auto in) { return cummax(in[0], 0).values; }}},
    {"index_add 8192x256 to 1000",
     {{{1000, 256}, {8192, 256}},
      [](auto in) { return index_add(in[0], 0, places(in[0].value().device()), in[1]); }}},
};

/// For about a third of a second.
double median_seconds(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  run();
  std::vector<double> seconds;
  for (double total = 0; total < 0.3 || seconds.size() < 5; total += seconds.back()) {
    const auto begin = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const auto row = argc == 3 ? rows.find(argv[1]) : rows.end();
  if (row == rows.end()) return std::fprintf(stderr, "usage: op_times ROW THREADS\n"), 2;
  const Device device = Device::cpu(0, {.threads = std::atoi(argv[2])});
  const auto& [shapes, function] = row->second;
  std::vector<Tensor> tensors;
  for (const Shape& shape : shapes)
    tensors.push_back(randn(shape, tensors.size(), "x", DType::f32, device));
  const std::vector<Var> constants(tensors.begin(), tensors.end());
  const Tensor dy = randn(function(constants).shape(), 9, "dy", DType::f32, device);
  const double forward = median_seconds([&] { function(constants).value(); });
  const double both = median_seconds([&] {
    Tape tape(device);
    std::vector<Var> in;
    for (const Tensor& tensor : tensors) in.push_back(tape.variable(tensor));
    const Var y = function(in);
    y.value();  // permute copies here
    tape.backward({&y, 1}, {&dy, 1});
  });
  std::printf("%.9f %.9f\n", forward, both);
}
