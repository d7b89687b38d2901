#include "zerograd/runtime/hpu/kernel_times.h"

namespace zg::hpu {
namespace {

constexpr uint32_t events_of_a_pool = 64;

}  // namespace

KernelTimes::KernelTimes(ze_device_handle_t device) : device_(device) {
  // In this version of the structure timerResolution is in ticks per second; in the first version
  // it is in whole nanoseconds.
  ze_device_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2};
  check(api().deviceGetProperties(device_, &properties), "zeDeviceGetProperties");
  nanoseconds_of_a_tick_ = 1e9 / static_cast<double>(properties.timerResolution);
  const uint32_t bits = properties.kernelTimestampValidBits;
  mask_ = bits < 64 ? (uint64_t{1} << bits) - 1 : ~uint64_t{0};
}

KernelTimes::~KernelTimes() {
  for (ze_event_handle_t event : events_) api().eventDestroy(event);
  for (ze_event_pool_handle_t pool : pools_) api().eventPoolDestroy(pool);
}

ze_event_handle_t KernelTimes::next(const char* kernel) {
  if (kernels_.size() == events_.size()) add_pool();
  kernels_.emplace_back(kernel);
  return events_[kernels_.size() - 1];
}

void KernelTimes::tell(Trace* trace, int rank, const std::string& stream) {
  std::vector<ze_kernel_timestamp_data_t> times;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    ze_kernel_timestamp_result_t time = {};
    check(api().eventQueryKernelTimestamp(events_[i], &time), "zeEventQueryKernelTimestamp");
    check(api().eventHostReset(events_[i]), "zeEventHostReset");
    times.push_back(time.global);
  }
  const int64_t now_ns = trace ? trace->now_ns() : 0;
  for (size_t i = 0; trace && i < times.size(); ++i) {
    const double until_now = nanoseconds(times[i].kernelEnd, times.back().kernelEnd);
    const double taken = nanoseconds(times[i].kernelStart, times[i].kernelEnd);
    const int64_t end_ns = now_ns - static_cast<int64_t>(until_now);
    trace->span({.rank = rank,
                 .track = stream == "compute" ? "kernels" : "kernels, " + stream,
                 .kind = Trace::Kind::kernel,
                 .name = kernels_[i],
                 .begin_ns = end_ns - static_cast<int64_t>(taken),
                 .end_ns = end_ns});
  }
  kernels_.clear();
}

double KernelTimes::nanoseconds(uint64_t from, uint64_t to) const {
  return static_cast<double>((to - from) & mask_) * nanoseconds_of_a_tick_;
}

void KernelTimes::add_pool() {
  const ze_event_pool_desc_t wanted = {
      .stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
      .flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP,
      .count = events_of_a_pool};
  ze_device_handle_t device = device_;
  ze_event_pool_handle_t pool = nullptr;
  check(api().eventPoolCreate(driver().context, &wanted, 1, &device, &pool), "zeEventPoolCreate");
  pools_.push_back(pool);
  for (uint32_t i = 0; i < events_of_a_pool; ++i) {
    const ze_event_desc_t event = {.stype = ZE_STRUCTURE_TYPE_EVENT_DESC,
                                   .index = i,
                                   .signal = ZE_EVENT_SCOPE_FLAG_HOST,
                                   .wait = ZE_EVENT_SCOPE_FLAG_HOST};
    events_.push_back(nullptr);
    check(api().eventCreate(pool, &event, &events_.back()), "zeEventCreate");
  }
}

}  // namespace zg::hpu
