#pragma once

#include "zerograd/runtime/device.h"

namespace zg {

/// Work of the CPU on what a device of any kind has in memory of the host: at once, on the caller's
/// thread, who has waited for what the device itself has queued there. Kernels on it are the CPU's.
class ZG_API HostStream final : public Stream {
 public:
  explicit HostStream(const Device& device);
  Device device() const override { return device_; }
  const Device::Traits& traits() const override { return traits_; }
  Device::Type type() const override;
  Trace* trace() const override { return device_.trace(); }
  const char* name() const override { return "host"; }
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override;
  void fill_zero(void* to, size_t bytes) override;

 private:
  const Device device_;
  const Device::Traits traits_;
};

}  // namespace zg
