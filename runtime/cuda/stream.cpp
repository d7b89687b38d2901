#include <utility>

#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/device.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/error.h"

namespace zg::cuda {
namespace {

/// A queue of the device. Streams of a device do not wait for each other by themselves.
class CudaStream final : public Stream {
 public:
  CudaStream(DeviceState& state, const char* name) : state_(state), name_(name) {
    const OnDevice on(state.index);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, sizeof(Fault), cudaHostAllocPortable), "cudaHostAlloc");
    fault_ = new (memory) Fault;
  }
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
    cudaFreeHost(fault_);
  }

  Device device() const override { return state_.handle(); }
  const Device::Traits& traits() const override { return state_.traits; }
  Device::Type type() const override { return state_.type; }
  Trace* trace() const override { return state_.trace.get(); }
  const char* name() const override { return name_; }

  void synchronize() override {
    const OnDevice on(state_.index);
    check(cudaStreamSynchronize(stream_), name_);
    if (!fault_->found) return;
    const Fault fault = std::exchange(*fault_, {});
    throw ShapeError(std::string(fault.op) + ": " + fault.name + "[" + std::to_string(fault.place) +
                     "] is " + std::to_string(fault.value) + "; expected " +
                     (fault.limit > 0 ? "0 to " + std::to_string(fault.limit - 1) : "no 0"));
  }
  void copy(void* to, const void* from, size_t bytes) override {
    const OnDevice on(state_.index);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copy");
  }
  void fill_zero(void* to, size_t bytes) override {
    const OnDevice on(state_.index);
    check(cudaMemsetAsync(to, 0, bytes, stream_), "fill_zero");
  }

  cudaStream_t stream() const { return stream_; }
  Fault* fault() const { return fault_; }

 private:
  DeviceState& state_;  // owns this stream
  const char* const name_;
  cudaStream_t stream_ = nullptr;
  Fault* fault_ = nullptr;
};

}  // namespace

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name) {
  return std::make_unique<CudaStream>(state, name);
}

cudaStream_t handle(const Stream& stream) {
  return static_cast<const CudaStream&>(stream).stream();
}

Fault* fault_place(const Stream& stream) { return static_cast<const CudaStream&>(stream).fault(); }

}  // namespace zg::cuda
