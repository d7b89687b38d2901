#pragma once

#include <level_zero/ze_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/fakes/level_zero/group.h"
#include "tests/fakes/level_zero/memory.h"
#include "tests/fakes/level_zero/program.h"
#include "tests/fakes/level_zero/spirv.h"

// The objects behind Level Zero handles. State::mutex (state.h) guards all of them.
namespace zg::test_driver {

struct Device {
  int index = 0;
  char name[64] = {};  ///< "device 0", for messages
  size_t allocated = 0;
  int chunks = 0;  ///< mapped at reserved addresses so far
};

struct Context {};

struct PhysicalMemory {
  Device* device = nullptr;
  size_t bytes = 0;
  int mapped = 0;  ///< number of mappings
};

struct EventPool {
  uint32_t count = 0;
  bool timestamps = false, host_visible = false;
  std::set<uint32_t> used;
  std::set<const Device*> devices;  ///< whose commands may use its events; none: all
};

struct Event {
  EventPool* pool = nullptr;
  uint32_t index = 0;
  bool signalled = false;
  int signals = 0, waits = 0;  ///< pending commands that will signal it; that wait for it
  uint64_t start_ns = 0, end_ns = 0;
};

/// A memory range that a command accesses.
struct Range {
  const void* begin = nullptr;
  size_t bytes = 0;
};

struct Command {
  enum class Order {
    none,     ///< may run before or after its neighbours
    barrier,  ///< runs after all commands before it and before all commands after it
    wait      ///< runs before all commands after it
  };
  std::string what;
  Order order = Order::none;
  std::function<std::string()> work;  ///< returns an error message, or ""
  std::vector<Event*> waits;
  Event* signal = nullptr;
  std::vector<Range> memory;
};

/// Pending commands of one immediate list or one queue.
struct Queue {
  Device* device = nullptr;
  uint64_t number = 0;  ///< in order of creation
  bool synchronous = false;
  bool computes = true;   ///< false: a copy engine
  bool in_order = false;  ///< commands run in the order in which they were appended
  std::deque<Command> commands;
};

struct CommandList {
  Device* device = nullptr;
  Queue* immediate = nullptr;  ///< null: a list that a queue executes
  std::vector<Command> recorded;
  bool closed = false;
};

struct BuildLog {
  std::string words;
};

struct Module {
  Device* device = nullptr;
  std::vector<std::byte> spirv;
  SpirvModule contents;
  std::shared_ptr<const Program> program;
  std::string unlinked;  ///< a function that the device's compiler does not define
};

struct ArgumentValue {
  bool set = false;
  size_t local_bytes = 0;
  std::vector<std::byte> bytes;
};

struct Kernel {
  Module* module = nullptr;
  std::shared_ptr<const Program> program;
  KernelSignature signature;
  std::vector<ArgumentValue> arguments;
  Extent group{};
};

}  // namespace zg::test_driver
