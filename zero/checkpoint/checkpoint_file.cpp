#include "zerograd/zero/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/parallel/model_parts.h"
#include "zerograd/zero/parallel/whole_model.h"
#include "zerograd/zero/states/partition.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

namespace fs = std::filesystem;
using State = Engine::State;

using Only = std::function<bool(const Parameter&)>;

bool is_saved(const Parameter& parameter) { return parameter.saved; }

bool on_meta(const Engine& engine) { return engine.device().type() == Device::Type::meta; }

/// Throws if the file has a parameter that no rank has.
void check_nothing_else(const std::string& path, const std::map<std::string, Shape>& there,
                        const Engine& engine) {
  std::vector<int64_t> ranks;
  ranks.reserve(there.size());
  for (const auto& parameter : there)
    ranks.push_back(engine.store().find(parameter.first) || on_meta(engine) ? 1 : 0);
  if (const Mesh* mesh = engine.mesh(); mesh && !ranks.empty())
    ranks = sum_over_parts(ranks, *mesh, engine.device(), "parameters of a checkpoint");
  if (on_meta(engine) && engine.mesh()) return;
  auto has = ranks.begin();
  for (const auto& [name, shape] : there)
    if (*has++ == 0)
      raise<FileError>(
          "load: {}: has '{}' {}, which the model does not have; load_weights() loads "
          "only the model's parameters",
          path, name, shape);
}

/// Divides `held` into ranges and calls f for each. A range has at most 32 MiB (eight blocks of a
/// checkpoint), which limits the extra memory of a load.
template <class F>
void for_each_range(const Engine::Held& held, const F& f) {
  constexpr int64_t chunk = int64_t{1} << 23;
  for (int64_t begin = held.begin; begin < held.end; begin += chunk)
    f(Engine::Held{begin, std::min(begin + chunk, held.end)});
}

/// True if the slice is a contiguous range of the whole parameter.
bool is_range(const Slice& slice) { return slice.outer == 1 || slice.is_whole(); }

std::vector<float> part_of(const std::vector<float>& whole, const Slice& slice) {
  std::vector<float> part(static_cast<size_t>(slice.numel()));
  for_each_common(slice, 0, slice.numel(), whole_slice(slice.whole_numel()),
                  [&](int64_t i, int64_t j, int64_t count) {
                    std::copy_n(whole.begin() + j, count, part.begin() + i);
                  });
  return part;
}

/// Reads the states of a checkpoint.
struct States {
  const Manifest& manifest;
  std::function<bool(const std::string& parameter, const std::string& state)> reads_ranges;
  /// Null if the parameter has no such state.
  std::function<std::vector<float>(const Parameter& parameter, const std::string& state,
                                   const Engine::Held& range)>
      read;
};

void load_states(const States& states, Engine& engine) {
  for (const auto& entry : engine.store().by_name()) {
    const Parameter& parameter = *entry.second;
    for (const State& state : states_of(parameter, engine)) {
      const Engine::Held held = engine.held(parameter, state);
      const auto load = [&](const Engine::Held& range) {
        std::vector<float> values;
        if (states.read && range.begin < range.end)
          values = states.read(parameter, state.name, range);
        engine.write_held(parameter, state, range, values);
      };
      if (is_range(parameter.slice) && states.reads_ranges(entry.first, state.name))
        for_each_range(held, load);
      else
        load(held);
    }
  }
  const CheckpointInfo& info = states.manifest.info;
  engine.set_steps(info.steps - info.skipped, info.skipped);
  engine.set_loss_scaler(states.manifest.loss_scaler);
}

std::string text_of(const std::vector<std::string>& states) {
  return states.empty() ? "no moments" : join(states, " and ");
}

/// Several optimizers may share the parameters, as parameter groups say. Throws ConfigError if the
/// checkpoint has other states of a parameter.
void check_states(const std::string& path, const Manifest& manifest, const Engine& engine) {
  std::map<std::string, std::set<std::string>> saved;
  for (const Manifest::Piece& piece : manifest.pieces) saved[piece.parameter].insert(piece.state);
  for (const auto& [name, parameter] : engine.store().by_name()) {
    const std::set<std::string>& there = saved[name];
    if (!parameter->trainable || there.size() < 2) continue;
    std::set<std::string> here;
    for (const State& state : engine.states(*parameter)) here.insert(state.name);
    if (here == there) continue;
    const auto text = [](const std::set<std::string>& states) {
      return text_of({states.begin(), states.end()});
    };
    raise<ConfigError>(
        "load: {}: {} has {} there; expected {}, which its optimizer has as the parameter groups "
        "say here; try the parameter groups that it was saved with, or load its weights alone "
        "(--init)",
        path, name, text(there), text(here));
  }
}

/// Throws ConfigError if another optimizer saved the checkpoint: its states mean something else.
void check_optimizer(const std::string& path, const Manifest& manifest, const Engine& engine) {
  const Optimizers& optimizers = engine.optimizers();
  const std::string own = optimizers.main().name();
  if (manifest.optimizer == own && manifest.states == optimizers.element_states()) {
    if (optimizers.all().size() > 1 || manifest.shared) check_states(path, manifest, engine);
    return;
  }
  const auto text = [](std::vector<std::string> states, const std::set<std::string>& shaped) {
    for (const std::string& name : shaped) states.push_back(name + " of whole parameters");
    return text_of(states);
  };
  std::set<std::string> there, here;  // the states with shapes of their own
  for (const Manifest::Piece& piece : manifest.pieces)
    if (piece.state != "master") there.insert(piece.state);
  for (const std::string& state : manifest.states) there.erase(state);
  for (const Optimizers::Array& array : optimizers.arrays())
    if (array.shaped) here.insert(array.name);
  raise<ConfigError>(
      "load: {} was saved by {} with {}; expected {} with {}, as this engine has; try "
      "the optimizer that saved it, or load its weights alone (--init)",
      path, manifest.optimizer == "adam" ? "adam or adamw" : manifest.optimizer,
      text(manifest.states, there), optimizer_name(engine.config().update),
      text(optimizers.element_states(), here));
}

/// The path without a trailing slash.
fs::path plain(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

/// The checkpoint that this plan saved before at `path`, or as the newest one in the directory
/// `path`.
std::optional<Manifest> planned_checkpoint(const std::string& path, const Engine& engine) {
  const fs::path wanted = plain(path);
  std::optional<Manifest> newest;
  for (const auto& [file, text] : planned_files(engine.device())) {
    const fs::path folder = fs::path(file).parent_path();
    if (folder != wanted && folder.parent_path() != wanted) continue;
    Manifest manifest = manifest_from(text, file);
    if (!newest || manifest.info.steps > newest->info.steps) newest = std::move(manifest);
  }
  // read the real files instead: they have the shards of all ranks
  if (newest && engine.mesh() && path_exists(path)) return std::nullopt;
  if (newest && engine.mesh())
    raise<Unsupported>(
        "load: {} was saved in this plan by ranks that have parts of the model; a plan "
        "does not know the parts of other ranks; expected a checkpoint on the disk; "
        "try one plan until the save, and another from the load on",
        path);
  return newest;
}

/// True if the path, or a folder in it, was saved in this plan.
bool is_planned(const std::string& path, const Engine& engine) {
  const auto files = planned_files(engine.device());
  return std::ranges::any_of(files, [&](const auto& file) {
    const fs::path folder = fs::path(file.first).parent_path();
    return folder == plain(path) || folder.parent_path() == plain(path);
  });
}

CheckpointInfo load_planned(const std::string& path, const Manifest& manifest, Engine& engine) {
  check_shapes(path, manifest.parameters, engine.store(), is_saved);
  check_nothing_else(path, manifest.parameters, engine);
  check_optimizer(path, manifest, engine);
  load_states({.manifest = manifest,
               .reads_ranges = [](const std::string&, const std::string&) { return true; },
               .read = {}},
              engine);
  return manifest.info;
}

}  // namespace

bool has_checkpoint(const std::string& path, const Engine& engine) {
  return (on_meta(engine) && is_planned(path, engine)) || path_exists(path + "/" + manifest_name) ||
         !step_folders(path).empty();
}

CheckpointInfo load_checkpoint(const std::string& path, Engine& engine) {
  if (on_meta(engine))
    if (const std::optional<Manifest> manifest = planned_checkpoint(path, engine))
      return load_planned(path, *manifest, engine);
  const auto reader = open_checkpoint(path);
  load_checkpoint(*reader, engine);
  return on_meta(engine) ? reader->manifest().info : reader->info();
}

void load_checkpoint(const CheckpointReader& reader, Engine& engine) {
  const ParameterStore& store = engine.store();
  check_shapes(reader.path(), reader.manifest().parameters, store, is_saved);
  check_nothing_else(reader.path(), reader.manifest().parameters, engine);
  check_optimizer(reader.path(), reader.manifest(), engine);
  for (const auto& [name, parameter] : store.by_name())
    for (const State& state : states_of(*parameter, engine)) reader.check_tiles(name, state.name);
  States states = {.manifest = reader.manifest(),
                   .reads_ranges = [&](const std::string& parameter, const std::string& state) {
                     return reader.reads_ranges(parameter, state);
                   }};
  if (!on_meta(engine))
    states.read = [&](const Parameter& parameter, const std::string& state,
                      const Engine::Held& range) {
      const Slice part = parameter.slice.is_whole()
                             ? whole_slice(reader.manifest().numel_of(parameter.name, state))
                             : parameter.slice;
      return reader.read(parameter.name, state, part, range.begin, range.end);
    };
  load_states(states, engine);
}

WeightSource weights_of(const std::shared_ptr<CheckpointReader>& reader) {
  const auto& shapes = reader->manifest().parameters;
  for (const auto& parameter : shapes) reader->check_tiles(parameter.first, "master");
  return {.path = reader->path(),
          .shapes = shapes,
          .read = [reader](const std::string& name) { return reader->read(name, "master"); },
          .read_part = [reader](const std::string& name,
                                const Slice& part) { return reader->read(name, "master", part); },
          .read_range = [reader](const std::string& name, int64_t begin,
                                 int64_t count) -> std::optional<std::vector<float>> {
            if (!reader->reads_ranges(name, "master")) return std::nullopt;
            const int64_t numel = reader->manifest().parameters.at(name).numel();
            return reader->read(name, "master", whole_slice(numel), begin, begin + count);
          }};
}

WeightSource weights_of(const std::string& path) {
  if (is_directory(path)) return weights_of(open_checkpoint(path));
  const auto reader = std::make_shared<SafetensorsReader>(path);
  WeightSource weights = {
      .path = path,
      .read = [reader](const std::string& name) { return reader->read_floats(name); },
      .read_part =
          [reader](const std::string& name, const Slice& part) {
            std::vector<float> values(static_cast<size_t>(part.numel()));
            const Slice whole = whole_slice(part.whole_numel());
            for_each_common(part, 0, part.numel(), whole, [&](int64_t i, int64_t j, int64_t count) {
              reader->for_floats(name, j, count, [&](std::span<const float> chunk) {
                std::ranges::copy(chunk, values.begin() + i);
                i += std::ssize(chunk);
              });
            });
            return values;
          },
      .read_range = [reader](const std::string& name, int64_t begin, int64_t count)
          -> std::optional<std::vector<float>> { return reader->read_floats(name, begin, count); }};
  for (const auto& [name, entry] : reader->entries())
    if (is_floating(entry.dtype)) {
      weights.shapes.emplace(name, entry.shape);
      weights.dtypes.emplace(name, entry.dtype);
    }
  return weights;
}

namespace {

/// Loads a parameter in ranges. False: the source cannot read ranges of this parameter.
bool load_ranges(const WeightSource& weights, const Parameter& parameter, Engine& engine) {
  if (!weights.read_range || !is_range(parameter.slice)) return false;
  const int64_t first = parameter.slice.is_whole() ? 0 : parameter.slice.whole_index(0);
  bool can = true;
  for_each_range(engine.held(parameter, State::master), [&](const Engine::Held& range) {
    std::vector<float> values;
    if (can && !on_meta(engine)) {
      auto read = weights.read_range(parameter.name, first + range.begin, range.end - range.begin);
      can = read.has_value();
      if (can) values = *std::move(read);
    }
    if (!can) return;
    if (engine.config().load == DType::bf16) round_to_bf16(values);
    engine.write_held(parameter, State::master, range, values);
  });
  return can;
}

}  // namespace

void load_weights(const WeightSource& weights, Engine& engine) {
  load_weights(weights, engine, [](const Parameter&) { return true; });
}

void load_weights(const WeightSource& weights, Engine& engine, const Only& only) {
  check_shapes(weights.path, weights.shapes, engine.store(), only);
  for (const auto& [name, parameter] : engine.store().by_name()) {
    if (!only(*parameter)) continue;
    if (load_ranges(weights, *parameter, engine)) continue;
    std::vector<float> values;
    if (!on_meta(engine))
      values = parameter->slice.is_whole() ? weights.read(name)
               : weights.read_part         ? weights.read_part(name, parameter->slice)
                                           : part_of(weights.read(name), parameter->slice);
    if (engine.config().load == DType::bf16) round_to_bf16(values);
    engine.write(*parameter, State::master, values);
  }
}

void load_weights(const std::string& path, Engine& engine) {
  load_weights(weights_of(path), engine);
}

std::string weights_hash(const WeightSource& weights) {
  Checksum hash;
  for (const auto& tensor : weights.shapes) {
    const std::string& name = tensor.first;
    bool in_ranges = weights.read_range != nullptr;
    for_each_range({0, tensor.second.numel()}, [&](const Engine::Held& range) {
      if (!in_ranges) return;
      const auto values = weights.read_range(name, range.begin, range.end - range.begin);
      in_ranges = values.has_value();  // all ranges of a tensor can be read, or none
      if (in_ranges) hash.update(std::as_bytes(std::span(*values)));
    });
    if (in_ranges) continue;
    const std::vector<float> values = weights.read(name);
    hash.update(std::as_bytes(std::span(values)));
  }
  return hash.hex();
}

void check_base(const CheckpointInfo::Base& base, const WeightSource& weights) {
  if (const std::string hash = weights_hash(weights); hash != base.hash)
    raise<FileError>(
        "base: {}: the weights have the hash {}; expected {}, of the weights that the "
        "adapters were trained for; restore those at this path",
        weights.path, hash, base.hash);
}

void dump_gradients(const std::string& path, const Engine& engine) {
  if (engine.micro_batches() == 0)
    throw ConfigError("dump_gradients: no micro-batch since the last step; call backward first");
  const double divisor = static_cast<double>(engine.micro_batches() * engine.ranks().size()) *
                         engine.loss_scaler().scale();
  if (on_meta(engine) && engine.mesh())
    throw Unsupported(
        "dump_gradients: on a meta device the sizes of the other ranks' parts are not known; try "
        "plan without it");
  WholeModel model(engine);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, entry] : model.entries())
    if (entry.is_updated) entries.push_back({name, DType::f32, entry.shape});
  std::optional<SafetensorsWriter> writer;
  if (engine.world().rank() == 0 && !on_meta(engine)) writer.emplace(path, entries);
  for (const SafetensorsWriter::Entry& entry : entries) {
    model.visit(entry.name, State::gradient, [&](std::span<const float> values) {
      if (!writer) return;
      std::vector<float> means(values.begin(), values.end());
      for (float& value : means) value = static_cast<float>(value / divisor);
      writer->write_part(std::as_bytes(std::span(means)));
    });
  }
  if (writer) writer->finish();
}

}  // namespace zg::zero
