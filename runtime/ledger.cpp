#include "zerograd/runtime/memory.h"

#include <algorithm>
#include <ostream>
#include <sstream>
#include <utility>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/cpu/poison.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/memory_blocks.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
Space host_space(const Device& device) {
  return device.traits().backend == Device::Type::cpu ? Space::host : Space::pinned;
}

Ledger::Ledger(std::string device_name, Device::Type type, int index,
               const Device::Options& options)
    : device_name_(std::move(device_name)),
      type_(type),
      index_(index),
      device_limit_(options.memory_limit),
      host_limit_(options.host_limit),
      has_addresses_(type == Device::Type::meta && options.count_launches) {}

namespace {

// Limit of the sum of all buffers of a space, also in a plan: larger sums could overflow.
constexpr int64_t max_bytes = int64_t{1} << 62;

/// The address that stands for the start of a space on a meta device. Nothing is mapped there, so
/// reading it ends the process. It is aligned like real memory, because host code chooses kernels
/// by the alignment of their operands.
std::byte* planned_base(Space space) {
  constexpr int address_bits = 52;  // above the addresses of user space
  return reinterpret_cast<std::byte*>((uintptr_t{1} + static_cast<uintptr_t>(space))
                                      << address_bits);
}

}  // namespace

bool Ledger::is_on_device(const void* place) const {
  std::lock_guard lock(mutex_);
  const std::unique_ptr<Arena>& arena = account(Space::device).arena;
  if (!arena) return false;
  const std::byte* const base = has_addresses_ ? planned_base(Space::device) : arena->base();
  const auto at = reinterpret_cast<uintptr_t>(place), begin = reinterpret_cast<uintptr_t>(base);
  return base && at >= begin && at - begin < static_cast<uintptr_t>(arena->reserved());
}

int64_t Ledger::limit(Space space) const {
  return space == Space::device ? device_limit_ : space == Space::file ? 0 : host_limit_;
}

void Ledger::refuse(int64_t bytes, Space space, const std::string& why, int64_t held) const {
  std::ostringstream message;
  message << "allocate: " << mib(bytes) << " MiB (" << bytes << " bytes) of " << name_of(purpose_)
          << (name_.empty() ? "" : " for " + name_) << " on " << device_name_ << " ("
          << name_of(space) << ") in phase " << phase_ << "; " << why << ", of which " << mib(held)
          << " MiB are reserved and " << mib(account(space).total)
          << " MiB live, and more in steps of " << mib(Arena::grow_bytes) << " MiB; try "
          << (space == Space::device
                  ? "a smaller batch, checkpoint() (--activation-checkpoint), or a larger limit\n"
                  : "offloading less, or a larger limit\n");
  for (int p = 0; p < purpose_count; ++p)
    message << "  " << name_of(static_cast<Purpose>(p)) << " "
            << mib(account(space).live[static_cast<size_t>(p)]) << " MiB\n";
  if (observer_) observer_->note_refusal({bytes, space, purpose_, phase_, name_, message.str()});
  throw OutOfMemory(message.str());
}

std::unique_ptr<ArenaMemory> Ledger::make_memory(Space space) const {
  if (type_ == Device::Type::meta || space == Space::file) return nullptr;
  const Backend* backend = backend_of(type_);
  return backend && space != Space::host ? backend->memory(index_, space) : host_memory();
}

Ledger::Block Ledger::allocate(int64_t bytes, Space space) {
  std::lock_guard lock(mutex_);
  if (observer_) observer_->note_allocation(bytes, space, purpose_, phase_, name_);
  Account& account = this->account(space);
  if (!account.arena) try {
      account.arena = std::make_unique<Arena>(make_memory(space));
    } catch (const OutOfMemory& error) {
      refuse(bytes, space, error.what(), 0);
    }
  if (bytes >= max_bytes - account.arena->reserved())
    refuse(bytes, space, fmt::format("expected less than {} MiB in all", mib(max_bytes)),
           account.arena->reserved());
  if (const int64_t limit = this->limit(space); limit > 0) {
    int64_t others = 0;
    if (space != Space::device) {
      const Space other = space == Space::host ? Space::pinned : Space::host;
      others = this->account(other).reserved();
    }
    if (account.arena->reserved_after(bytes) + others > limit)
      refuse(bytes, space, fmt::format("expected at most {} MiB in all", mib(limit)),
             account.arena->reserved() + others);
  }
  int64_t offset = 0;
  try {
    offset = account.arena->allocate(bytes);
  } catch (const OutOfMemory& error) {
    refuse(bytes, space, error.what(), account.arena->reserved());
  }
  account.live[static_cast<size_t>(purpose_)] += bytes;
  account.total += bytes;
  account.peak = std::max(account.peak, account.total);
  if (account.reserved() > account.peak_reserved) {
    account.peak_reserved = account.reserved();
    account.peak_phase = phase_;
  }
  account.lifetime_peak = std::max(account.lifetime_peak, account.total);
  account.lifetime_reserved = std::max(account.lifetime_reserved, account.reserved());
  rows_.update(phase_, space, account);
  lifetime_rows_.update(phase_, space, account);
  if (blocks_ && space == Space::device)
    blocks_->allocate({offset, bytes, purpose_, name_, phase_});
  std::byte* base = account.arena->base();
  if (has_addresses_ && space != Space::file) base = planned_base(space);
  return {offset, base ? base + offset : nullptr, purpose_};
}

void Ledger::release(int64_t offset, int64_t bytes, Space space, Purpose purpose) {
  std::lock_guard lock(mutex_);
  Account& account = this->account(space);
  account.arena->release(offset, bytes);
  account.live[static_cast<size_t>(purpose)] -= bytes;
  account.total -= bytes;
  if (blocks_ && space == Space::device) blocks_->release(offset);
}

void Ledger::set_blocks(BlockRecord* blocks) {
  std::lock_guard lock(mutex_);
  blocks_ = blocks;
}

void Ledger::Rows::update(const std::string& phase, Space space, const Account& account) {
  int& index = current[static_cast<size_t>(space)];
  if (index < 0) {
    const auto found = std::ranges::find_if(
        rows, [&](const Row& row) { return row.phase == phase && row.space == space; });
    index = static_cast<int>(found - rows.begin());
    if (found == rows.end()) rows.push_back({phase, space, account.live, account.total, 0});
  }
  Row& row = rows[static_cast<size_t>(index)];
  row.reserved = std::max(row.reserved, account.reserved());
  if (account.total >= row.peak) {
    row.peak = account.total;
    row.live = account.live;
  }
}

int64_t Ledger::reserved(Space space) const {
  std::lock_guard lock(mutex_);
  return account(space).reserved();
}

std::vector<MemoryTracker::Row> Ledger::rows() const {
  std::lock_guard lock(mutex_);
  return rows_.rows;
}

std::vector<MemoryTracker::Row> Ledger::lifetime_rows() const {
  std::lock_guard lock(mutex_);
  return lifetime_rows_.rows;
}

void Ledger::reset_peaks() {
  std::lock_guard lock(mutex_);
  rows_ = {};
  for (Account& account : accounts_) {
    account.peak = account.total;
    account.peak_reserved = account.reserved();
    account.peak_phase = phase_;
  }
}

std::string Ledger::phase() const {
  std::lock_guard lock(mutex_);
  return phase_;
}

std::string Ledger::name() const {
  std::lock_guard lock(mutex_);
  return name_;
}

Purpose Ledger::exchange_purpose(Purpose purpose) {
  std::lock_guard lock(mutex_);
  return std::exchange(purpose_, purpose);
}

std::string Ledger::exchange_name(std::string name) {
  std::lock_guard lock(mutex_);
  return std::exchange(name_, std::move(name));
}

std::string Ledger::exchange_phase(std::string phase) {
  std::lock_guard lock(mutex_);
  std::string before = std::exchange(phase_, std::move(phase));
  if (blocks_) blocks_->begin_phase(phase_);
  for (Rows* rows : {&rows_, &lifetime_rows_}) {
    rows->current.fill(-1);
    // Bytes that are live when a phase begins count for its peak.
    for (int s = 0; s < space_count; ++s)
      if (const Account& account = accounts_[static_cast<size_t>(s)]; account.total > 0)
        rows->update(phase_, static_cast<Space>(s), account);
  }
  return before;
}

void MemoryTracker::print(std::ostream& out) const {
  out << "| phase | space |";
  for (int p = 0; p < purpose_count; ++p) out << " " << name_of(static_cast<Purpose>(p)) << " |";
  out << " peak MiB | reserved MiB |\n|---|---|";
  for (int p = 0; p < purpose_count + 2; ++p) out << "---:|";
  out << "\n";
  for (const Row& row : rows()) {
    out << "| " << row.phase << " | " << name_of(row.space) << " |";
    for (int64_t bytes : row.live) out << " " << mib(bytes) << " |";
    out << " " << mib(row.peak) << " | " << mib(row.reserved) << " |\n";
  }
}

Buffer::Buffer(const Device& device, int64_t bytes, Space space)
    : device_(device), bytes_(bytes), space_(space) {
  const Ledger::Block block =
      device_.state_->ledger.allocate(arena_bytes(std::min(bytes, max_bytes), space), space);
  offset_ = block.offset;
  data_ = block.data;
  if (device_.type() != Device::Type::meta) unpoison(data_, bytes);
  purpose_ = block.purpose;
  if (space != Space::file) return;
  try {
    device_.state_->reserve_file();
  } catch (...) {
    device_.state_->ledger.release(offset_, arena_bytes(bytes, space), space, purpose_);
    throw;
  }
}

Buffer::Buffer(const Device& device, std::byte* data, int64_t bytes, Space space,
               std::shared_ptr<void> owner)
    : device_(device),
      bytes_(bytes),
      data_(data),
      space_(space),
      purpose_(Purpose::comm),  // not an activation: no result of autograd
      owner_(std::move(owner)) {}

std::shared_ptr<Buffer> Buffer::share(const Device& device, std::byte* data, int64_t bytes,
                                      Space space, std::shared_ptr<void> owner) {
  return std::shared_ptr<Buffer>(new Buffer(device, data, bytes, space, std::move(owner)));
}

std::shared_ptr<Buffer> Buffer::allocate(const Device& device, int64_t bytes, Space space) {
  return std::shared_ptr<Buffer>(new Buffer(device, bytes, space));
}

Buffer::~Buffer() {
  if (owner_) return;
  if (device_.type() != Device::Type::meta) poison(data_, bytes_);
  device_.state_->ledger.release(offset_, arena_bytes(bytes_, space_), space_, purpose_);
}

PurposeScope::PurposeScope(const Device& device, Purpose purpose)
    : device_(device), before_(static_cast<Ledger&>(device.memory()).exchange_purpose(purpose)) {}

PurposeScope::~PurposeScope() { static_cast<Ledger&>(device_.memory()).exchange_purpose(before_); }

PhaseScope::PhaseScope(const Device& device, std::string_view phase)
    : device_(device),
      before_(static_cast<Ledger&>(device.memory()).exchange_phase(std::string(phase))) {}

PhaseScope::~PhaseScope() {
  static_cast<Ledger&>(device_.memory()).exchange_phase(std::move(before_));
}

NameScope::NameScope(const Device& device, std::string name)
    : device_(device),
      before_(static_cast<Ledger&>(device.memory()).exchange_name(std::move(name))) {}

NameScope::~NameScope() {
  static_cast<Ledger&>(device_.memory()).exchange_name(std::move(before_));
}

BlockRecord::BlockRecord(const Device& device, size_t most) : device_(device), most_(most) {
  Ledger& ledger = static_cast<Ledger&>(device.memory());
  begin_phase(ledger.phase());
  ledger.set_blocks(this);
}

BlockRecord::~BlockRecord() { static_cast<Ledger&>(device_.memory()).set_blocks(nullptr); }

void BlockRecord::restart() {
  const std::lock_guard lock(mutex_);
  MemoryBlocks before = std::exchange(recorded_, {});
  recorded_.phases = {{0, before.phases.back().name}};
  for (auto& [offset, index] : live_) {
    recorded_.blocks.push_back(std::move(before.blocks[index]));
    recorded_.blocks.back().begin = -1;
    index = recorded_.blocks.size() - 1;
  }
}

MemoryBlocks BlockRecord::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

void BlockRecord::allocate(MemoryBlock block) {
  const std::lock_guard lock(mutex_);
  if (recorded_.blocks.size() >= most_) return;
  block.begin = recorded_.events++;
  live_[block.offset] = recorded_.blocks.size();
  recorded_.blocks.push_back(std::move(block));
}

void BlockRecord::release(int64_t offset) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(offset);
  if (found == live_.end()) return;
  recorded_.blocks[found->second].end = recorded_.events++;
  live_.erase(found);
}

void BlockRecord::begin_phase(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryBlocks::Phase>& phases = recorded_.phases;
  if (!phases.empty() && phases.back().begin == recorded_.events)
    phases.back().name = name;
  else
    phases.push_back({recorded_.events, name});
}

}  // namespace zg
