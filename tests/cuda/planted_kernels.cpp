// Kernels for the emulator's stricter rules, run by name. Most have one bug each, which the
// emulator must report. The others show that results which CUDA leaves open differ with
// ZG_EMULATOR_SEED.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/cuda/hopper.cuh"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/tensor.h"

namespace {

using namespace zg;

constexpr int group = cuda::warpgroup_threads;
constexpr size_t shared_bytes = 24 << 10;

void print_largest(const Tensor& out) {
  const std::vector<float> values = out.to_host<float>();
  std::printf("no report; the largest result is %g\n",
              static_cast<double>(*std::max_element(values.begin(), values.end())));
}

/// Runs one block of the kernel and prints its outputs' largest value.
void run(void (*kernel)(float*), int threads = group) {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({threads}, DType::f32, device);
  cuda::launch("planted", kernel, {dim3(1), dim3(static_cast<unsigned>(threads)), shared_bytes},
               device.compute(), out.data<float>());
  print_largest(out);
}

// --- registers of wgmma ---

__device__ uint64_t first_matrix() { return cuda::matrix_descriptor(cuda::dynamic_address()); }

__global__ void product_without_fence(float* out) {
  float d[16][4] = {};
  cuda::multiply_warpgroup<bf16>(d, first_matrix(), first_matrix(), false);
  cuda::commit_products();
  cuda::wait_for_products<0>();
  out[threadIdx.x] = d[0][0];
}

/// The fence is there, but the wait after it lets ordinary code access the registers again.
__global__ void product_after_a_wait(float* out) {
  float d[16][4] = {};
  cuda::begin_products(d);
  for (int i = 0; i < 2; ++i) {
    cuda::multiply_warpgroup<bf16>(d, first_matrix(), first_matrix(), i > 0);
    cuda::commit_products();
    cuda::wait_for_products<0>();
  }
  out[threadIdx.x] = d[0][0];
}

__global__ void written_after_fence(float* out) {
  float d[8][4] = {};
  uint32_t a[1][4] = {};
  cuda::begin_products(d, a);
  a[0][3] = 7;
  cuda::multiply_warpgroup<bf16>(d, a[0], first_matrix());
  cuda::commit_products();
  cuda::wait_for_products<0>();
  out[threadIdx.x] = d[0][0];
}

__global__ void fragment_in_use(float* out) {
  float d[8][4] = {};
  uint32_t a[1][4] = {};
  cuda::begin_products(d, a);
  cuda::multiply_warpgroup<bf16>(d, a[0], first_matrix());
  cuda::commit_products();
  a[0][0] = 7;
  cuda::wait_for_products<0>();
  out[threadIdx.x] = d[0][0];
}

__global__ void accumulator_in_use(float* out) {
  float d[16][4] = {};
  cuda::begin_products(d);
  cuda::multiply_warpgroup<bf16>(d, first_matrix(), first_matrix(), true);
  cuda::commit_products();
  d[15][3] *= 0.5f;
  cuda::wait_for_products<0>();
  out[threadIdx.x] = d[0][0];
}

/// Three warpgroups have 168 registers. The first gives back 128 * 128, the others want 72 * 128
/// each.
__global__ void more_registers_than_the_block_has(float* out) {
  if (threadIdx.x < group) return cuda::decrease_registers<40>();
  cuda::increase_registers<240>();
  out[threadIdx.x] = 1.0f;
}

// --- shared memory as wgmma and TMA see it ---

/// Ordinary code writes ones to 192 rows of a panel, and wgmma multiplies them.
template <bool fenced>
__global__ void product_of_ordinary_writes(float* out) {
  auto* const shared = cuda::dynamic_shared<bf16>();
  for (int i = static_cast<int>(threadIdx.x); i < 192 * 64; i += group) shared[i] = bf16(1.0f);
  if (fenced) cuda::fence_shared_writes();
  __syncthreads();
  float d[16][4];
  for (auto& values : d)
    for (float& value : values) value = NAN;
  cuda::begin_products(d);
  cuda::multiply_warpgroup<bf16>(
      d, first_matrix(),
      cuda::matrix_descriptor(cuda::dynamic_address() + 64 * cuda::panel_row_bytes), false);
  cuda::commit_products();
  cuda::wait_for_products<0>();
  out[threadIdx.x] = d[0][0];
}

constexpr int box_bytes = 2048;

/// Runs a kernel with a tensor map of 16 rows of 64 ones, of which a box has all. The mbarrier
/// follows the box. Prints the outputs' largest value.
void run_box(void (*kernel)(CUtensorMap, float*)) {
  const Device device = Device::cuda();
  const Tensor x = Tensor::full({16, 64}, 1.0, DType::bf16, device);
  const Tensor out = Tensor::zeros({group}, DType::f32, device);
  const cuuint64_t extents[4] = {64, 16, 1, 1}, strides[3] = {128, box_bytes, box_bytes};
  const cuuint32_t box[4] = {64, 16, 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  cuda::check(cuda::encode_tensor_map()(
                  &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, x.raw(), extents, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              "planted");
  cuda::launch("planted", kernel, {dim3(1), dim3(group), box_bytes + 8}, device.compute(), map,
               out.data<float>());
  print_largest(out);
}

__global__ void box_over_ordinary_writes(CUtensorMap map, float*) {
  const cuda::SharedAddress place = cuda::dynamic_address(), barrier = place + box_bytes;
  if (threadIdx.x != 0) return;
  cuda::dynamic_shared<float>()[0] = 1.0f;
  cuda::init_barrier(barrier, 1);
  cuda::fence_barrier_init();
  cuda::arrive_expecting(barrier, box_bytes);
  cuda::copy_box(place, map, 0, 0, 0, 0, barrier);
}

__global__ void barrier_init_without_fence(CUtensorMap map, float*) {
  const cuda::SharedAddress barrier = cuda::dynamic_address() + box_bytes;
  if (threadIdx.x != 0) return;
  cuda::init_barrier(barrier, 1);
  cuda::arrive_expecting(barrier, box_bytes);
  cuda::copy_box(cuda::dynamic_address(), map, 0, 0, 0, 0, barrier);
}

__global__ void barrier_without_init(CUtensorMap, float*) {
  cuda::arrive(cuda::dynamic_address() + box_bytes);
}

/// One thread copies the box `boxes` times to the first bytes: ones, then rows behind the tensor's
/// last, which are 0. All threads wait.
__device__ cuda::SharedAddress copy_boxes(const CUtensorMap& map, int boxes) {
  const cuda::SharedAddress place = cuda::dynamic_address(), barrier = place + box_bytes;
  if (threadIdx.x == 0) {
    cuda::init_barrier(barrier, 1);
    cuda::fence_barrier_init();
    cuda::arrive_expecting(barrier, static_cast<unsigned>(boxes) * box_bytes);
    for (int box = 0; box < boxes; ++box) cuda::copy_box(place, map, 0, 16 * box, 0, 0, barrier);
  }
  __syncthreads();
  return barrier;
}

/// wgmma may read its matrix as soon as it is issued.
template <bool waits_first>
__global__ void product_of_a_copy(CUtensorMap map, float* out) {
  const cuda::SharedAddress barrier = copy_boxes(map, 1);
  if (waits_first) cuda::wait_for_phase(barrier, 0);
  const uint32_t ones = cuda::pack<bf16>(1.0f, 1.0f);
  uint32_t a[1][4] = {{ones, ones, ones, ones}};
  float d[8][4] = {};
  cuda::begin_products(d, a);
  cuda::multiply_warpgroup<bf16>(d, a[0], first_matrix());
  cuda::commit_products();
  cuda::wait_for_phase(barrier, 0);
  cuda::wait_for_products<0>();
  out[threadIdx.x] = d[0][0];
}

/// Copies arrive in any order.
__global__ void two_boxes_to_one_place(CUtensorMap map, float* out) {
  cuda::wait_for_phase(copy_boxes(map, 2), 0);
  out[threadIdx.x] = static_cast<float>(cuda::dynamic_shared<bf16>()[threadIdx.x]);
}

__global__ void too_many_bytes(CUtensorMap, float*) {
  const cuda::SharedAddress barrier = cuda::dynamic_address() + box_bytes;
  if (threadIdx.x != 0) return;
  cuda::init_barrier(barrier, 1);
  cuda::arrive_expecting(barrier, 1 << 20);
}

/// Attention in one block, with a head of 64, of whose copies one is lost. Forward has three steps
/// and copies q, k, v, k, v, k, v. Backward copies 64 rows at a time: q, dout, q, dout, then k and
/// v six times.
void run_lost_copy(bool backward, int64_t number) {
  const Device device = Device::cuda();
  const int64_t T = 128, keys = 384, D = 64;
  const Tensor q = Tensor::full({T, D}, 1.0, DType::bf16, device);
  const Tensor k = Tensor::full({keys, D}, 1.0, DType::bf16, device);
  const HeadLayout rows = {.head = D, .token = D};
  const AttentionShape shape = {.B = 1,
                                .H = 1,
                                .T = T,
                                .keys = keys,
                                .D = D,
                                .causal = false,
                                .q = rows,
                                .k = rows,
                                .v = rows,
                                .out = rows};
  const Tensor log_sum = Tensor::zeros({1, 1, T}, DType::f32, device);
  const Tensor dq = Tensor::empty({T, D}, DType::bf16, device);
  const Tensor dk = Tensor::empty({keys, D}, DType::bf16, device);
  const Tensor dv = Tensor::empty({keys, D}, DType::bf16, device);
  emulator::lose_copy(number);
  if (backward) try {
      kernels::attention_backward({.q = q,
                                   .k = k,
                                   .v = k,
                                   .out = q,
                                   .log_sum = log_sum,
                                   .dout = q,
                                   .dq = dq,
                                   .dk = dk,
                                   .dv = dv,
                                   .shape = shape},
                                  device.compute());
    } catch (const DeviceError&) {
      // The second kernel may find the device stopped by the first.
    }
  else
    kernels::attention_forward({.q = q, .k = k, .v = k, .out = q, .log_sum = {}, .shape = shape},
                               device.compute());
  for (const char* when : {"", "then: "}) try {
      device.compute().synchronize();
      std::printf("%sno report\n", when);
    } catch (const DeviceError& error) {
      std::printf("%s%s\n", when, error.what());
    }
}

// --- order of blocks, errors of functions, order of sums ---

/// Each block adds to what the one before it has left.
__global__ void sum_along_blocks(float* out) { out[blockIdx.x + 1] = out[blockIdx.x] + 1.0f; }

void result_by_block_order() {
  const Device device = Device::cuda();
  std::vector<float> last;
  for (uint64_t seed : {0, 1, 2}) {
    emulator::set_schedule(seed);
    const Tensor out = Tensor::zeros({17}, DType::f32, device);
    cuda::launch("planted", sum_along_blocks, {dim3(16), dim3(1)}, device.compute(),
                 out.data<float>());
    last.push_back(out.to_host<float>().back());
  }
  if (last[1] != last[0] || last[2] != last[0])
    std::printf("the result depends on the order of blocks\n");
}

/// Each block adds to what it has read before a barrier. Blocks that run at once lose a sum.
__global__ void sum_over_blocks(float* out) {
  const float before = *out;
  __syncthreads();
  if (threadIdx.x == 0) *out = before + 1.0f;
}

void sum_of_blocks_at_once() {
  const Device device = Device::cuda();
  for (uint64_t seed = 0; seed <= 3; ++seed) {
    emulator::set_schedule(seed);
    const Tensor out = Tensor::zeros({1}, DType::f32, device);
    cuda::launch("planted", sum_over_blocks, {dim3(4), dim3(64)}, device.compute(),
                 out.data<float>());
    std::printf("%g ", static_cast<double>(out.to_host<float>()[0]));
  }
  std::printf("\n");
}

/// Largest distance of f from the host's function in double, in steps of f32.
template <class F, class G>
int farthest(F f, G exact) {
  int most = 0;
  for (int i = 0; i < 4000; ++i) {
    const float x = 0.01f + 0.001f * static_cast<float>(i);
    const auto steps = std::bit_cast<int>(f(x)) -
                       std::bit_cast<int>(static_cast<float>(exact(static_cast<double>(x))));
    most = std::max(most, std::abs(steps));
  }
  return most;
}

void steps_of_functions() {
  using cuda::erfcf, cuda::erff, cuda::log1pf, cuda::expf, cuda::expm1f, cuda::logf, cuda::powf,
      cuda::tanhf;
  std::printf("exp %d, ",
              farthest([](float x) { return expf(x); }, [](double x) { return std::exp(x); }));
  std::printf("expm1 %d, ",
              farthest([](float x) { return expm1f(x); }, [](double x) { return std::expm1(x); }));
  std::printf("log %d, ",
              farthest([](float x) { return logf(x); }, [](double x) { return std::log(x); }));
  std::printf("tanh %d, ",
              farthest([](float x) { return tanhf(x); }, [](double x) { return std::tanh(x); }));
  std::printf("rsqrt %d, ", farthest([](float x) { return rsqrtf(x); },
                                     [](double x) { return 1.0 / std::sqrt(x); }));
  std::printf("ex2 %d, ", farthest([](float x) { return cuda::exp2_fast(x); },
                                   [](double x) { return std::exp2(x); }));
  std::printf("erfc %d, ",
              farthest([](float x) { return erfcf(x); }, [](double x) { return std::erfc(x); }));
  std::printf("erf %d, ",
              farthest([](float x) { return erff(x); }, [](double x) { return std::erf(x); }));
  std::printf("log1p %d, ",
              farthest([](float x) { return log1pf(x); }, [](double x) { return std::log1p(x); }));
  std::printf("pow %d, ", farthest([](float x) { return powf(x, 1.5f); },
                                   [](double x) { return std::pow(x, 1.5); }));
  std::printf("quotient %d\n", farthest([](float x) { return __fdividef(1.5f, x); },
                                        [](double x) { return 1.5 / x; }));
}

/// Prints the sum of 2^24, -2^24, 2^24, ..., with odd numbers between them, as mma.sync adds it.
__global__ void sum_of_unlike_terms(float* out) {
  const auto two = [](float low, float high) { return cuda::pack<bf16>(low, high); };
  const auto sign = threadIdx.x % 2 ? -1.0f : 1.0f;
  const uint32_t a[4] = {two(sign * 0x1p12f, 3.0f), 0, two(sign * -0x1p12f, 1.0f), 0};
  const uint32_t b0 = two(0x1p12f, 1.0f), b1 = two(0x1p12f, 0x1p-3f);
  float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  cuda::multiply_fragments<bf16>(d, a, b0, b1);
  out[threadIdx.x] = d[0];
}

}  // namespace

int main(int count, char** arguments) {
  const std::map<std::string, std::function<void()>> kernels = {
      {"product_without_fence", [] { run(product_without_fence); }},
      {"product_after_a_wait", [] { run(product_after_a_wait); }},
      {"written_after_fence", [] { run(written_after_fence); }},
      {"fragment_in_use", [] { run(fragment_in_use); }},
      {"accumulator_in_use", [] { run(accumulator_in_use); }},
      {"more_registers_than_the_block_has",
       [] { run(more_registers_than_the_block_has, 3 * group); }},
      {"lost_copy_of_q", [] { run_lost_copy(false, 0); }},
      {"lost_copy_of_first_k", [] { run_lost_copy(false, 1); }},
      {"lost_copy_of_last_v", [] { run_lost_copy(false, 6); }},
      {"lost_copy_of_dout", [] { run_lost_copy(true, 1); }},
      {"lost_copy_of_last_v_backward", [] { run_lost_copy(true, 15); }},
      {"ordinary_writes_without_fence", [] { run(product_of_ordinary_writes<false>); }},
      {"ordinary_writes", [] { run(product_of_ordinary_writes<true>); }},
      {"box_over_ordinary_writes", [] { run_box(box_over_ordinary_writes); }},
      {"barrier_init_without_fence", [] { run_box(barrier_init_without_fence); }},
      {"barrier_without_init", [] { run_box(barrier_without_init); }},
      {"product_before_its_copy", [] { run_box(product_of_a_copy<false>); }},
      {"product_after_its_copy", [] { run_box(product_of_a_copy<true>); }},
      {"two_boxes_to_one_place", [] { run_box(two_boxes_to_one_place); }},
      {"too_many_bytes", [] { run_box(too_many_bytes); }},
      {"sum_of_blocks_at_once", sum_of_blocks_at_once},
      {"result_by_block_order", result_by_block_order},
      {"steps_of_functions", steps_of_functions},
      {"sum_of_unlike_terms", [] { run(sum_of_unlike_terms, 32); }}};
  const auto kernel = kernels.find(count == 2 ? arguments[1] : "");
  if (kernel == kernels.end()) return std::printf("usage: planted_kernels NAME\n"), 2;
  kernel->second();
  return 0;
}
