// A convolutional network that reads digits: drawn by a font of 5 x 7 dots, shifted and with noise,
// or MNIST's, of its unpacked IDX files of training. Planned, then run.
//   digits [FOLDER [IMAGES LABELS]]   also writes the first weights, batch and gradients to FOLDER
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "zerograd/autograd/convolution.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/values.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/tensor_files.h"
#include "zerograd/zero/values_optimizer.h"

namespace {

using namespace zg;

constexpr int64_t batch = 32, steps = 200;

/// The dots of a digit, five bits for each row.
constexpr uint64_t font[10] = {0x3a33ae62e, 0x11842108e, 0x3a213221f, 0x3a213062e, 0x08ca97c42,
                               0x7e1e0862e, 0x1910f462e, 0x7c2222108, 0x3a317462e, 0x3a317844c};
struct Images {
  int64_t size;  ///< rows, and columns
  std::vector<uint8_t> pixels, labels;
};

Images drawn() {
  Images images{12, {}, {}};
  for (uint64_t sample = 0; sample < batch * steps; ++sample) {
    models::RandomStream random(1, "digits", sample);
    const int64_t digit = random.below(10), down = random.below(5), right = random.below(6);
    for (int64_t row = -down; row < 12 - down; ++row)
      for (int64_t column = -right; column < 12 - right; ++column) {
        const bool inside = row >= 0 && row < 7 && column >= 0 && column < 5;
        const bool dot = inside && (font[digit] >> (34 - 5 * row - column) & 1) != 0;
        images.pixels.push_back(static_cast<uint8_t>((dot ? 160 : 0) + random.below(96)));
      }
    images.labels.push_back(static_cast<uint8_t>(digit));
  }
  return images;
}

/// MNIST's files: headers of 16 and 8 bytes, then a byte for each pixel and label.
Images read(const char* images, const char* labels) {
  const auto bytes = [](const char* path, int64_t header, int64_t count) {
    std::ifstream file(path, std::ios::binary);
    std::vector<uint8_t> all{std::istreambuf_iterator<char>(file), {}};
    if (std::ssize(all) < header + count)
      throw FileError(std::string(path) + ": expected an unpacked IDX file of MNIST");
    return std::vector<uint8_t>(all.begin() + header, all.end());
  };
  return {28, bytes(images, 16, batch * steps * 28 * 28), bytes(labels, 8, batch * steps)};
}

struct Net {
  ParameterStore store;
  const Unit& unit = store.unit("net");
  const Parameter& first = store.add(unit, "first.weight", {8, 1, 3, 3}, Init::normal(0.3f));
  const Parameter& first_bias = store.add(unit, "first.bias", {8}, Init::zeros());
  const Parameter& second = store.add(unit, "second.weight", {16, 8, 3, 3}, Init::normal(0.15f));
  const Parameter& gamma = store.add(unit, "norm.weight", {16}, Init::ones());
  const Parameter& beta = store.add(unit, "norm.bias", {16}, Init::zeros());
  const Parameter& head = store.add(unit, "head.weight", {10, 16 * 9}, Init::normal(0.05f));

  /// x [B, 1, H, H]: the logits [B, 10].
  Var operator()(Tape& tape, const Var& x) const {
    const auto value = [&](const Parameter& parameter) { return tape.parameter(parameter); };
    const Var edges = relu(conv2d(x, value(first), value(first_bias), {.padding = 1}));
    const Var shapes = conv2d(max_pool2d(edges, 2), value(second), {}, {.padding = 1});
    const Var normed = relu(group_norm(shapes, 4, value(gamma), value(beta)));
    const Var pooled = max_pool2d(normed, normed.shape()[-1] / 3);  // [B, 16, 3, 3]
    return linear(reshape(pooled, {batch, -1}), value(head));
  }
};

double train(const Device& device, const std::string& folder, const Images& images) {
  const Net net;
  Values values(net.store, initial_weights(net.store, 1), device);
  zero::ValuesOptimizer optimizer(values, {.weight_decay = 0});
  double correct = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t pixels = batch * images.size * images.size;
    const auto labels = images.labels.begin() + step * batch;
    const auto begin = images.pixels.begin() + step * pixels;
    const Tensor ids = Tensor::from(std::vector<int64_t>(labels, labels + batch), {batch}, device);
    const Tensor x = Tensor::from(std::vector<float>(begin, begin + pixels),
                                  {batch, 1, images.size, images.size}, device);
    Tape tape = values.tape();
    const Var logits = net(tape, tape.constant(x) * (1.0 / 255));
    const Var is_correct = cast(equal(argmax(logits), Var(ids)), DType::f32);
    if (step >= steps - 10) correct += mean(is_correct).value().item() / 10;  // of new digits
    tape.backward(cross_entropy(logits, ids));
    if (step == 0 && !folder.empty()) {
      values.save(folder + "/digits.weights.safetensors");
      save_safetensors(folder + "/digits.batch.safetensors", {{"x", x}, {"labels", ids}});
      save_safetensors(folder + "/digits.gradients.safetensors", values.gradients());
    }
    optimizer.step(0.01f);
  }
  return correct;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  const Images images = argc > 3 ? read(argv[2], argv[3]) : drawn();
  double correct = 0;
  const auto program = [&](auto&, const Device& on) { correct = train(on, folder, images); };
  const Plan plan = plan_ranks(1, program);
  run_ranks(1, program, {.expect = &plan});
  std::printf("digits: %.1f %% of new digits are right; expected 90\n", 100 * correct);
  return correct >= 0.9 ? 0 : 1;
}
