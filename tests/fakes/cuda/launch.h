#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cuda_runtime_api.h"

namespace zg::emulator {

struct Collective;

/// Queues work on a stream. It runs as late as possible: when the stream is waited for. With
/// ZG_EMULATOR_AT_ONCE, and with AddressSanitizer, it runs as soon as possible: then a report of
/// freed memory has the code that queued the work on its stack. See queue_seed() for other orders.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// Queues a part of a collective. It runs once ready() returns true; ready() is called again and
/// again. Null: at once.
void enqueue_collective(cudaStream_t stream, std::shared_ptr<const Collective> collective,
                        std::function<bool()> ready, std::function<void()> work);
/// Whether the address belongs to memory of a device.
bool is_mapped(const void* place);
/// Whether all bytes belong to memory that kernels and copies of `device` can access.
bool is_accessible(const void* place, size_t bytes, int device);

/// A launch, with what the device checks of it.
struct Launch {
  const char* kernel;
  Extent grid, block;
  size_t shared_bytes;
  size_t parameter_bytes;
  const void* function;                ///< the kernel, for its attributes
  std::vector<const void*> addresses;  ///< the parameters that are pointers
  std::vector<const void*> words{};    ///< of parameters that are structs: some are pointers
};
/// Queues a kernel: run_grid() when the stream is waited for. A launch that the device refuses is
/// the error that cudaGetLastError() returns. A pointer to memory that the device cannot read ends
/// the process.
void launch(const Launch& launch, cudaStream_t stream, std::function<void()> body);
/// The same for a function with its arguments.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), Extent grid, Extent block,
            size_t shared_bytes, cudaStream_t stream, const std::tuple<Parameters...>& arguments) {
  Launch launched{name, grid, block, shared_bytes, 0, reinterpret_cast<const void*>(kernel), {}};
  const auto add = [&](const auto& argument) {
    using Argument = std::remove_cvref_t<decltype(argument)>;
    launched.parameter_bytes =
        (launched.parameter_bytes + alignof(Argument) - 1) / alignof(Argument) * alignof(Argument) +
        sizeof(Argument);
    if constexpr (std::is_pointer_v<Argument>) launched.addresses.push_back(argument);
#if __has_builtin(__builtin_clear_padding)  // which may have parts of old pointers
    if constexpr (std::is_class_v<Argument>) {
      Argument copy = argument;
      __builtin_clear_padding(&copy);
      const auto* const bytes = reinterpret_cast<const std::byte*>(&copy);
      for (size_t at = 0; at + sizeof(void*) <= sizeof(Argument); at += sizeof(void*)) {
        const void* word = nullptr;
        std::memcpy(&word, bytes + at, sizeof word);
        launched.words.push_back(word);
      }
    }
#endif
  };
  std::apply([&](const auto&... each) { (add(each), ...); }, arguments);
  launch(launched, stream, [kernel, arguments] { std::apply(kernel, arguments); });
}

/// Sets the registers a thread and the bytes of its own shared arrays that a compiler would choose
/// for a kernel. By default a kernel has 168 registers, fewer where a block has more than 384
/// threads, and 1 KiB.
void set_attributes(const void* kernel, const cudaFuncAttributes& attributes);
/// The devices on which this process has created a context, in rising order: "0 2".
std::string contexts();
/// The next call of this name returns the error: "cuMemCreate", "cudaHostRegister",
/// "cublasLtMatmul". Only some calls ask.
void plant_failure(const std::string& call, int error);
/// The device of the thread's current context fails: all later calls return the error.
void plant_sticky_error(cudaError_t error);

/// How many products the emulated cuBLASLt has computed.
int64_t cublaslt_products();
/// How many calls that move data the emulated NCCL has done.
int64_t nccl_operations();

}  // namespace zg::emulator
