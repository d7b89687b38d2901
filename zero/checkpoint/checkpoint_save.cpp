#include "zerograd/zero/checkpoint/checkpoint_save.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/checkpoint/manifest.h"
#include "zerograd/zero/checkpoint/snapshot.h"
#include "zerograd/zero/parallel/model_parts.h"

namespace zg::zero {
namespace {

namespace fs = std::filesystem;

void require_step_boundary(const Engine& engine, const CheckpointInfo& info) {
  if (info.steps != engine.steps() || info.skipped != engine.skipped())
    raise<ConfigError>(
        "save_checkpoint: info has {} steps and {} skipped; expected the engine's {} and {}",
        info.steps, info.skipped, engine.steps(), engine.skipped());
  if (engine.micro_batches() != 0)
    raise<ConfigError>(
        "save_checkpoint: {} micro-batches wait for a step and would be lost; call step first",
        engine.micro_batches());
}

/// Throws ConfigError if the checkpoint would leave out parameters without saying where they are.
void require_base(const Engine& engine, const CheckpointInfo& info) {
  if (!info.base.path.empty() && !info.base.hash.empty()) return;
  for (const auto& parameter : engine.store().parameters())
    if (!parameter->saved)
      raise<ConfigError>(
          "save_checkpoint: '{}' is not saved, and info.base does not say where it is read; "
          "expected its path and the weights_hash() of its weights",
          parameter->name);
}

/// Checks info.files and returns their total bytes. Throws ConfigError.
int64_t check_files(const CheckpointInfo& info) {
  int64_t bytes = 0;
  for (const auto& [name, contents] : info.files) {
    if (!is_own_file_name(name))
      raise<ConfigError>(
          "save_checkpoint: a file is called '{}'; expected letters, digits, '.', '_' "
          "and '-', not '.' first, and no name of the checkpoint's own",
          name);
    bytes += std::ssize(contents);
  }
  if (bytes > max_file_bytes)
    raise<ConfigError>("save_checkpoint: the files have {} bytes; expected at most {}", bytes,
                       max_file_bytes);
  return bytes;
}

Manifest::Piece description_of(const Snapshot::Piece& piece, const std::string& file) {
  const Parameter& parameter = *piece.parameter;
  const Slice& slice = parameter.slice;
  const bool whole = piece.numel == parameter.whole.numel();
  // A slice of whole rows (outer == 1) is a contiguous range of the parameter's elements.
  const bool is_range = slice.outer == 1 || slice.is_whole();
  return {.parameter = parameter.name,
          .state = piece.state.name,
          .offset = piece.offset + (is_range ? slice.begin * slice.inner : 0),
          .shape = piece.shape.value_or(whole ? parameter.whole : Shape{piece.numel}),
          .file = file,
          .checksum = {},
          .slice = is_range ? std::nullopt : std::optional(slice)};
}

/// Thrown on the writer thread when the save is cancelled.
struct Cancelled {};

/// Writes this rank's pieces to its file, which is on the disk on return.
Manifest write_shard(const std::string& folder, int rank, Snapshot& snapshot,
                     const std::atomic<bool>& cancelled) {
  const std::string file = shard_name(rank);
  std::vector<Manifest::Piece> written;
  std::vector<SafetensorsWriter::Entry> entries;
  for (const Snapshot::Piece& piece : snapshot.pieces()) {
    written.push_back(description_of(piece, file));
    entries.push_back({written.back().name(), DType::f32, written.back().shape});
  }
  SafetensorsWriter writer(folder + "/" + file, entries);
  for (size_t i = 0; i < written.size(); ++i) {
    PieceChecksum sum;
    snapshot.read(i, [&](std::span<const float> values) {
      if (cancelled) throw Cancelled();
      sum.update(values);
      writer.write_part(std::as_bytes(values));
    });
    written[i].checksum = sum.hex();
    written[i].blocks = sum.blocks();
  }
  writer.finish();
  return {.pieces = std::move(written), .headers = {{file, writer.header_checksum()}}};
}

/// The account: a file in which a rank lists for rank 0 what it wrote. Ranks exchange it through
/// the shared checkpoint folder, because a collective would need device memory.
std::string account_name(const std::string& folder, int rank) {
  return fmt::format("{}/{}.pieces", folder, shard_name(rank));
}

/// Writes the file atomically, so that rank 0 never reads an incomplete one.
void write_account(const std::string& account, const std::string& text) {
  const std::string unfinished = account + ".unfinished";
  write_text(unfinished, text);
  rename_over(unfinished, account);
}

/// Reads the accounts of all ranks in rank order and removes their files.
void collect_accounts(const std::string& folder, int world, Manifest& manifest) {
  for (int rank = 0; rank < world; ++rank) {
    const std::string account = account_name(folder, rank);
    add_account(read_text(account), manifest);
    std::error_code error;
    fs::remove(account, error);
    check(error, "remove", account);
  }
}

/// Bytes of the tensors of the whole model, without names and checksums, which are small.
/// Collective.
int64_t bytes_of(const Engine& engine) {
  int64_t bytes = 0;
  for (const auto& parameter : engine.store().parameters())
    if (parameter->copy == Copy::own)
      for (const Engine::State& state : states_of(*parameter, engine))
        bytes += size_of(DType::f32) *
                 engine.shape_of(*parameter, state).value_or(parameter->shape).numel();
  if (const Mesh* mesh = engine.mesh())
    return sum_over_parts({&bytes, 1}, *mesh, engine.device(), "checkpoint bytes")[0];
  return bytes;
}

/// Name to shape in the whole model, for the parameters that this rank owns.
std::map<std::string, Shape> shapes_of(const ParameterStore& store) {
  std::map<std::string, Shape> shapes;
  for (const auto& [name, parameter] : store.by_name())
    if (parameter->copy == Copy::own && parameter->saved) shapes.emplace(name, parameter->whole);
  return shapes;
}

std::string room(const std::string& directory, int64_t needed) {
  const std::optional<int64_t> free = free_bytes(directory);
  return fmt::format("it needs {} bytes in {}, where {} are free", needed, directory,
                     free ? std::to_string(*free) : std::string("an unknown number"));
}

}  // namespace

struct CheckpointSaveState {
  CheckpointSaveState(const std::string& directory, const Engine& engine, int64_t file_bytes,
                      bool read_back)
      : directory(directory),
        path(fmt::format("{}/{}{}", directory, step_prefix, engine.steps())),
        unfinished(UnfinishedFolder::path_of(directory, engine.steps())),
        needed_bytes(bytes_of(engine) + file_bytes),
        read_back(read_back),
        device(engine.device()),
        ranks(engine.world()) {}
  ~CheckpointSaveState() {
    cancelled = true;
    if (writer.joinable()) writer.join();
  }

  bool on_meta() const { return device.type() == Device::Type::meta; }
  bool first() const { return ranks.rank() == 0; }

  /// Calls f. An error of the disk or the system becomes this rank's `failure`.
  template <class F>
  void attempt(const F& f) {
    try {
      f();
    } catch (const Cancelled&) {
      failure = "given up";
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }

  void make_folder(int64_t steps) {
    folder.emplace(directory, steps);
    if (const std::optional<int64_t> free = free_bytes(directory); free && *free < needed_bytes)
      raise<FileError>("reserve: {}: too little space is left", unfinished);
  }

  void start_writer() {
    try {
      writer = std::thread([this] { write(); });
    } catch (const std::system_error&) {  // the system refuses another thread
      write();
    }
  }

  void write() {
    attempt([&] {
      Manifest shard = write_shard(unfinished, ranks.rank(), *snapshot, cancelled);
      shard.parameters = manifest.parameters;
      if (read_back) CheckpointReader(unfinished, shard).check_bytes();
      write_account(account_name(unfinished, ranks.rank()), account_text(shard));
    });
    snapshot->abandon();  // a writer that failed or was cancelled does not read the rest
    written = failure.empty();
  }

  void commit() {
    attempt([&] {
      collect_accounts(unfinished, ranks.size(), manifest);
      folder->finish(manifest);
      committed = true;
    });
    folder.reset();
  }

  /// In a plan: records on the meta device what a later load_checkpoint() needs to know about the
  /// step_N.
  void plan() {
    for (const Snapshot::Piece& piece : snapshot->pieces())
      manifest.pieces.push_back(description_of(piece, shard_name(ranks.rank())));
    plan_file(device, path + "/" + manifest_name, manifest_text(manifest));
  }

  /// The first rank where `own` is true; -1: none. Collective.
  int first_rank(bool own, const char* name) {
    std::vector<int64_t> flags(static_cast<size_t>(ranks.size()));
    flags[static_cast<size_t>(ranks.rank())] = own ? 1 : 0;
    const PurposeScope purpose(device, Purpose::comm);
    const Tensor sum = Tensor::from(flags, {ranks.size()}, device);
    ranks.wait(ranks.all_reduce(sum, name));
    if (on_meta()) return -1;
    flags = sum.to_host<int64_t>();
    const auto found = std::ranges::find_if(flags, [](int64_t n) { return n != 0; });
    return found == flags.end() ? -1 : static_cast<int>(found - flags.begin());
  }

  const std::string directory, path, unfinished;
  const int64_t needed_bytes;
  const bool read_back;
  const Device device;
  Communicator& ranks;
  Manifest manifest;
  std::optional<UnfinishedFolder> folder;  // rank 0 only
  std::optional<Snapshot> snapshot;
  std::string failure;  // this rank's; only the writer uses it until it is joined
  bool failed_at_once = false, committed = false;
  std::atomic<bool> written = false, cancelled = false;
  std::thread writer;
};

CheckpointSave::CheckpointSave(const std::string& directory, const Engine& engine,
                               const CheckpointInfo& info, bool read_back) {
  require_step_boundary(engine, info);
  require_base(engine, info);
  state_ = std::make_unique<CheckpointSaveState>(directory, engine, check_files(info), read_back);
  CheckpointSaveState& s = *state_;
  s.manifest.info = info;
  if (!s.first())
    s.manifest.info.files.clear();  // the files may be long, and only rank 0 writes them
  if (engine.loss_scaler().dynamic()) s.manifest.loss_scaler = engine.loss_scaler().state();
  s.manifest.optimizer = engine.optimizers().main().name();
  s.manifest.states = engine.optimizers().element_states();
  const UpdateOptions& update = engine.config().update;
  const auto has_own = [](const ParameterGroup& group) { return group.optimizer != nullptr; };
  s.manifest.shared = std::ranges::any_of(update.groups, has_own) ||
                      (update.optimizer && engine.optimizers().all().size() > 1);
  if (update.optimizer) s.manifest.options = engine.optimizers().main().options();
  s.manifest.parameters = shapes_of(engine.store());
  manifest_text(s.manifest);  // throws for an invalid config_json before anything is written
  try {
    s.snapshot.emplace(engine);
  } catch (const OutOfMemory& error) {
    s.failure = error.what();  // without the memory table, which is for a run that ends
    s.failure.resize(std::min(s.failure.size(), s.failure.find('\n')));
  }
  if (s.first() && !s.on_meta() && s.failure.empty()) s.attempt([&] { s.make_folder(info.steps); });
  s.failed_at_once = s.first_rank(!s.failure.empty(), "checkpoint folder") >= 0;
  if (s.failed_at_once)
    s.snapshot.reset();
  else if (!s.on_meta())
    s.start_writer();
}

CheckpointSave::~CheckpointSave() = default;

const std::string& CheckpointSave::path() const { return state_->path; }
bool CheckpointSave::failed_at_once() const { return state_->failed_at_once; }

bool CheckpointSave::commit_if_written() {
  CheckpointSaveState& s = *state_;
  if (!s.written || !s.folder) return s.committed;
  for (int rank = 0; rank < s.ranks.size(); ++rank) {
    std::error_code ignored;
    if (!fs::exists(account_name(s.unfinished, rank), ignored)) return false;
  }
  if (s.writer.joinable()) s.writer.join();  // from here on this thread may use `failure`
  s.commit();
  return s.committed;
}

bool CheckpointSave::is_committed() const { return state_->committed; }

CheckpointSave::Result CheckpointSave::finish() {
  CheckpointSaveState& s = *state_;
  if (s.writer.joinable()) s.writer.join();
  const int failed = s.first_rank(!s.failure.empty(), "checkpoint pieces");
  if (s.folder && failed < 0) s.commit();
  if (s.on_meta() && failed < 0) s.plan();
  s.folder.reset();  // removes the unfinished folder before free space is checked
  const bool lost =
      s.first_rank(s.first() && !s.on_meta() && !s.committed, "checkpoint saved") >= 0;
  s.snapshot.reset();
  if (!lost) return {};
  Result result{.failed_rank = std::max(failed, 0)};
  if (s.ranks.rank() == result.failed_rank)
    result.reason = s.failure + "; " + room(s.directory, s.needed_bytes);
  return result;
}

std::string save_checkpoint(const std::string& directory, const Engine& engine,
                            const CheckpointInfo& info) {
  CheckpointSave save(directory, engine, info);
  const CheckpointSave::Result result = save.finish();
  if (!result.reason.empty())
    raise<FileError>("save_checkpoint: {}: {}", save.path(), result.reason);
  if (result.failed_rank >= 0)
    raise<FileError>(
        "save_checkpoint: {}: rank {} could not write its part; its own error has the reason",
        save.path(), result.failed_rank);
  return save.path();
}

}  // namespace zg::zero
