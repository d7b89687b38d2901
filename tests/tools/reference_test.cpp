#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/tools/command.h"
#include "zerograd/runtime/storage/safetensors.h"

// The command against what PyTorch computed from the same weights and batches; the fixtures are
// made by tests/reference/make_fixtures.py.
using namespace zg;
using namespace zg::testing;

namespace {

const std::string fixtures = ZG_FIXTURES;

struct Run {
  std::vector<double> losses;
  std::string gradients;  // path
};

Run train_reference(const std::string& name, const std::string& flags) {
  const std::string prefix =
      (std::filesystem::temp_directory_path() / ("zerograd_reference_" + name)).string();
  const Run run{{}, prefix + ".safetensors"};
  const Outcome outcome = checked(zerograd(
      "train --data " + fixtures + "tokens.bin --order sequential --init " + fixtures +
      "weights.safetensors --n-layer 4 --n-head 4 --n-embd 128 --vocab-size 256 --block-size 64 "
      "--batch-size 8 --steps 20 --lr 5e-4 --dropout 0 --metrics " +
      prefix + ".jsonl --dump-gradients " + run.gradients + " " + flags));
  Run result = run;
  for (const nlohmann::json& line : json_lines(prefix + ".jsonl"))
    if (line.contains("loss")) result.losses.push_back(line.at("loss").get<double>());
  return result;
}

std::vector<double> reference_losses() {
  return nlohmann::json::parse(read_file(fixtures + "losses.json"))
      .at("losses")
      .get<std::vector<double>>();
}

double worst_relative(const std::vector<double>& losses) {
  const std::vector<double> expected = reference_losses();
  REQUIRE(losses.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < losses.size(); ++i)
    worst = std::max(worst, std::fabs(losses[i] - expected[i]) / expected[i]);
  return worst;
}

struct Comparison {
  double relative_norm = 0, cosine = 1;  // the worst over all parameters
};

Comparison compare_gradients(const std::string& path) {
  const SafetensorsReader ours(path), theirs(fixtures + "gradients.safetensors");
  REQUIRE(ours.entries().size() == theirs.entries().size());
  Comparison worst;
  for (const auto& [name, entry] : theirs.entries()) {
    const std::vector<float> a = ours.read_floats(name), b = theirs.read_floats(name);
    REQUIRE(a.size() == b.size());
    double difference = 0, aa = 0, bb = 0, ab = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
      aa += double{a[i]} * a[i];
      bb += double{b[i]} * b[i];
      ab += double{a[i]} * b[i];
    }
    worst.relative_norm = std::max(worst.relative_norm, std::sqrt(difference / bb));
    worst.cosine = std::min(worst.cosine, ab / std::sqrt(aa * bb));
  }
  return worst;
}

}  // namespace

TEST_CASE("in f32, gradients of the first step and 20 losses agree with PyTorch's to 1e-4") {
  for (const std::string flags : {"", "--activation-checkpoint"}) {
    CAPTURE(flags);
    const Run run = train_reference("f32", "--precision f32 " + flags);
    const Comparison gradients = compare_gradients(run.gradients);
    MESSAGE("f32: worst relative norm of a gradient " << gradients.relative_norm
                                                      << ", worst relative loss difference "
                                                      << worst_relative(run.losses));
    CHECK(gradients.relative_norm < 1e-4);
    CHECK(worst_relative(run.losses) < 2e-5);
  }
}

TEST_CASE(
    "in bf16, the first step's gradients have a cosine of 0.999 with PyTorch's, and 20 losses "
    "agree to 2%") {
  for (const std::string flags : {"", "--activation-checkpoint"}) {
    CAPTURE(flags);
    const Run run = train_reference("bf16", "--precision bf16 " + flags);
    const Comparison gradients = compare_gradients(run.gradients);
    MESSAGE("bf16: worst cosine of a gradient " << gradients.cosine
                                                << ", worst relative loss difference "
                                                << worst_relative(run.losses));
    CHECK(gradients.cosine >= 0.999);
    CHECK(worst_relative(run.losses) < 2e-2);
  }
}
