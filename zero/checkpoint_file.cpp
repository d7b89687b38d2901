#include "zero/checkpoint_file.h"

#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>

#include "runtime/error.h"
#include "runtime/file_io.h"
#include "zero/checkpoint_reader.h"
#include "zero/checksum.h"
#include "zero/transfer.h"

namespace zg::zero {
namespace {

namespace fs = std::filesystem;
using State = Engine::State;

constexpr const char* shard_file = "shard_00000.safetensors";
constexpr const char* step_prefix = "step_";
constexpr const char* unfinished_prefix = ".unfinished_";

struct NamedState {
  State state;
  const char* name;
};
constexpr NamedState saved_states[] = {
    {State::master, "master"}, {State::moment1, "moment1"}, {State::moment2, "moment2"}};

/// What is saved of a parameter: frozen ones have a value and nothing else.
std::span<const NamedState> states_of(const Parameter& parameter) {
  return std::span(saved_states).first(parameter.trainable ? 3 : 1);
}

/// A folder that goes with the scope, whatever it holds by then.
struct TemporaryFolder {
  explicit TemporaryFolder(std::string path) : path(std::move(path)) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  const std::string path;
};

void check(const std::error_code& error, const char* operation, const std::string& path) {
  if (error) throw FileError(std::string(operation) + ": " + path + ": " + error.message());
}

std::vector<fs::path> entries_of(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  check(error, "list", directory);
  return entries;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  check(error, "create", path);
}

void remove_unfinished(const std::string& directory) {
  for (const fs::path& entry : entries_of(directory)) {
    std::error_code error;
    if (entry.filename().string().starts_with(unfinished_prefix)) fs::remove_all(entry, error);
    check(error, "remove", entry.string());
  }
}

void write_shard(const std::string& folder, const Engine& engine, Manifest& manifest) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, parameter] : engine.store().by_name()) {
    manifest.parameters.emplace(name, parameter->shape);
    for (const NamedState& saved : states_of(*parameter)) {
      manifest.pieces.push_back({.parameter = name,
                                 .state = saved.name,
                                 .shape = parameter->shape,
                                 .file = shard_file,
                                 .checksum = {}});
      entries.push_back({manifest.pieces.back().name(), DType::f32, parameter->shape});
    }
  }
  SafetensorsWriter writer(folder + "/" + shard_file, entries);
  size_t next = 0;
  for (const auto& [name, parameter] : engine.store().by_name())
    for (const NamedState& saved : states_of(*parameter)) {
      const std::vector<float> values = engine.read(*parameter, saved.state);
      manifest.pieces[next++].checksum = checksum(std::as_bytes(std::span(values)));
      writer.write_floats(values);
    }
  writer.finish();
}

void require_step_boundary(const Engine& engine, const CheckpointInfo& info) {
  if (info.steps != engine.steps() || info.skipped != engine.skipped())
    throw ConfigError("save_checkpoint: info has " + std::to_string(info.steps) + " steps and " +
                      std::to_string(info.skipped) + " skipped; expected the engine's " +
                      std::to_string(engine.steps()) + " and " + std::to_string(engine.skipped()));
  if (engine.micro_batches() != 0)
    throw ConfigError("save_checkpoint: " + std::to_string(engine.micro_batches()) +
                      " micro-batches wait for a step and would be lost; call step first");
}

/// N of a name step_N.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  int64_t step = 0;
  const auto [rest, error] =
      std::from_chars(name.data() + std::string(step_prefix).size(), end, step);
  if (error != std::errc() || rest != end || step < 0) return std::nullopt;
  return step;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Up to three names of the file, for an error message; those of the wanted shape first.
std::string suggestions(const std::map<std::string, Shape>& there, const Shape& wanted,
                        const ParameterStore& store) {
  std::string text;
  int count = 0;
  for (bool same_shape : {true, false})
    for (const auto& [name, shape] : there)
      if (count < 3 && !store.find(name) && (shape == wanted) == same_shape)
        text += (count++ ? ", '" : "'") + name + "' " + shape.str();
  return text.empty() ? "nothing else" : text;
}

void check_parameters(const std::string& path, const std::map<std::string, Shape>& there,
                      const ParameterStore& store) {
  for (const auto& parameter : store.parameters()) {
    const auto found = there.find(parameter->name);
    if (found == there.end())
      throw FileError("load: " + path + ": has no '" + parameter->name + "' " +
                      parameter->shape.str() + "; of " + std::to_string(there.size()) +
                      " tensors the model has no use for " +
                      suggestions(there, parameter->shape, store));
    if (found->second != parameter->shape)
      throw FileError("load: " + path + ": '" + parameter->name + "' has shape " +
                      found->second.str() + "; expected " + parameter->shape.str());
  }
}

using ReadByName = std::function<std::vector<float>(const std::string& name)>;

void write_masters(Engine& engine, const ReadByName& read) {
  for (const auto& [name, parameter] : engine.store().by_name()) {
    std::vector<float> values = read(name);
    if (engine.config().load == DType::bf16) round_to_bf16(values);
    engine.write(*parameter, State::master, values);
  }
}

}  // namespace

std::string save_checkpoint(const std::string& directory, const Engine& engine,
                            const CheckpointInfo& info) {
  if (engine.device().type() == Device::Type::meta)
    throw Unsupported("save_checkpoint: the engine is on meta, which stores nothing");
  if (engine.ranks().size() > 1)
    throw Unsupported("save_checkpoint: " + std::to_string(engine.ranks().size()) +
                      " ranks; this version saves from one");
  require_step_boundary(engine, info);
  Manifest manifest{.info = info};
  if (engine.loss_scaler().dynamic()) manifest.loss_scaler = engine.loss_scaler().state();
  manifest_text(manifest);  // refuses a config_json that is none, before anything is written
  make_folder(directory);
  remove_unfinished(directory);
  const std::string name = step_prefix + std::to_string(info.steps);
  const std::string path = directory + "/" + name;
  const TemporaryFolder folder(directory + "/" + unfinished_prefix + name);
  make_folder(folder.path);
  write_shard(folder.path, engine, manifest);
  write_text(folder.path + "/" + manifest_name, manifest_text(manifest));
  sync_directory(folder.path);
  rename_over(folder.path, path);
  sync_directory(directory);
  return path;
}

std::string find_checkpoint(const std::string& path) {
  if (exists(path + "/" + manifest_name)) return path;
  std::string newest;
  int64_t best = -1;
  for (const fs::path& entry : entries_of(path)) {
    const std::optional<int64_t> step = step_of(entry.filename().string());
    if (!step || *step <= best || !exists((entry / manifest_name).string())) continue;
    best = *step;
    newest = entry.string();
  }
  if (newest.empty())
    throw FileError("checkpoint: " + path + ": expected a step_N folder or one inside it");
  return newest;
}

CheckpointInfo read_checkpoint_info(const std::string& path) {
  return read_manifest(find_checkpoint(path)).info;
}

void verify_checkpoint(const std::string& path) {
  const CheckpointReader reader(find_checkpoint(path));
  for (const auto& [name, shape] : reader.manifest().parameters) reader.check_tiles(name, "master");
  for (const Manifest::Piece& piece : reader.manifest().pieces) reader.read(piece);
}

CheckpointInfo load_checkpoint(const std::string& path, Engine& engine) {
  const CheckpointReader reader(find_checkpoint(path));
  const ParameterStore& store = engine.store();
  check_parameters(reader.path(), reader.manifest().parameters, store);
  for (const auto& [name, shape] : reader.manifest().parameters)
    if (!store.find(name))
      throw FileError("load: " + reader.path() + ": has '" + name + "' " + shape.str() +
                      ", which the model has not; load_weights takes what the model has");
  for (const auto& [name, parameter] : store.by_name())
    for (const NamedState& saved : states_of(*parameter)) reader.check_tiles(name, saved.name);
  for (const auto& [name, parameter] : store.by_name())
    for (const NamedState& saved : states_of(*parameter))
      engine.write(*parameter, saved.state, reader.read(name, saved.name));
  const CheckpointInfo& info = reader.manifest().info;
  engine.set_steps(info.steps - info.skipped, info.skipped);
  engine.set_loss_scaler(reader.manifest().loss_scaler);
  return info;
}

void load_weights(const std::string& path, Engine& engine) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    const CheckpointReader reader(find_checkpoint(path));
    check_parameters(reader.path(), reader.manifest().parameters, engine.store());
    for (const auto& [name, parameter] : engine.store().by_name())
      reader.check_tiles(name, "master");
    write_masters(engine, [&](const std::string& name) { return reader.read(name, "master"); });
    return;
  }
  const SafetensorsReader reader(path);
  std::map<std::string, Shape> there;
  for (const auto& [name, entry] : reader.entries())
    if (is_floating(entry.dtype)) there.emplace(name, entry.shape);
  check_parameters(path, there, engine.store());
  write_masters(engine, [&](const std::string& name) { return reader.read_floats(name); });
}

void dump_gradients(const std::string& path, const Engine& engine) {
  if (engine.micro_batches() == 0)
    throw ConfigError("dump_gradients: no micro-batch since the last step; call backward first");
  const double divisor = static_cast<double>(engine.micro_batches() * engine.ranks().size()) *
                         engine.loss_scaler().scale();
  std::vector<const Parameter*> trainable;
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, parameter] : engine.store().by_name()) {
    if (!parameter->trainable) continue;
    trainable.push_back(parameter);
    entries.push_back({name, DType::f32, parameter->shape});
  }
  std::optional<SafetensorsWriter> writer;
  if (engine.ranks().rank() == 0) writer.emplace(path, entries);
  for (const Parameter* parameter : trainable) {
    std::vector<float> values = engine.read(*parameter, State::gradient);
    for (float& value : values) value = static_cast<float>(value / divisor);
    if (writer) writer->write_floats(values);
  }
  if (writer) writer->finish();
}

}  // namespace zg::zero
