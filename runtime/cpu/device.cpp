#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/text/format.h"

#if defined(ZG_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace zg {
namespace cpu {
namespace {

#if defined(ZG_AMX)
/// True if the processor has AMX tiles for bf16, the system saves them on a context switch, and
/// this process may use them. They take 8 KiB per thread, so Linux (from 5.16) requires a request
/// by arch_prctl.
bool has_amx() {
  constexpr unsigned bf16_bit = 1u << 22, tile_bit = 1u << 24;  // leaf 7, edx
  constexpr unsigned state_bits = 1u << 17 | 1u << 18;        // in xcr0: tile config and tile data
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & bf16_bit) || !(d & tile_bit)) return false;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & state_bits) == state_bits &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::portable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return Isa::avx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
#if defined(ZG_AMX)
  if (has_amx()) return Isa::amx_bf16;
#endif
  return Isa::avx512_bf16;
#else
  return Isa::portable;
#endif
}

}  // namespace

Isa machine_isa() {
  static const Isa isa = detect();
  return isa;
}

}  // namespace cpu

const char* name_of(Isa isa) {
  constexpr const char* names[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
  return names[static_cast<size_t>(isa)];
}

namespace {

/// `where`: the source of the name, for the error.
Isa parse(const std::string& where, const std::string& name) {
  for (Isa isa : every_isa)
    if (name == name_of(isa)) return isa;
  raise<ConfigError>("{}: expected portable, avx2, avx512, avx512_bf16 or amx_bf16, got '{}'",
                     where, name);
}

}  // namespace

Isa parse_isa(const std::string& name) { return parse("instruction set", name); }

Isa best_isa() {
  const Isa best = cpu::machine_isa();
  const char* asked = std::getenv("ZG_CPU_ISA");
  if (!asked || !*asked) return best;
  const Isa isa = parse("ZG_CPU_ISA", asked);
  if (isa > best)
    raise<ConfigError>("ZG_CPU_ISA: this machine goes up to {}, got '{}'", best, asked);
  return isa;
}

Isa isa_of(const DeviceOptions& options) {
  if (options.isa) return *options.isa;
  const Isa best = best_isa();
  return options.bits == Bits::fast ? best : std::min(best, Isa::avx512_bf16);
}

}  // namespace zg

namespace zg::cpu {
namespace {

/// Work runs at once on the caller's thread, so it is always in order.
class ImmediateStream final : public DeviceStream {
 public:
  using DeviceStream::DeviceStream;
  LaunchCounter* launches() const override { return state_.launches_on(*this); }
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override {
    std::memmove(to, from, bytes);
    state_.count_copy(*this, to, from, bytes);
  }
  void fill_zero(void* to, size_t bytes) override {
    std::memset(to, 0, bytes);
    state_.count_fill(*this, bytes);
  }
};

/// The stream of a meta device. It does no work. It counts launches, copies, fills and host waits
/// if the device counts launches.
class MetaStream final : public DeviceStream {
 public:
  using DeviceStream::DeviceStream;
  LaunchCounter* launches() const override { return state_.launches_on(*this); }
  void synchronize() override {
    if (state_.traits.backend == Device::Type::cpu) return;  // its host never waits
    if (LaunchCounter* counter = launches()) counter->add_wait();
  }
  void copy(void* to, const void* from, size_t bytes) override {
    state_.count_copy(*this, to, from, bytes);
  }
  void fill_zero(void*, size_t bytes) override { state_.count_fill(*this, bytes); }
};

}  // namespace

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name) {
  if (state.type == Device::Type::meta) return std::make_unique<MetaStream>(state, name);
  return std::make_unique<ImmediateStream>(state, name);
}

}  // namespace zg::cpu
