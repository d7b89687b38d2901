#include "zerograd/zero/checkpoint/snapshot.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"
#include "zerograd/zero/engine_state.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

bool is_read_in_place(const Tensor& values) {
  return values.dtype() == DType::f32 && host_reaches(values);
}

template <class F>
void for_each_chunk(const Tensor& values, const F& f) {
  for (int64_t begin = 0; begin < values.numel(); begin += chunk_elements)
    f(values.flat(begin, std::min(chunk_elements, values.numel() - begin)));
}

/// Widens f16 or bf16 to f32. `narrow` may be stored at the end of `wide`: each element is read
/// before its bytes are overwritten.
template <class T>
void widen(const std::byte* narrow, std::byte* wide, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    T value;
    std::memcpy(&value, narrow + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    const float widened = static_cast<float>(value);
    std::memcpy(wide + i * static_cast<int64_t>(sizeof(float)), &widened, sizeof(float));
  }
}

}  // namespace

Snapshot::Snapshot(const Engine& engine)
    : engine_(*engine.state_), stream_(engine.device().make_stream("snapshot")) {
  EngineState& s = engine_;
  if (s.snapshot)
    throw ConfigError("snapshot: the engine has one already; expected one save at a time");
  const int rank = s.comm.rank();
  for (const Storage& storage : s.storages) {
    const int64_t shard = storage.trainable.flat.shard_begin(rank);
    for (const FlatUnit::Piece& piece : storage.trainable.flat.shard(rank)) {
      if (piece.parameter->copy != Copy::own) continue;
      const int64_t begin = shard + piece.begin;
      for (const Engine::State& state : engine.states(*piece.parameter)) {
        const bool is_master = state == Engine::State::master;
        const size_t index = storage.index_of(*piece.parameter, state.name);
        const std::optional<Shape> shape = engine.shape_of(*piece.parameter, state);
        // The rank with the first element of the parameter saves a state with a shape of its own.
        if (shape && piece.offset == 0)
          add({piece.parameter, state, 0, shape->numel(), shape},
              {.values = storage.shaped(index, *piece.parameter),
               .storage = &storage,
               .begin = begin});
        if (shape) continue;
        const Tensor& values = is_master ? storage.masters : storage.states[index].tensor;
        const int64_t first = is_master ? storage.state_begin : storage.states[index].begin;
        add({piece.parameter, state, piece.offset, piece.numel()},
            {.values = values.flat(begin - first, piece.numel()),
             .storage = &storage,
             .begin = begin});
      }
    }
    for (const FlatUnit::Piece& piece : storage.frozen.flat.shard(rank))
      if (piece.parameter->copy == Copy::own && piece.parameter->saved)
        add({piece.parameter, Engine::State::master, piece.offset, piece.numel()},
            {.values = storage.frozen.shard.flat(piece.begin, piece.numel())});
  }
  if (rank == 0)
    for (const auto& parameter : s.store.parameters())
      if (parameter->whole.numel() == 0 && parameter->copy == Copy::own)
        for (const Engine::State& state : states_of(*parameter, engine))
          add({parameter.get(), state, 0, 0}, {});
  take_bucket(engine);
  engine.device().compute().synchronize();  // all steps so far must have finished
  s.snapshot = this;
}

Snapshot::~Snapshot() { engine_.snapshot = nullptr; }

void Snapshot::add(const Piece& piece, const Source& source) {
  pieces_.push_back(piece);
  sources_.push_back(source);
  sources_.back().read_after =
      (sources_.size() > 1 ? sources_[sources_.size() - 2].read_after : 0) + piece.numel;
}

void Snapshot::take_bucket(const Engine& engine) {
  int64_t bucket_numel = 0;
  for (const Source& source : sources_) {
    if (!source.values || is_read_in_place(source.values)) continue;
    bucket_numel = std::max(bucket_numel, std::min(chunk_elements, source.values.numel()));
    if (in_file(source.values)) for_each_chunk(source.values, count_read);
  }
  if (bucket_numel == 0) return;
  const PurposeScope purpose(engine.device(), Purpose::workspace);
  const NameScope name(engine.device(), "checkpoint");
  bucket_ = Tensor::empty({bucket_numel}, DType::f32, engine.device(), host_space(engine.device()));
}

void Snapshot::read(size_t piece, const Visit& visit) {
  if (!sources_[piece].values) return;
  try {
    for_each_chunk(sources_[piece].values, [&](const Tensor& chunk) {
      visit(floats(chunk));
      const std::lock_guard lock(mutex_);
      read_ += chunk.numel();
      changed_.notify_all();
    });
  } catch (...) {
    abandon();
    throw;
  }
}

std::span<const float> Snapshot::floats(const Tensor& chunk) const {
  const int64_t numel = chunk.numel();
  if (is_read_in_place(chunk)) return {chunk.data<float>(), static_cast<size_t>(numel)};
  std::byte* const wide = bucket_.raw();
  const std::byte* narrow = chunk.raw();
  if (!host_reaches(chunk)) {
    const Tensor end = bucket_.alias(numel * (size_of(DType::f32) - size_of(chunk.dtype())),
                                     {numel}, chunk.dtype());
    if (in_file(chunk)) {
      read_counted(chunk, end);
    } else {
      stream_->copy(end.raw(), chunk.raw(), static_cast<size_t>(chunk.bytes()));
      stream_->synchronize();
    }
    narrow = end.raw();
  }
  if (chunk.dtype() == DType::bf16) widen<bf16>(narrow, wide, numel);
  if (chunk.dtype() == DType::f16) widen<f16>(narrow, wide, numel);
  return {bucket_.data<float>(), static_cast<size_t>(numel)};
}

void Snapshot::wait_for(int64_t elements) {
  if (engine_.on_meta()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return read_ >= elements; });
}

void Snapshot::wait_until_read(const Storage& storage, int64_t end) {
  int64_t elements = 0;
  for (const Source& source : sources_)
    if (source.storage == &storage && source.begin < end) elements = source.read_after;
  wait_for(elements);
}

void Snapshot::wait_until_read(const Tensor& tensor) {
  int64_t elements = 0;
  for (const auto& [values, storage, begin, read_after] : sources_)
    if (values && values.buffer() == tensor.buffer() &&
        values.byte_offset() < tensor.byte_offset() + tensor.bytes() &&
        tensor.byte_offset() < values.byte_offset() + values.bytes())
      elements = read_after;
  wait_for(elements);
}

void Snapshot::wait_until_read() { wait_for(sources_.empty() ? 0 : sources_.back().read_after); }

void Snapshot::abandon() {
  const std::lock_guard lock(mutex_);
  read_ = std::numeric_limits<int64_t>::max();
  changed_.notify_all();
}

}  // namespace zg::zero
