#include <algorithm>
#include <filesystem>
#include <optional>
#include <tuple>

#include "runtime/error.h"
#include "runtime/file_io.h"
#include "zero/checkpoint_file.h"
#include "zero/checkpoint_layout.h"
#include "zero/checksum.h"
#include "zero/manifest.h"
#include "zero/safetensors.h"
#include "zero/unfinished_folder.h"

namespace zg::zero {
namespace {

namespace fs = std::filesystem;

void require_step_boundary(const Engine& engine, const CheckpointInfo& info) {
  if (info.steps != engine.steps() || info.skipped != engine.skipped())
    throw ConfigError("save_checkpoint: info has " + std::to_string(info.steps) + " steps and " +
                      std::to_string(info.skipped) + " skipped; expected the engine's " +
                      std::to_string(engine.steps()) + " and " + std::to_string(engine.skipped()));
  if (engine.micro_batches() != 0)
    throw ConfigError("save_checkpoint: " + std::to_string(engine.micro_batches()) +
                      " micro-batches wait for a step and would be lost; call step first");
}

/// What this rank writes, in the order of names, states and offsets. An empty parameter lies in no
/// shard: rank 0 has its name.
std::vector<Engine::Piece> sorted_pieces(const Engine& engine) {
  std::vector<Engine::Piece> pieces = engine.pieces();
  if (engine.ranks().rank() == 0)
    for (const auto& parameter : engine.store().parameters())
      if (parameter->shape.numel() == 0)
        for (const NamedState& saved : states_of(*parameter))
          pieces.push_back({parameter.get(), saved.state, 0, 0});
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
    return std::tie(a.parameter->name, a.state, a.offset) <
           std::tie(b.parameter->name, b.state, b.offset);
  });
  return pieces;
}

Manifest::Piece described(const Engine::Piece& piece, const std::string& file) {
  const Parameter& parameter = *piece.parameter;
  const bool whole = piece.numel == parameter.shape.numel();
  const auto states = states_of(parameter);
  const auto saved = std::find_if(states.begin(), states.end(),
                                  [&](const NamedState& s) { return s.state == piece.state; });
  return {.parameter = parameter.name,
          .state = saved->name,
          .offset = piece.offset,
          .shape = whole ? parameter.shape : Shape{piece.numel},
          .file = file,
          .checksum = {}};
}

/// This rank's pieces into its file, on the disk when it returns.
Manifest write_shard(const std::string& folder, const Engine& engine) {
  const std::string file = shard_name(engine.ranks().rank());
  const std::vector<Engine::Piece> pieces = sorted_pieces(engine);
  std::vector<Manifest::Piece> written;
  std::vector<SafetensorsWriter::Entry> entries;
  for (const Engine::Piece& piece : pieces) {
    written.push_back(described(piece, file));
    entries.push_back({written.back().name(), DType::f32, written.back().shape});
  }
  SafetensorsWriter writer(folder + "/" + file, entries);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::vector<float> values =
        pieces[i].numel > 0 ? engine.read(pieces[i]) : std::vector<float>();
    written[i].checksum = checksum(std::as_bytes(std::span(values)));
    writer.write_floats(values);
  }
  writer.finish();
  return {.pieces = std::move(written), .headers = {{file, writer.header_checksum()}}};
}

/// Where a rank tells rank 0 what it wrote: in the folder that they share anyway, so that saving
/// takes nothing from the device and sends nothing over the wire.
std::string account_name(const std::string& folder, int rank) {
  return folder + "/" + shard_name(rank) + ".pieces";
}

/// Every rank's account in rank order; they go with the reading.
void collect_accounts(const std::string& folder, int world, Manifest& manifest) {
  for (int rank = 0; rank < world; ++rank) {
    const std::string account = account_name(folder, rank);
    add_account(read_text(account), manifest);
    std::error_code error;
    fs::remove(account, error);
    check(error, "remove", account);
  }
}

}  // namespace

std::string save_checkpoint(const std::string& directory, const Engine& engine,
                            const CheckpointInfo& info) {
  if (engine.device().type() == Device::Type::meta)
    throw Unsupported("save_checkpoint: the engine is on meta, which stores nothing");
  require_step_boundary(engine, info);
  Manifest manifest{.info = info};
  if (engine.loss_scaler().dynamic()) manifest.loss_scaler = engine.loss_scaler().state();
  for (const auto& [name, parameter] : engine.store().by_name())
    manifest.parameters.emplace(name, parameter->shape);
  manifest_text(manifest);  // refuses a config_json that is none, before anything is written

  Communicator& ranks = engine.ranks();
  const bool first = ranks.rank() == 0;
  std::optional<UnfinishedFolder> folder;
  if (first) folder.emplace(directory, info.steps);
  const std::string unfinished = UnfinishedFolder::path_of(directory, info.steps);
  ranks.wait(ranks.barrier("checkpoint folder"));
  // Whoever says what it wrote has it on the disk.
  write_text(account_name(unfinished, ranks.rank()), account_text(write_shard(unfinished, engine)));
  ranks.wait(ranks.barrier("checkpoint pieces"));
  if (first) {
    collect_accounts(unfinished, ranks.size(), manifest);
    folder->finish(manifest);
  }
  ranks.wait(ranks.barrier("checkpoint saved"));
  return directory + "/" + step_prefix + std::to_string(info.steps);
}

}  // namespace zg::zero
