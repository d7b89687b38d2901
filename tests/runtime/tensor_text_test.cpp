#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/tensor_files.h"

using namespace zg;

namespace {

std::string printed(const Tensor& tensor) {
  std::ostringstream out;
  out << tensor;
  return out.str();
}

}  // namespace

TEST_CASE("tensors print as numpy prints them, with their dtype and shape") {
  const std::string folder = std::string(ZG_FIXTURES) + "numpy/";
  const auto expected = nlohmann::json::parse(read_text(folder + "text.json"));
  const NamedTensors tensors = load_npz(folder + "arrays.npz", Device::cpu());
  CHECK(tensors.size() == 27);
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    const std::string type = std::string(name_of(tensor.dtype())) + " " + tensor.shape().str();
    CHECK(printed(tensor) == expected[name].get<std::string>() + " " + type);
  }
}

TEST_CASE("bf16, absent tensors, slices and plans print, and a summary reads its elements alone") {
  const Device device = Device::cpu();
  const std::vector<bf16> values = {bf16(0.1f), bf16(-2.5f), bf16(100.0f)};
  const Tensor tensor = Tensor::from(values, {3}, device);
  CHECK(printed(tensor) == "[  0.1  -2.5 100. ] bf16 [3]");
  CHECK(printed(tensor.slice(1, 3)) == "[ -2.5 100. ] bf16 [2]");
  CHECK(printed({}) == "absent");
  const std::vector<float> unknown = {1.5f, -std::numeric_limits<float>::quiet_NaN()};
  CHECK(printed(Tensor::from(unknown, {2}, device)) == "[1.5 nan] f32 [2]");
  CHECK(printed(Tensor::zeros({int64_t{1} << 40, 0}, DType::f32, device)) ==
        "[] f32 [1099511627776, 0]");
  const Device plan = Device::meta();
  CHECK(printed(Tensor::zeros({2, 3}, DType::f32, plan)) == "f32 [2, 3] on meta, without values");
  Tensor large = Tensor::zeros({1 << 10, 1 << 10}, DType::f64, device);
  large.data<double>()[5000] = std::numeric_limits<double>::quiet_NaN();
  CHECK(printed(large) ==
        "[[0. 0. 0. ... 0. 0. 0.]\n [0. 0. 0. ... 0. 0. 0.]\n [0. 0. 0. ... 0. 0. 0.]\n ...\n"
        " [0. 0. 0. ... 0. 0. 0.]\n [0. 0. 0. ... 0. 0. 0.]\n [0. 0. 0. ... 0. 0. 0.]]"
        " f64 [1024, 1024]");
}
