#pragma once

#include <array>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "zerograd/runtime/arena.h"
#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/memory.h"

namespace zg {

namespace cpu {
class SwapFile;
}

/// A plan, or a run that is compared with one, sees here what a device does (runtime/recorder.h).
class DeviceObserver {
 public:
  virtual void note_allocation(int64_t bytes, Space space, Purpose purpose,
                               const std::string& phase, const std::string& name) = 0;
  virtual void note_refusal(RefusedAllocation refused) = 0;
  virtual void note_read() = 0;  ///< the host reads values of a tensor
  virtual void note_step() = 0;

 protected:
  ~DeviceObserver() = default;
};

class BlockRecord;

/// The arenas and the memory accounting of one device.
class Ledger final : public MemoryTracker {
 public:
  Ledger(std::string device_name, Device::Type type, int index, const Device::Options& options);

  int64_t live(Space space) const override { return read(space, &Account::total); }
  BytesByPurpose live_by_purpose(Space space) const override { return read(space, &Account::live); }
  int64_t peak(Space space) const override { return read(space, &Account::peak); }
  int64_t reserved(Space space) const override;
  int64_t peak_reserved(Space space) const override { return read(space, &Account::peak_reserved); }
  std::string peak_phase(Space space) const override { return read(space, &Account::peak_phase); }
  std::vector<Row> rows() const override;
  void reset_peaks() override;
  std::vector<Row> lifetime_rows() const override;
  int64_t lifetime_peak(Space space) const override { return read(space, &Account::lifetime_peak); }
  int64_t lifetime_reserved(Space space) const override {
    return read(space, &Account::lifetime_reserved);
  }
  int64_t limit(Space space) const override;
  std::string phase() const override;
  std::string name() const override;

  struct Block {
    int64_t offset;
    std::byte* data;
    Purpose purpose;
  };
  Block allocate(int64_t bytes, Space space);
  void release(int64_t offset, int64_t bytes, Space space, Purpose purpose);
  Purpose exchange_purpose(Purpose purpose);
  std::string exchange_phase(std::string phase);
  std::string exchange_name(std::string name);
  /// Sets the observer that is called before every allocation; null: none. It must outlive the
  /// device's allocations.
  void set_observer(DeviceObserver* observer) { observer_ = observer; }
  DeviceObserver* observer() const { return observer_; }
  /// Sets the record of the blocks of Space::device; null: none.
  void set_blocks(BlockRecord* blocks);
  /// Whether the address is in Space::device of this device.
  bool is_on_device(const void* place) const;

 private:
  struct Account {
    std::unique_ptr<Arena> arena;  // made at first use
    BytesByPurpose live{};
    int64_t total = 0, peak = 0, peak_reserved = 0;
    int64_t lifetime_peak = 0, lifetime_reserved = 0;
    std::string peak_phase = "outside";  // the phase that first reached peak_reserved

    int64_t reserved() const { return arena ? arena->reserved() : 0; }
  };
  /// A row per phase and space.
  struct Rows {
    std::vector<Row> rows;
    std::array<int, space_count> current;  // row of the running phase; -1: not found yet

    Rows() { current.fill(-1); }
    void update(const std::string& phase, Space space, const Account& account);
  };
  template <class T>
  T read(Space space, T Account::*member) const {
    std::lock_guard lock(mutex_);
    return account(space).*member;
  }
  Account& account(Space space) { return accounts_[static_cast<size_t>(space)]; }
  const Account& account(Space space) const { return accounts_[static_cast<size_t>(space)]; }
  std::unique_ptr<ArenaMemory> make_memory(Space space) const;
  [[noreturn]] void refuse(int64_t bytes, Space space, const std::string& why, int64_t held) const;

  const std::string device_name_;
  const Device::Type type_;
  const int index_;
  const int64_t device_limit_, host_limit_;
  const bool has_addresses_;  // on meta: blocks have addresses, which must not be read
  mutable std::mutex mutex_;  // buffers may be freed while another thread reads the accounting
  std::array<Account, space_count> accounts_;
  Purpose purpose_ = Purpose::activation;
  std::string phase_ = "outside", name_;
  Rows rows_, lifetime_rows_;
  DeviceObserver* observer_ = nullptr;
  BlockRecord* blocks_ = nullptr;
};

/// Collectives whose results the compute queue awaits by events while the host goes on
/// (QueuedCommunicator::wait_on_device), one entry for each communicator. Only the rank's own
/// thread uses it.
class UnconfirmedCollectives {
 public:
  /// `wait` blocks until the collective, and all before it of this communicator, are done, and
  /// throws their error.
  void add(const void* communicator, std::function<void()> wait);
  /// Returns whether there was an entry.
  bool remove(const void* communicator);
  /// Waits for those of all communicators but `except` and removes them. One that has failed stays:
  /// the next call throws its error again.
  void confirm(const void* except = nullptr);
  /// For a communicator that is gone: confirm() throws its error from now on.
  void fail(std::exception_ptr error) { failure_ = std::move(error); }
  bool empty() const { return waits_.empty() && !failure_; }

 private:
  std::map<const void*, std::function<void()>> waits_;
  std::exception_ptr failure_;
};

/// State that all handles of one logical device share.
struct DeviceState : std::enable_shared_from_this<DeviceState> {
  DeviceState(Device::Type type, int index, const Device::Options& options, Device::Type backend);

  static Device make(Device::Type type, int index, const Device::Options& options,
                     Device::Type backend);
  static DeviceState& of(const Device& device) { return *device.state_; }
  Device handle() { return Device(shared_from_this()); }
  std::unique_ptr<Stream> make_stream(const char* stream);

  const Device::Type type;
  const int index;
  const std::string name;
  Device::Traits traits;
  Ledger ledger;
  std::shared_ptr<Trace> trace;
  int trace_rank = 0;
  std::unique_ptr<LaunchCounter> launches;  ///< null: not counted
  std::unique_ptr<Stream> compute;
  UnconfirmedCollectives unconfirmed;
  /// The counter, for work on one of the device's streams; null if it is not counted there.
  LaunchCounter* launches_on(const Stream& stream) const {
    return &stream == compute.get() ? launches.get() : nullptr;
  }
  /// Count a call of Stream::copy() and of fill_zero() on a stream.
  void count_copy(const Stream& stream, const void* to, const void* from, size_t bytes) const;
  void count_fill(const Stream& stream, size_t bytes) const;
  /// The file of Space::file. Made by its first allocation; never on a meta device.
  std::unique_ptr<cpu::SwapFile> swap_file;
  const SwapOptions swap;
  SwapCount swapped, unplanned;  ///< `unplanned` is a part of `swapped`
  /// Text files that a plan wrote on this meta device, by path, so that the plan can load them.
  std::map<std::string, std::string> planned_files;
  int rank = -1;  ///< the rank that run_local or run_processes gave the device to; -1: none
  /// Grows the swap file to what the arena of Space::file reserves.
  void reserve_file();
};

/// The CPU devices of the process or of a rank, for Device::cpu().
class CpuDevices {
 public:
  Device find_or_make(int index, const Device::Options& options);

 private:
  struct Entry {
    int index;
    Device::Options options;
    std::weak_ptr<DeviceState> device;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

/// RAII: this thread works as a rank on this device.
class RankScope {
 public:
  RankScope(const Device& device, int rank);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  friend class Device;
  const Device device_;
  CpuDevices others_;
  RankScope* const outer_;
};

/// A stream of a device, which owns it.
class DeviceStream : public Stream {
 public:
  DeviceStream(DeviceState& state, const char* name) : state_(state), name_(name) {}
  Device device() const override { return state_.handle(); }
  const Device::Traits& traits() const override { return state_.traits; }
  Device::Type type() const override { return state_.type; }
  Trace* trace() const override { return state_.trace.get(); }
  const char* name() const override { return name_; }

 protected:
  DeviceState& state_;
  const char* const name_;
};

namespace cpu {
/// For the CPU and for meta devices.
std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name);
/// The highest instruction set that the processor, Linux and this build support. The first call
/// asks Linux to let this process use tile registers.
Isa machine_isa();
}  // namespace cpu

}  // namespace zg
