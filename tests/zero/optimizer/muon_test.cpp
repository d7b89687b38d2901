// Tests of Muon: the Newton-Schulz iteration, agreement with PyTorch, saved moments.
#include "zerograd/zero/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/matrix_toy.h"
#include "tests/zero/optimizer/torch_steps.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/states/partition.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::MuonRate;
using zero::UpdateOptions;
using State = zero::Engine::State;

namespace {

const UpdateOptions muon = {.rule = OptimizerRule::muon};

/// The Newton-Schulz iteration in double with simple loops. Unlike orthogonalise(), it does not
/// transpose a tall matrix.
std::vector<double> plain_orthogonal(std::vector<double> x, size_t rows, size_t columns) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::max(std::sqrt(squares), 1e-7);
  for (int i = 0; i < 5; ++i) {
    std::vector<double> gram(rows * rows), square(rows * rows), next(x.size());
    for (size_t r = 0; r < rows; ++r)
      for (size_t s = 0; s < rows; ++s)
        for (size_t c = 0; c < columns; ++c)
          gram[r * rows + s] += x[r * columns + c] * x[s * columns + c];
    for (size_t r = 0; r < rows; ++r)
      for (size_t s = 0; s < rows; ++s)
        for (size_t k = 0; k < rows; ++k)
          square[r * rows + s] += gram[r * rows + k] * gram[k * rows + s];
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) {
        next[r * columns + c] = 3.4445 * x[r * columns + c];
        for (size_t k = 0; k < rows; ++k)
          next[r * columns + c] +=
              (-4.775 * gram[r * rows + k] + 2.0315 * square[r * rows + k]) * x[k * columns + c];
      }
    x = next;
  }
  return x;
}

double norm_of(const std::vector<double>& x) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE("Newton-Schulz agrees with a plain double-precision iteration for every matrix shape") {
  for (const auto& shape :
       {std::pair{1, 1}, {1, 12}, {12, 1}, {5, 31}, {31, 5}, {16, 16}, {64, 100}, {230, 200}})
    for (const auto& [dtype, compute] : {std::pair{DType::f32, DType::f32},
                                         {DType::bf16, DType::f32},
                                         {DType::f32, DType::f16},
                                         {DType::f32, DType::bf16}}) {
      const int rows = shape.first, columns = shape.second;
      INFO("rows ", rows, ", columns ", columns, ", ", name_of(dtype), ", ", name_of(compute));
      const Tensor matrix = random_tensor({rows, columns}, dtype, Device::cpu(), 7, -3, 3);
      const std::vector<double> before = matrix.to_doubles();
      zero::orthogonalise(matrix, norm_of(before), 0.5, Device::cpu().compute(), compute);
      const std::vector<double> after = matrix.to_doubles();
      const std::vector<double> expected =
          plain_orthogonal(before, static_cast<size_t>(rows), static_cast<size_t>(columns));
      double worst = 0.0;
      for (size_t i = 0; i < after.size(); ++i)
        worst = std::max(worst, std::abs(after[i] - 0.5 * expected[i]));
      CHECK(worst <= (compute == DType::bf16 ? 1.5e-2 : dtype == DType::bf16 ? 4e-3 : 1e-5));
      // Every singular value is at least 0.65, times the factor 0.5.
      CHECK(norm_of(after) >= 0.5 * 0.65 * std::sqrt(std::min(rows, columns)));
    }
  const Tensor zeros = Tensor::zeros({3, 4}, DType::f32, Device::cpu());
  zero::orthogonalise(zeros, 0.0, 1.0, Device::cpu().compute());
  CHECK(norm_of(zeros.to_doubles()) == 0.0);
}

TEST_CASE("Newton-Schulz has the same bits for any number of threads") {
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    const Device device = Device::cpu(0, {.threads = threads});
    const Tensor matrix = random_tensor({300, 170}, DType::f32, device, 3, -1, 1);
    zero::orthogonalise(matrix, 130.0, 1.0, device.compute());  // the Frobenius norm is about 130
    results.push_back(matrix.to_host<float>());
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("muon steps agree with torch.optim.Muon within its rounding") {
  const nlohmann::json fixture = torch_fixture("muon.json");
  const std::pair<const char*, zero::MuonOptions> variants[] = {
      {"original", {.rate = MuonRate::original}},
      {"match_rms_adamw", {}},
      {"plain", {.momentum = 0.5f, .nesterov = false, .rate = MuonRate::original}}};
  for (const auto& variant : variants) {
    const std::string name = variant.first;
    CAPTURE(name);
    UpdateOptions update = muon;
    update.muon = variant.second;
    update.weight_decay = fixture["weight_decay"];
    TorchSteps steps(fixture, MatrixToy::matrix(true), update, fixture["rate"]);
    const auto& [store, matrices, engine] = steps;
    for (size_t i = 0; i < matrices.size(); ++i) {
      CAPTURE(i);
      const std::vector<float> ours = engine.read(*matrices[i], State::master);
      const std::vector<float> moment = engine.read(*matrices[i], State::moment1);
      // The five optimizer steps change an element by 0.1 and more.
      CHECK(difference(ours, fixture["results"][name][i]) <= 1e-5);
      CHECK(difference(moment, fixture["results"][name + ", moments"][i]) <= 1e-5);
      // Unmodified PyTorch iterates in bf16. The other results come from PyTorch changed to f32.
      CHECK(difference(ours, fixture["bfloat16"][name][i]) <= 4e-3);
    }
  }
}

TEST_CASE(
    "muon updates parameters that are no hidden matrices with adam at adam_rate times the rate") {
  const MatrixToy toy;
  UpdateOptions update = muon;
  update.muon.adam_rate = 0.5f;
  Engine engine(toy.store, Device::cpu(), {.update = update, .clip_norm = 0.0f});
  Engine adam(toy.store, Device::cpu(), {.clip_norm = 0.0f});
  for (int step = 0; step < 3; ++step) {
    train_step(engine, step, 1e-2f);
    train_step(adam, step, 0.5f * 1e-2f);
  }
  for (const Parameter* parameter : {&toy.bias, &toy.table, &toy.gain})
    for (const State& state : {State::master, State::moment1, State::moment2})
      CHECK(engine.read(*parameter, state) == adam.read(*parameter, state));
  for (const Parameter* parameter : {&toy.wide, &toy.tall, &toy.plain, &toy.alone})
    CHECK(engine.read(*parameter, State::master) != adam.read(*parameter, State::master));
}

TEST_CASE("muon keeps, saves and loads one moment per matrix and two per other parameter") {
  const int64_t matrices = 5 * 31 + 40 * 24 + 24 * 24 + 9 * 17, others = 7 + 5 * 20 + 129;
  for (const int ranks : {1, 3}) {
    const TemporaryFolder folder;
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      const MatrixToy toy;
      Engine engine(toy.store, comm, device,
                    {.stage = ranks > 1 ? 1 : 0, .compute = DType::bf16, .update = muon});
      if (ranks == 1) CHECK(engine.resting_bytes().optimizer == (2 * matrices + 3 * others) * 4);
      train_step(engine, 0);
      CHECK(engine.read(toy.tall, State::moment1).size() == 40 * 24);
      CHECK(engine.read(toy.tall, State::moment2).empty());
      CHECK(engine.read(toy.table, State::moment2).size() == 5 * 20);
      zero::save_checkpoint(folder.path(), engine, {.steps = 1, .micro_batches = 2 * ranks});
      // Loads on one rank at stage 0. After 3 ranks, both differ from the save. The states must be
      // the saved ones.
      Engine loaded(toy.store, device, {.update = muon});
      zero::load_checkpoint(folder.path(), loaded);
      for (const Parameter* parameter : {&toy.table, &toy.tall, &toy.gain})
        for (const State& state : {State::master, State::moment1, State::moment2})
          CHECK(loaded.read(*parameter, state) == engine.read(*parameter, state));
    });
    const auto reader = zero::open_checkpoint(folder.path());
    CHECK(reader->damages().empty());
    CHECK(reader->manifest().optimizer == "muon");
    const auto has = [&](const std::string& parameter, const std::string& state) {
      const auto& pieces = reader->manifest().pieces;
      return std::ranges::any_of(pieces, [&](const auto& piece) {
        return piece.parameter == parameter && piece.state == state;
      });
    };
    CHECK(has("tall", "moment1"));
    CHECK(!has("tall", "moment2"));
    CHECK(has("gain", "moment2"));
    const MatrixToy toy;
    Engine adam(toy.store, Device::cpu());
    // The moments are the same; the optimizer differs.
    CHECK(contains(message_of<ConfigError>([&] { zero::load_checkpoint(folder.path(), adam); }),
                   "was saved by muon with moment1 and moment2; expected adamw with moment1 and"));
  }
}

TEST_CASE("a checkpoint of muon is loaded with its own parameter groups alone") {
  UpdateOptions grouped = muon;
  grouped.groups = {{.pattern = "tall", .by_adam = true}};
  const auto path = [](const TemporaryFolder& folder) { return folder.path() + "/step_1"; };
  for (const auto& [saved, loaded, there, expected] :
       {std::tuple(grouped, muon, "master and moment1 and moment2", "master and moment1"),
        std::tuple(muon, grouped, "master and moment1", "master and moment1 and moment2")}) {
    const TemporaryFolder folder;
    const MatrixToy toy;
    Engine engine(toy.store, Device::cpu(), {.update = saved});
    train_step(engine, 0);
    zero::save_checkpoint(folder.path(), engine, {.steps = 1, .micro_batches = 2});
    Engine other(toy.store, Device::cpu(), {.update = loaded});
    CHECK(message_of<ConfigError>([&] { zero::load_checkpoint(folder.path(), other); }) ==
          "load: " + path(folder) + ": tall has " + there + " there; expected " + expected +
              ", which its optimizer has as the parameter groups say here; try the "
              "parameter groups that it was saved with, or load its weights alone (--init)");
    zero::load_weights(folder.path(), other);
    Engine same(toy.store, Device::cpu(), {.update = saved});
    zero::load_checkpoint(folder.path(), same);
    CHECK(same.parameter_hash() == engine.parameter_hash());
  }
}

TEST_CASE("owners_of_matrices gives each matrix one rank, by sizes alone, and balances the work") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  for (const int64_t rows : {16, 64, 32, 16, 64})
    store.add(unit, "m" + std::to_string(store.parameters().size()), {rows, 64}, Init::zeros(),
              MatrixToy::matrix(true));
  const auto owners = [&](int world) {
    return zero::owners_of_matrices(
        zero::FlatUnit::of(unit.parameters, zero::FlatUnit::Part::trainable, world,
                           zero::Optimizers({.rule = OptimizerRule::muon})));
  };
  CHECK(owners(1) == std::vector<int>{0, 0, 0, 0, 0});
  CHECK(owners(2) == std::vector<int>{1, 0, 0, 1, 1});
  CHECK(owners(3) == std::vector<int>{2, 0, 2, 2, 1});
}

TEST_CASE("muon refuses parameters that it does not support") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  CHECK(message_of<ShapeError>([&] {
          store.add(unit, "v", {7}, Init::zeros(), {.hidden_matrix = true});
        }) == "add: parameter 'v' [7] is a hidden matrix; expected rank 2");
  store.add(unit, "half", {2, 5}, Init::zeros(),
            {.hidden_matrix = true,
             .whole = {4, 5},
             .slice = Slice{.extent = 4, .begin = 2, .rows = 2, .inner = 5}});
  CHECK(message_of<Unsupported>([&] { Engine engine(store, Device::cpu(), {.update = muon}); }) ==
        "engine: the optimizer is muon, and tensor ranks divide the parameter 'half' [4, 5]: this "
        "one has [2, 5]; expected whole parameters; try one tensor rank, or data and pipeline "
        "ranks");
  CHECK_NOTHROW(Engine adam(store, Device::cpu()));
}
