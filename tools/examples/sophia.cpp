// An optimizer that reads the curvature (Sophia, Liu et al. 2023, arXiv:2305.14342): every few
// steps a Hessian-vector product u * (H u) with a random u of signs estimates the Hessian's
// diagonal (Hutchinson), and each step is the averaged gradient over it, limited to 1. The model is
// a block of a GPT whose attention is made of ops that have second derivatives. Planned, then run.
//   sophia [FOLDER]    also writes the first weights, batch and products there
#include <cmath>
#include <cstdio>
#include <string>

#include "zerograd/autograd/grad.h"
#include "zerograd/autograd/values.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/models/nn.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/tensor_files.h"

namespace {

using namespace zg;

constexpr int64_t vocabulary = 8, period = 4, tokens = 12, rows = 16, width = 32, steps = 150;
constexpr uint64_t every = 5;  // steps between estimates of the curvature

/// One block: x is the sum of token and position, then attention and a layer beside it.
struct Block : nn::Module {
  nn::Embedding ids{this, "ids", {.tokens = vocabulary, .width = width, .stddev = 0.3f}};
  nn::Embedding places{this, "places", {.tokens = tokens, .width = width, .stddev = 0.3f}};
  nn::Linear qkv{this, "qkv", {.in = width, .out = 3 * width, .stddev = 0.15f}};
  nn::Linear mixed{this, "mixed", {.in = width, .out = width, .stddev = 0.15f}};
  nn::Norm norm{this, "norm", {.width = width}};
  nn::Linear head{this, "head", {.in = width, .out = vocabulary, .stddev = 0.15f}};

  Var operator()(const Tape& tape, const Tensor& batch) const {
    const Device device = tape.device();
    const Tensor order = arange(0, tokens, DType::i32, device).view({1, tokens});
    const Var place = places(tape.constant(order)), token = ids(tape.constant(batch));
    Var x = token + place;
    const std::vector<Var> parts = split(qkv(x), {width, width, width}, 2);
    const Var scores = matmul(parts[0], transpose(parts[1], 1, 2)) * (1.0 / std::sqrt(width));
    const Var later = greater(order, order.view({tokens, 1}));
    const Var weights = softmax(masked_fill(scores, later, -1e9));
    x = x + mixed(matmul(weights, parts[2]));
    return head(norm(x));
  }
};

Tensor repeating_rows(uint64_t step, const Device& device) {
  std::vector<int32_t> ids;
  models::RandomStream random(1, "rows", step);
  for (int64_t i = 0; i < rows * tokens; ++i)
    ids.push_back(i % tokens < period ? static_cast<int32_t>(random.below(vocabulary))
                                      : ids[ids.size() - period]);
  return Tensor::from(ids, {rows, tokens}, device);
}

Var loss_of(const Block& model, const Tape& tape, const Tensor& batch) {
  const Var logits = slice(model(tape, batch), 1, period - 1, tokens - 1);
  return cross_entropy(logits, slice(batch, 1, period, tokens).value());
}

void average_in(Tensor& average, const Var& value, double decay) {
  average = average ? (decay * Var(average) + (1.0 - decay) * value).value() : value.value();
}

double train(const Device& device, const std::string& folder) {
  const Block model;
  Values values(model.store(), initial_weights(model.store(), 1), device);
  const auto& parameters = model.store().parameters();
  std::vector<Tensor> momentum(parameters.size()), curvature(parameters.size());
  double loss_value = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    const Tensor batch = repeating_rows(step, device);
    const Tape tape = values.tape();
    std::vector<Var> weights, signs;
    for (const auto& p : parameters) weights.push_back(tape.parameter(*p));
    const Var loss = loss_of(model, tape, batch);
    const bool looks = step % every == 0;
    const std::vector<Var> slopes = grad({&loss, 1}, weights, {.create_graph = looks});
    if (looks) {
      for (const auto& p : parameters) {
        const Var coin = bernoulli(p->shape, 0.5, step, p->name, DType::f32, device);
        signs.push_back(2.0 * coin - 1.0);
      }
      const std::vector<Var> products = grad(slopes, weights, {.cotangents = signs});
      NamedTensors at = values.tensors(), found;
      for (size_t i = 0; i < parameters.size(); ++i) {
        average_in(curvature[i], relu(Var(products[i].value()) * signs[i]), 0.9);
        at[parameters[i]->name + ".sign"] = signs[i].value();
        found[parameters[i]->name] = products[i].value();
      }
      if (step == 0 && !folder.empty()) {
        save_safetensors(folder + "/sophia.weights.safetensors", at);
        save_safetensors(folder + "/sophia.batch.safetensors", {{"ids", batch}});
        save_safetensors(folder + "/sophia.gradients.safetensors", found);
      }
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      average_in(momentum[i], slopes[i].value(), 0.9);
      const Var scale = clamp(0.05 * Var(curvature[i]), 1e-6, 1e30);
      const Var move = clamp(Var(momentum[i]) / scale, -1.0, 1.0);
      values.set(*parameters[i], (Var(values.value(*parameters[i])) - 0.003 * move).value());
    }
    loss_value = loss.value().item();
  }
  return loss_value;
}

}  // namespace

int main(int argc, char** argv) {
  double loss = 0;
  const Program program = [&](Communicator&, const Device& device) {
    loss = train(device, argc > 1 ? argv[1] : "");
  };
  const Plan plan = plan_ranks(1, program);
  run_ranks(1, program, {.expect = &plan});
  std::printf("sophia: loss %.4f after %d steps; %.4f by guessing\n", loss, static_cast<int>(steps),
              std::log(vocabulary));
  return loss < 0.2 ? 0 : 1;
}
