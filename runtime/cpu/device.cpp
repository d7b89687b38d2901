#include <cstring>

#include "zerograd/runtime/device_state.h"

namespace zg::cpu {
namespace {

/// Work runs at once on the caller's thread, so order holds by itself. Meta devices use it too:
/// their kernels never reach it.
class ImmediateStream final : public Stream {
 public:
  ImmediateStream(DeviceState& state, const char* name) : state_(state), name_(name) {}
  Device device() const override { return state_.handle(); }
  const Device::Traits& traits() const override { return state_.traits; }
  Device::Type type() const override { return state_.type; }
  Trace* trace() const override { return state_.trace.get(); }
  const char* name() const override { return name_; }
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override { std::memmove(to, from, bytes); }
  void fill_zero(void* to, size_t bytes) override { std::memset(to, 0, bytes); }

 private:
  DeviceState& state_;  // owns this stream
  const char* name_;
};

}  // namespace

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name) {
  return std::make_unique<ImmediateStream>(state, name);
}

}  // namespace zg::cpu
