#include "zerograd/runtime/storage/swap.h"

#include <optional>
#include <utility>

#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/storage/swap_file.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/trace.h"

namespace zg {
namespace {

bool is_on_file(const Tensor& tensor) { return tensor.buffer()->space() == Space::file; }

/// Queues the transfer. The caller gets `note` from note_of() and counts the bytes.
SwapTicket push(const Tensor& from, const Tensor& to, cpu::SwapFile::SpanInfo note, bool ahead) {
  if (!from || !to || from.numel() != to.numel() || from.dtype() != to.dtype())
    raise<ShapeError>("swap: expected equal sizes and element types, got {} and {}", from.shape(),
                      to.shape());
  const bool writes = is_on_file(to);
  if (writes == is_on_file(from))
    throw ShapeError("swap: expected one tensor in memory and one in Space::file");
  const Tensor& file = writes ? to : from;
  const Tensor& memory = writes ? from : to;
  const DeviceState& device = DeviceState::of(file.device());
  if (!device.swap_file || file.numel() == 0) return {};
  const int64_t ticket =
      device.swap_file->push({.offset = file.buffer()->file_offset() + file.byte_offset(),
                              .memory = memory.raw(),
                              .bytes = memory.bytes(),
                              .writes = writes,
                              .span = std::move(note)},
                             ahead);
  return cpu::SwapFile::is_ahead(ticket) ? SwapTicket{.ahead = ticket}
                                         : SwapTicket{.other = ticket};
}

void wait(const DeviceState& device, const SwapTicket& ticket) {
  if (!device.swap_file) return;
  device.swap_file->wait(ticket.ahead);
  device.swap_file->wait(ticket.other);
}

/// The span of a transfer in the trace; nothing without a trace.
cpu::SwapFile::SpanInfo note_of(const Device& device,
                                std::initializer_list<std::string_view> name) {
  cpu::SwapFile::SpanInfo note;
  if (!device.trace()) return note;
  note.trace = device.trace()->shared_from_this();
  note.rank = device.trace_rank();
  for (const std::string_view part : name) note.name += part;
  if (note.name.empty()) note.name = device.memory().name();
  return note;
}

}  // namespace

SwapTicket start_swap(const Tensor& from, const Tensor& to,
                      std::initializer_list<std::string_view> name, bool ahead) {
  const Device& device = from.device();
  device.compute().synchronize();  // queued kernels may still use the memory
  const SwapTicket ticket = push(from, to, note_of(device, name), ahead);
  if (is_on_file(from))
    count_read(from);
  else
    DeviceState::of(to.device()).swapped.written += block_bytes(to);
  return ticket;
}

void wait_for_swap(const Device& device, SwapTicket ticket) {
  std::optional<TraceSpan> span;
  if (device.trace() && !is_swapped(device, ticket))
    span.emplace(device.compute(), "wait for disk", Trace::Kind::wait);
  wait(DeviceState::of(device), ticket);
}

bool is_swapped(const Device& device, SwapTicket ticket) {
  const DeviceState& state = DeviceState::of(device);
  return !state.swap_file ||
         (state.swap_file->is_done(ticket.ahead) && state.swap_file->is_done(ticket.other));
}

void count_read(const Tensor& file) {
  DeviceState::of(file.device()).swapped.read += block_bytes(file);
}

void read_counted(const Tensor& file, const Tensor& memory) {
  wait(DeviceState::of(file.device()), push(file, memory, {}, /*ahead=*/false));
}

std::string swap_description(const Device& device) {
  const DeviceState& state = DeviceState::of(device);
  return state.swap_file ? state.swap_file->description() : "";
}

std::string swap_requests(const Device& device) {
  const DeviceState& state = DeviceState::of(device);
  return state.swap_file ? state.swap_file->requests() : "";
}

SwapCount swapped(const Device& device) { return DeviceState::of(device).swapped; }

int64_t block_bytes(const Tensor& file) {
  constexpr int64_t block = file_granule;
  const int64_t begin = file.byte_offset() / block;
  const int64_t end = (file.byte_offset() + file.bytes() + block - 1) / block;
  return (end - begin) * block;
}

void count_unplanned(const Device& device, const SwapCount& bytes) {
  SwapCount& unplanned = DeviceState::of(device).unplanned;
  unplanned.read += bytes.read;
  unplanned.written += bytes.written;
}

SwapCount swapped_as_planned(const Device& device) {
  const DeviceState& state = DeviceState::of(device);
  return {.read = state.swapped.read - state.unplanned.read,
          .written = state.swapped.written - state.unplanned.written};
}

}  // namespace zg
