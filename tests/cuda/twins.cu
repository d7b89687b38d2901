// Prints the result of each wrapped CUDA instruction for random operands, as lines of bits.
// Compiled for a GPU and for the emulator; `tools/gpu_check` compares the two outputs line by line.
// Operands are integers whose sums are exact in any order, because a tensor core adds in its own
// order.
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "zerograd/kernels/cuda/launch.h"
#include "zerograd/kernels/cuda/mma.cuh"
#include "zerograd/runtime/tensor.h"

namespace {

using namespace zg;

constexpr int warp = 32, rounds = 64;

/// Each lane has registers a[4], b[2], c[4] as input and d[4] as output.
template <class T>
__global__ void multiply(const uint32_t* operands, const float* c, float* d) {
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t a[4];
  float sums[4];
  for (int i = 0; i < 4; ++i) a[i] = operands[lane * 6 + i];
  for (int i = 0; i < 4; ++i) sums[i] = c[lane * 4 + i];
  cuda::multiply_fragments<T>(sums, a, operands[lane * 6 + 4], operands[lane * 6 + 5]);
  for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
}

template <bool transposed>
__global__ void load(const uint32_t* from, const uint32_t* rows, uint32_t* to) {
  const cuda::SharedAddress shared = cuda::dynamic_address();
  const auto lane = static_cast<int>(threadIdx.x);
  cuda::copy_async(shared + lane * 16, from + lane * 4, 16);
  cuda::commit_copies();
  cuda::wait_for_copies<0>();
  __syncthreads();
  uint32_t got[4];
  cuda::load_matrices<transposed>(got, shared + rows[lane] * 16);
  for (int i = 0; i < 4; ++i) to[lane * 4 + i] = got[i];
}

/// Two groups of asynchronous copies of 16, 8 and 0 bytes; the rest is zero-filled.
__global__ void copies(const uint32_t* from, uint32_t* to) {
  auto* const shared = cuda::dynamic_shared<uint32_t>();
  const auto lane = static_cast<int>(threadIdx.x);
  for (int group = 0; group < 2; ++group) {
    const int place = (group * warp + lane) * 4;
    cuda::copy_async(cuda::dynamic_address() + place * 4, from + place, (group + lane) % 3 * 8);
    cuda::commit_copies();
  }
  cuda::wait_for_copies<0>();
  __syncthreads();
  for (int i = lane; i < 2 * warp * 4; i += warp) to[i] = shared[i];
}

template <class T>
__global__ void packs(const float* from, uint32_t* to) {
  const auto lane = static_cast<int>(threadIdx.x);
  to[lane] = cuda::pack<T>(from[2 * lane], from[2 * lane + 1]);
}

class Twins {
 public:
  template <class T>
  Tensor bring(const std::vector<T>& values) const {
    const Tensor tensor =
        Tensor::empty({static_cast<int64_t>(values.size() * sizeof(T))}, DType::u8, device_);
    device_.compute().copy(tensor.raw(), values.data(), values.size() * sizeof(T));
    return tensor;
  }
  Tensor room(int64_t words) const { return Tensor::zeros({4 * words}, DType::u8, device_); }
  template <class T>
  static T* at(const Tensor& tensor) {
    return reinterpret_cast<T*>(tensor.raw());
  }

  template <class... Parameters, class... Args>
  void run(void (*kernel)(Parameters...), size_t shared, Args... args) const {
    cuda::launch("twins", kernel, {dim3(1), dim3(warp), shared}, device_.compute(), args...);
  }

  /// Prints the words as a line: name, round, hash, first words.
  void print(const char* name, const Tensor& result) const {
    std::vector<uint32_t> words(static_cast<size_t>(result.numel()) / 4);
    device_.compute().copy(words.data(), result.raw(), words.size() * 4);
    device_.compute().synchronize();
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (uint32_t word : words) hash = (hash ^ word) * 1099511628211u;
    std::printf("%s %d %016llx %08x %08x %08x\n", name, round_,
                static_cast<unsigned long long>(hash), words[0], words[1], words[2]);
  }

  template <class T>
  void multiplies(const char* name) {
    std::uniform_int_distribution<int> whole(-8, 8);
    const auto two = [&] {
      const uint32_t low = T(static_cast<float>(whole(random_))).bits;
      return low | uint32_t{T(static_cast<float>(whole(random_))).bits} << 16;
    };
    std::vector<uint32_t> operands(warp * 6);
    for (uint32_t& word : operands) word = two();
    std::vector<float> sums(warp * 4);
    for (float& value : sums) value = static_cast<float>(whole(random_));
    const Tensor ab = bring(operands), c = bring(sums), d = room(warp * 4);
    run(multiply<T>, 0, at<const uint32_t>(ab), at<const float>(c), at<float>(d));
    print(name, d);
  }

  template <bool transposed>
  void loads(const char* name) {
    const Tensor from = words(warp * 4), to = room(warp * 4);
    std::vector<uint32_t> rows(warp);
    for (uint32_t& row : rows) row = static_cast<uint32_t>(random_() % warp);
    const Tensor order = bring(rows);
    run(load<transposed>, warp * 16, at<const uint32_t>(from), at<const uint32_t>(order),
        at<uint32_t>(to));
    print(name, to);
  }

  void copying() {
    const Tensor from = words(2 * warp * 4), to = room(2 * warp * 4);
    run(copies, 2 * warp * 16, at<const uint32_t>(from), at<uint32_t>(to));
    print("cp.async", to);
  }

  template <class T>
  void packing(const char* name) {
    // The values have few low bits, so halfway cases and subnormals occur.
    std::vector<float> values(2 * warp);
    for (float& value : values) {
      const auto bits = static_cast<uint32_t>(random_());
      const uint32_t exponent = 127 - 30 + bits % 40;
      value = std::bit_cast<float>((bits & 0x80000000u) | exponent << 23 |
                                   (static_cast<uint32_t>(random_()) & 0x7ff000u));
    }
    const Tensor from = bring(values), to = room(warp);
    run(packs<T>, 0, at<const float>(from), at<uint32_t>(to));
    print(name, to);
  }

  void all() {
    for (round_ = 0; round_ < rounds; ++round_) {
      random_.seed(static_cast<unsigned>(round_));
      multiplies<bf16>("mma.m16n8k16.bf16");
      multiplies<f16>("mma.m16n8k16.f16");
      loads<false>("ldmatrix");
      loads<true>("ldmatrix.trans");
      copying();
      packing<bf16>("cvt.bf16x2");
      packing<f16>("cvt.f16x2");
    }
  }

 private:
  Tensor words(size_t count) {
    std::vector<uint32_t> values(count);
    for (uint32_t& word : values) word = static_cast<uint32_t>(random_());
    return bring(values);
  }
  const Device device_ = Device::cuda();
  std::mt19937 random_;
  int round_ = 0;
};

}  // namespace

int main() {
  if (const std::string absence = Device::absence(Device::Type::cuda); !absence.empty())
    return std::printf("twins: %s\n", absence.c_str()), 1;
  Twins().all();
  return 0;
}
