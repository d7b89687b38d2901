#include "bench/offload.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "bench/measure.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/block_io.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::bench {
namespace {

constexpr Effort effort{.warm_up = 1, .fewest = 5, .samples = 20, .seconds = 1.0};

std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

/// Sequential requests of one engine at its full queue depth: the upper limit for any reader.
class RawDisk {
 public:
  RawDisk(const OffloadOptions& options, bool io_uring) : bytes_(options.bytes) {
    SwapOptions swap = options.device.swap;
    swap.io_uring = io_uring;
    io_ = cpu::BlockIo::open(swap);
    io_->reserve(bytes_);
    // Random data, so that the disk cannot compress it.
    std::mt19937_64 random(1);
    for (int slot = 0; slot < io_->depth(); ++slot)
      for (int64_t at = 0; at < io_->request_bytes(); at += 8) {
        const uint64_t word = random();
        std::copy_n(reinterpret_cast<const std::byte*>(&word), 8, io_->buffer(slot) + at);
      }
  }
  std::string engine() const { return io_->engine(); }
  void run(bool writes) {
    std::vector<int> free;
    for (int slot = io_->depth(); slot-- > 0;) free.push_back(slot);
    int under_way = 0;
    const auto finish_one = [&] {
      const auto [slot, error] = io_->wait();
      if (error != 0) io_->fail(writes ? "written" : "read", error);
      free.push_back(slot);
      --under_way;
    };
    for (int64_t offset = 0; offset < bytes_; offset += io_->request_bytes()) {
      if (free.empty()) finish_one();
      io_->submit(free.back(), {.offset = offset,
                                .memory = io_->buffer(free.back()),
                                .bytes = std::min(io_->request_bytes(), bytes_ - offset),
                                .writes = writes});
      free.pop_back();
      ++under_way;
    }
    while (under_way > 0) finish_one();
  }

 private:
  int64_t bytes_;
  std::unique_ptr<cpu::BlockIo> io_;
};

/// AdamW over masters and moments in one space, in chunks of the engine's size.
class Update {
 public:
  Update(const Device& device, Space space, int64_t numel)
      : device_(device),
        step_(space == Space::file ? std::min(numel, zero::OffloadOptions().sub_group_size)
                                   : numel) {
    const Space near = space == Space::file ? host_space(device) : space;
    for (Tensor& state : states_) {
      state = Tensor::empty({numel}, DType::f32, device, space);
      fill_zero(state, device.compute());
    }
    values_ = Tensor::empty({numel}, DType::bf16, device, space);
    fill_zero(values_, device.compute());
    constexpr float each = 1e-3f;
    gradient_ = near == Space::device ? Tensor::full({numel}, each, DType::f32, device)
                                      : Tensor::empty({numel}, DType::f32, device, near);
    if (near != Space::device) std::fill_n(gradient_.data<float>(), numel, each);
  }

  /// Updates all chunks. Without `computes` it only transfers the bytes to and from the disk.
  void run(bool computes) const {
    std::vector<zero::Streaming::Part> parts;
    for (int64_t begin = 0; begin < values_.numel(); begin += step_) parts.push_back(part(begin));
    zero::Streaming streaming(std::move(parts), device_);
    for (int64_t begin = 0; begin < values_.numel(); begin += step_) {
      const std::vector<Tensor>& memory = streaming.next();
      if (computes) update(memory);
      streaming.keep();
    }
    streaming.finish();
    device_.compute().synchronize();
  }

 private:
  zero::Streaming::Part part(int64_t begin) const {
    const int64_t count = std::min(step_, values_.numel() - begin);
    const auto of = [&](const Tensor& tensor) { return tensor.flat(begin, count); };
    return {{.tensor = of(states_[0])},
            {.tensor = of(states_[1])},
            {.tensor = of(states_[2])},
            {.tensor = of(values_), .loads = false},
            {.tensor = of(gradient_), .saves = false}};
  }
  void update(const std::vector<Tensor>& memory) const {
    kernels::adam({.tensors = {{.parameter = memory[0],
                                .gradient = memory[4],
                                .moment1 = memory[1],
                                .moment2 = memory[2],
                                .low_precision = memory[3]}}},
                  device_.compute());
  }

  const Device device_;
  const int64_t step_;
  Tensor states_[3], values_, gradient_;
};

/// Fills a result, limits first. Each group of rows uses its own device, which frees memory and
/// file at the end.
class Measurement {
 public:
  Measurement(const OffloadOptions& options, const std::function<bool(const std::string&)>& wanted)
      : options_(options), wanted_(wanted) {}

  OffloadResult run() {
    if (options_.type == Device::Type::cpu) {
      limits();
      swaps();
    } else {
      copies();
    }
    updates();
    return std::move(result_);
  }

 private:
  Device device() const { return device_of_rank(options_.type, 0, options_.device); }
  bool wants(const std::string& name, DType dtype) const {
    return wanted_(name + " " + name_of(dtype));
  }
  const OffloadRow& add(const std::string& name, const std::string& shape, DType dtype,
                        double bytes, double limit_s, const std::function<void()>& run) {
    return result_.rows.emplace_back(
        OffloadRow{name, shape, dtype, measure(run, effort), bytes, limit_s});
  }

  void limits() {
    OffloadLimits& limits = result_.limits;
    limits.memory = measure_memory_bandwidth(device());
    for (const bool io_uring : {true, false}) {
      RawDisk disk(options_, io_uring);
      if (io_uring && disk.engine() != "io_uring") continue;
      for (const bool writes : {true, false}) {  // unwritten blocks would not be read from the disk
        const OffloadRow& row =
            add(std::string("limit: drive ") + (writes ? "write, " : "read, ") + disk.engine(),
                mebibytes(options_.bytes), DType::u8, bytes_, 0.0, [&] { disk.run(writes); });
        double& limit = writes ? limits.write : limits.read;
        limit = std::max(limit, bytes_ / row.seconds[0]);
      }
    }
  }

  void copies() {
    const Device device = this->device();
    const Tensor here = Tensor::zeros({options_.bytes}, DType::u8, device);
    const Tensor host = Tensor::empty({options_.bytes}, DType::u8, device, host_space(device));
    for (const bool writes : {true, false}) {
      const OffloadRow& row =
          add(writes ? "limit: copy to the host" : "limit: copy to the device",
              mebibytes(options_.bytes), DType::u8, bytes_, 0.0, [&] {
                copy(writes ? here : host, writes ? host : here, device.compute());
                device.compute().synchronize();
              });
      (writes ? result_.limits.write : result_.limits.read) = bytes_ / row.seconds[0];
    }
  }

  void swaps() {
    const Device device = this->device();
    const Tensor file = Tensor::empty({options_.bytes}, DType::u8, device, Space::file);
    // One granule longer than the file. At an offset of one granule the memory is not
    // block-aligned, so the swap engine copies through its own buffers.
    const Tensor memory =
        Tensor::empty({options_.bytes + arena_granule}, DType::u8, device, Space::host);
    fill_zero(memory, device.compute());
    fill_zero(file, device.compute());
    result_.disk = swap_description(device);
    for (const bool aligned : {true, false})
      for (const bool writes : {true, false}) {
        const Tensor here = memory.flat(aligned ? 0 : arena_granule, options_.bytes);
        const std::string name =
            std::string(writes ? "swap write" : "swap read") + (aligned ? "" : ", through buffers");
        if (wants(name, DType::u8))
          add(name, mebibytes(options_.bytes), DType::u8, bytes_,
              bytes_ / (writes ? result_.limits.write : result_.limits.read), [&] {
                wait_for_swap(device, writes ? start_swap(here, file) : start_swap(file, here));
              });
      }
  }

  void updates() {
    const int64_t numel = options_.bytes / 4;
    const auto elements = static_cast<double>(numel);
    const std::string shape = std::to_string(numel);
    // Masters, moments and gradients are read; masters, moments and bf16 values are written.
    const double read = 16.0 * elements, written = 14.0 * elements;
    const OffloadLimits& limits = result_.limits;
    const bool is_cpu = options_.type == Device::Type::cpu;
    const auto limit_of = [&](Space space) {
      if (is_cpu) return (read + written) / limits.memory;
      // Reads and writes overlap.
      return space == Space::device ? 0.0 : std::max(read / limits.read, written / limits.write);
    };
    const auto in_memory = [&](const std::string& name, Space space) {
      const Update update(device(), space, numel);
      return add(name, shape, DType::f32, read + written, limit_of(space),
                 [&] { update.run(true); })
          .seconds[0];
    };
    if (const std::string name = "adamw, states on the device"; wants(name, DType::f32))
      in_memory(name, Space::device);
    const std::string near = "adamw, states on the host", far = "adamw, states on the drive";
    if (wants(near, DType::f32) || (is_cpu && wants(far, DType::f32))) {
      const double compute = in_memory(near, is_cpu ? Space::host : Space::pinned);
      if (is_cpu && wants(far, DType::f32)) streamed(far, shape, numel, compute);
    }
  }

  void streamed(const std::string& name, const std::string& shape, int64_t numel, double compute) {
    // Gradients stay in memory, so they are not read from the disk.
    const double read = 12.0 * static_cast<double>(numel), written = read / 12.0 * 14.0;
    const double limit_s = read / result_.limits.read + written / result_.limits.write;
    const Update update(device(), Space::file, numel);
    const auto fastest = [&](const std::string& row, bool computes) {
      return add(row, shape, DType::f32, read + written, limit_s, [&] { update.run(computes); })
          .seconds[0];
    };
    const double disk = fastest("the same without computing", false);
    const double both = fastest(name, true);
    result_.overlap = (compute + disk - both) / std::min(compute, disk);
  }

  const OffloadOptions& options_;
  const std::function<bool(const std::string&)>& wanted_;
  const double bytes_ = static_cast<double>(options_.bytes);
  OffloadResult result_;
};

}  // namespace

double OffloadRow::quantile(double q) const { return bench::quantile(seconds, q); }

OffloadResult measure_offload(const OffloadOptions& options,
                              const std::function<bool(const std::string&)>& wanted) {
  return Measurement(options, wanted).run();
}

}  // namespace zg::bench
