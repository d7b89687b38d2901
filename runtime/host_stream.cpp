#include "zerograd/runtime/host_stream.h"

#include <cstring>

namespace zg {
namespace {

Device::Traits on_cpu(Device::Traits traits) {
  traits.backend = Device::Type::cpu;
  return traits;
}

}  // namespace

HostStream::HostStream(const Device& device) : device_(device), traits_(on_cpu(device.traits())) {}

Device::Type HostStream::type() const {
  return device_.type() == Device::Type::meta ? Device::Type::meta : Device::Type::cpu;
}

void HostStream::copy(void* to, const void* from, size_t bytes) { std::memmove(to, from, bytes); }
void HostStream::fill_zero(void* to, size_t bytes) { std::memset(to, 0, bytes); }

}  // namespace zg
