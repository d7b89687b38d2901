#include "zerograd/runtime/memory_blocks.h"

#include <utility>

#include "zerograd/runtime/device_state.h"

namespace zg {

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
