#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "zerograd/kernels/cuda/launch.h"
#include "zerograd/runtime/tensor.h"

/// Twins: each wrapped CUDA instruction as a small kernel that is compiled for a GPU and for the
/// emulator. Operands of products are whole numbers whose sums are exact in any order, because a
/// tensor core adds in an order of its own.
namespace zg::twins {

using Words = std::vector<uint32_t>;
using Inputs = std::vector<Words>;

/// Brings inputs to the device, runs kernels of one block and fetches their results.
class Runner {
 public:
  template <class T>
  T* bring(const Words& words) const {
    auto* const to = room<std::remove_const_t<T>>(words.size());
    device_.compute().copy(to, words.data(), words.size() * sizeof(uint32_t));
    device_.compute().synchronize();
    return to;
  }
  /// Memory for `words` words, zero, until the end of the case.
  template <class T>
  T* room(size_t words) const {
    const auto bytes = static_cast<int64_t>(words * sizeof(uint32_t));
    tensors_.push_back(Tensor::zeros({bytes}, DType::u8, device_));
    return reinterpret_cast<T*>(tensors_.back().raw());
  }
  Words fetch(const void* from, size_t count) const {
    Words words(count);
    device_.compute().copy(words.data(), from, count * sizeof(uint32_t));
    device_.compute().synchronize();
    return words;
  }
  template <class... Parameters, class... Args>
  void run(void (*kernel)(Parameters...), int threads, size_t shared_bytes, Args... args) const {
    cuda::launch("twins", kernel, {dim3(1), dim3(static_cast<unsigned>(threads)), shared_bytes},
                 device_.compute(), args...);
  }
  int device() const { return device_.index(); }
  void end_case() const { tensors_.clear(); }

 private:
  const Device device_ = Device::cuda();
  mutable std::vector<Tensor> tensors_;
};

struct Twin {
  std::string name;
  int rounds;  ///< cases, each with its own random inputs
  bool needs_sm_90 = false;
  Inputs (*draw)(std::mt19937& random);
  Words (*run)(const Runner& runner, const Inputs& inputs);
};

std::vector<Twin> hopper_twins();  ///< of twins_hopper.cu: TMA, mbarriers, wgmma, setmaxnreg

inline Words random_words(std::mt19937& random, size_t count) {
  Words words(count);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  return words;
}
inline float whole_number(std::mt19937& random) {
  return static_cast<float>(static_cast<int>(random() % 17) - 8);
}
/// Two whole numbers of T in each word.
template <class T>
Words whole_numbers(std::mt19937& random, size_t count) {
  Words words(count);
  for (uint32_t& word : words) {
    const uint32_t low = T(whole_number(random)).bits;
    word = low | uint32_t{T(whole_number(random)).bits} << 16;
  }
  return words;
}
inline Words whole_floats(std::mt19937& random, size_t count) {
  Words words(count);
  for (uint32_t& word : words) word = std::bit_cast<uint32_t>(whole_number(random));
  return words;
}

}  // namespace zg::twins
