#include "zerograd/runtime/device_state.h"

#include <algorithm>
#include <charconv>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/storage/swap_file.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

Device::Traits traits_of(Device::Type type, const Device::Options& options, Device::Type backend) {
  Device::Traits traits;
  traits.backend = backend;
  traits.isa = isa_of(options);
  if (type == Device::Type::cpu && traits.isa > cpu::machine_isa())
    raise<ConfigError>("device: this machine goes up to {}, got {}", cpu::machine_isa(),
                       traits.isa);
  traits.threads = options.threads > 0 ? options.threads : cpu::threads_or(available_cores());
  return traits;
}

std::unique_ptr<LaunchCounter> counter_for(Device::Type type, const Device::Options& options,
                                           Device::Type backend) {
  if (!options.count_launches) return nullptr;
  if (type == Device::Type::hpu)
    throw Unsupported(
        "device: launches are counted on cpu and cuda, and in plans also for hpu, got hpu; try "
        "plan, or without count_launches (--kernels)");
  if (backend == Device::Type::hpu && !backend_of(backend)->count)
    throw Unsupported(
        "device: count_launches (--kernels): a plan runs the host code of the HPU kernels, which "
        "this build lacks; install what tools/install-packages hpu names and configure again, or "
        "try --device cpu");
  if (backend == Device::Type::cuda && !backend_of(backend)->count)
    throw Unsupported(
        "device: count_launches (--kernels): a plan runs the host code of the CUDA kernels, which "
        "this build lacks; configure with -DZG_CUDA=ON on a machine with nvcc (it needs no GPU), "
        "or try --device cpu");
  return std::make_unique<LaunchCounter>();
}

const char* call_of(const Device::Traits& traits, const char* cpu, const char* cuda,
                    const char* hpu) {
  return traits.backend == Device::Type::cpu    ? cpu
         : traits.backend == Device::Type::cuda ? cuda
                                                : hpu;
}

}  // namespace

const char* name_of(Device::Type type) {
  constexpr const char* names[] = {"cpu", "cuda", "hpu", "meta"};
  return names[static_cast<size_t>(type)];
}

const Backend* backend_of(Device::Type type) {
  return type == Device::Type::cuda  ? &cuda::backend()
         : type == Device::Type::hpu ? &hpu::backend()
                                     : nullptr;
}

int available_cores() { return std::max(1, cores_of(0)); }

DeviceState::DeviceState(Device::Type type, int index, const Device::Options& options,
                         Device::Type backend)
    : type(type),
      index(index),
      name(fmt::format("{}:{}", type, index)),
      traits(traits_of(type, options, backend)),
      ledger(name, type, index, options),
      launches(counter_for(type, options, backend)),
      swap(options.swap) {}

void UnconfirmedCollectives::add(const void* communicator, std::function<void()> wait) {
  waits_[communicator] = std::move(wait);
}

bool UnconfirmedCollectives::remove(const void* communicator) {
  return waits_.erase(communicator) > 0;
}

void UnconfirmedCollectives::confirm(const void* except) {
  if (failure_) std::rethrow_exception(failure_);
  for (auto entry = waits_.begin(); entry != waits_.end();) {
    if (entry->first == except) {
      ++entry;
      continue;
    }
    entry->second();
    entry = waits_.erase(entry);
  }
}

void DeviceState::reserve_file() {
  if (type == Device::Type::meta) return;
  if (swap.directory.empty())
    raise<ConfigError>(
        "allocate: Space::file needs a directory on a disk; expected {} with "
        "Device::Options::swap.directory; got none; try --nvme-path DIR",
        name);
  if (!swap_file) swap_file = std::make_unique<cpu::SwapFile>(swap);
  swap_file->reserve(ledger.reserved(Space::file));
}

Device DeviceState::make(Device::Type type, int index, const Device::Options& options,
                         Device::Type backend) {
  if (index < 0) raise<ConfigError>("device: expected an index of 0 or more, got {}", index);
  auto state = std::make_shared<DeviceState>(type, index, options, backend);
  state->compute = state->make_stream("compute");
  return Device(std::move(state));
}

void DeviceState::count_copy(const Stream& stream, const void* to, const void* from,
                             size_t bytes) const {
  LaunchCounter* const counter = launches_on(stream);
  if (!counter || bytes == 0) return;
  const int64_t places = (ledger.is_on_device(to) ? 1 : 0) + (ledger.is_on_device(from) ? 1 : 0);
  const auto n = static_cast<int64_t>(bytes);
  counter->add({.op = "copy",
                .kernel = call_of(traits, "memmove", "cudaMemcpyAsync", "AppendMemoryCopy"),
                .launches = 1,
                .bytes = places * n,
                .kind = KernelClass::copy});
}

void DeviceState::count_fill(const Stream& stream, size_t bytes) const {
  if (LaunchCounter* const counter = launches_on(stream); counter && bytes > 0)
    counter->add({.op = "fill_zero",
                  .kernel = call_of(traits, "memset", "cudaMemsetAsync", "AppendMemoryFill"),
                  .launches = 1,
                  .bytes = static_cast<int64_t>(bytes),
                  .kind = KernelClass::copy});
}

std::unique_ptr<Stream> DeviceState::make_stream(const char* stream) {
  const Backend* backend = backend_of(type);
  return backend ? backend->make_stream(*this, stream) : cpu::make_stream(*this, stream);
}

namespace {

thread_local RankScope* current_rank = nullptr;

}  // namespace

RankScope::RankScope(const Device& device, int rank) : device_(device), outer_(current_rank) {
  DeviceState::of(device).rank = rank;
  current_rank = this;
}

RankScope::~RankScope() { current_rank = outer_; }

Device CpuDevices::find_or_make(int index, const Device::Options& options) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const Entry& entry) { return entry.device.expired(); });
  for (const Entry& entry : entries_)
    if (entry.index == index && entry.options == options)
      if (const auto state = entry.device.lock()) return state->handle();
  Device device = DeviceState::make(Device::Type::cpu, index, options, Device::Type::cpu);
  entries_.push_back({index, options, DeviceState::of(device).weak_from_this()});
  return device;
}

Device Device::cpu(int index, const Options& options) {
  static CpuDevices devices_of_process;
  if (options.separate) return DeviceState::make(Type::cpu, index, options, Type::cpu);
  if (!current_rank) return devices_of_process.find_or_make(index, options);
  const Device& own = current_rank->device_;
  if (index == 0 && options == Options() && own.traits().backend == Type::cpu) return own;
  return current_rank->others_.find_or_make(index, options);
}

Device Device::cuda(int index, const Options& options) {
  return accelerator(Type::cuda, index, options);
}

Device Device::hpu(int index, const Options& options) {
  return accelerator(Type::hpu, index, options);
}

Device Device::accelerator(Type type, int index, const Options& options) {
  const std::string name = fmt::format("{}:{}", type, index);
  if (const std::string why = absence(type); !why.empty())
    raise<Unsupported>("device: {}: {}; try cpu", name, why);
  if (index >= count(type))
    raise<ConfigError>("device: {} is not there; expected 0 to {}", name, count(type) - 1);
  return DeviceState::make(type, index, options, type);
}

std::string Device::absence(Type type) {
  const Backend* backend = backend_of(type);
  return backend ? backend->absence() : "";
}

int Device::count(Type type) {
  const Backend* backend = backend_of(type);
  return !backend ? 1 : backend->absence().empty() ? backend->count() : 0;
}

std::string emulator_name(Device::Type type, int index) {
  const Backend* backend = backend_of(type);
  const bool is_there = backend && index >= 0 && index < Device::count(type);
  return is_there && backend->emulator_name ? backend->emulator_name(index) : "";
}

Device Device::meta(int index, const Options& options, Type backend) {
  return DeviceState::make(Type::meta, index, options, backend);
}

Device Device::parse(const std::string& name, const Options& options) {
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  int index = 0;
  if (colon != std::string::npos) {
    const char* first = name.data() + colon + 1;
    const char* last = name.data() + name.size();
    if (const auto [end, error] = std::from_chars(first, last, index);
        error != std::errc() || end != last || first == last || index < 0)
      raise<ConfigError>("device: expected a name like cpu:1, got '{}'", name);
  }
  if (kind == "cpu") return cpu(index, options);
  if (kind == "meta") return meta(index, options);
  if (kind == "cuda") return cuda(index, options);
  if (kind == "hpu") return hpu(index, options);
  raise<ConfigError>("device: expected cpu, cuda, hpu or meta with an index, got '{}'", name);
}

std::string difference(const Device& one, const Device& other) {
  const int rank = DeviceState::of(one).rank, other_rank = DeviceState::of(other).rank;
  if (rank >= 0 && other_rank >= 0)
    return fmt::format(
        "two devices, {} of rank {} and {} of rank {}; ranks exchange values by the collectives of "
        "their Communicator",
        one.name(), rank, other.name(), other_rank);
  if (rank >= 0 || other_rank >= 0) {
    const Device& own = rank >= 0 ? one : other;
    const Device& foreign = rank >= 0 ? other : one;
    return fmt::format(
        "two devices, {}, which rank {} was given, and {} from elsewhere; a rank needs tensors of "
        "its own device, the one that its program was given",
        own.name(), std::max(rank, other_rank), foreign.name());
  }
  if (one.name() == other.name())
    return fmt::format(
        "two devices, made by two calls of Device::{}(){}; make one and pass it on (both are named "
        "{})",
        one.type(), one.type() == Device::Type::cpu ? " with different options" : "", one.name());
  return fmt::format("two devices, {} and {}; copy one over first", one.name(), other.name());
}

Device::Type Device::type() const { return state_->type; }
int Device::index() const { return state_->index; }
std::string Device::name() const { return state_->name; }
std::string message_text(const Device& device) { return device.name(); }
std::string Device::description() const {
  const Backend* backend = backend_of(state_->type);
  return backend ? backend->describe(state_->index) : "";
}
const Device::Traits& Device::traits() const { return state_->traits; }
Stream& Device::compute() const { return *state_->compute; }
std::unique_ptr<Stream> Device::make_stream(const char* name) const {
  return state_->make_stream(name);
}
LaunchCounter* Device::launches() const { return state_->launches.get(); }
MemoryTracker& Device::memory() const { return state_->ledger; }
void Device::set_trace(std::shared_ptr<Trace> trace, int rank) const {
  if (trace) state_->trace_rank = rank < 0 ? state_->index : rank;
  state_->trace = std::move(trace);
}
Trace* Device::trace() const { return state_->trace.get(); }
int Device::trace_rank() const { return state_->trace_rank; }

}  // namespace zg
