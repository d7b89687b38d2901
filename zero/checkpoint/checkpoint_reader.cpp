#include "zerograd/zero/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"
#include "zerograd/zero/states/partition.h"

namespace zg::zero {
namespace {

/// Reads the elements of one slice of a parameter in order, from the pieces that tile it, through a
/// buffer. Several of these can be read in turn, for slices that alternate in the whole parameter.
class PieceSequence {
 public:
  using Open = std::function<const SafetensorsReader&(const Manifest::Piece&)>;
  /// Called when a piece was read to its end, with the checksum of the bytes read.
  using Check = std::function<void(const Manifest::Piece&, const std::string& checksum)>;
  PieceSequence(std::vector<const Manifest::Piece*> pieces, Open open, Check check);

  /// The next 1 to `max_elements` elements. There must be at least one more element.
  std::span<const float> next(int64_t max_elements);

 private:
  void fill();

  std::vector<const Manifest::Piece*> pieces_;
  Open open_;
  Check check_;
  size_t piece_ = 0;                    // index of the piece that is read next
  int64_t read_ = 0;                    // elements read from that piece so far
  std::unique_ptr<Checksum> checksum_;  // checksum of those elements
  std::vector<float> buffer_;
  size_t taken_ = 0;
};

constexpr int64_t buffer_elements = int64_t{1} << 18;

PieceSequence::PieceSequence(std::vector<const Manifest::Piece*> pieces, Open open, Check check)
    : pieces_(std::move(pieces)), open_(std::move(open)), check_(std::move(check)) {}

std::span<const float> PieceSequence::next(int64_t max_elements) {
  if (taken_ == buffer_.size()) fill();
  const auto count = std::min(buffer_.size() - taken_, static_cast<size_t>(max_elements));
  const std::span<const float> values = std::span(buffer_).subspan(taken_, count);
  taken_ += count;
  return values;
}

void PieceSequence::fill() {
  const Manifest::Piece& piece = *pieces_[piece_];
  if (!checksum_) checksum_ = std::make_unique<Checksum>();
  const int64_t count = std::min(buffer_elements, piece.shape.numel() - read_);
  buffer_.clear();
  taken_ = 0;
  open_(piece).for_floats(piece.name(), read_, count, [&](std::span<const float> values) {
    checksum_->update(std::as_bytes(values));
    buffer_.insert(buffer_.end(), values.begin(), values.end());
  });
  read_ += count;
  if (read_ < piece.shape.numel()) return;
  check_(piece, checksum_->hex());
  checksum_.reset();
  read_ = 0;
  ++piece_;
}

}  // namespace

template <class T, class Open>
CheckpointReader::Opened<T> CheckpointReader::opened(const Open& open) {
  try {
    return {open(), ""};
  } catch (const FileError& error) {
    return {std::nullopt, error.what()};
  }
}

CheckpointReader::CheckpointReader(const std::string& path)
    : CheckpointReader(path, read_manifest(path)) {}

CheckpointReader::CheckpointReader(const std::string& path, Manifest manifest)
    : path_(path), manifest_(std::move(manifest)) {
  for (const Manifest::Piece& piece : manifest_.pieces)
    if (!shards_.contains(piece.file))
      shards_.emplace(piece.file,
                      opened<SafetensorsReader>([&] { return open_shard(piece.file); }));
  for (const auto& file : manifest_.file_checksums)
    own_files_.emplace(file.first,
                       opened<File>([&] { return File::open(path_ + "/" + file.first); }));
  for (const Manifest::Piece& piece : manifest_.pieces)
    pieces_[{piece.parameter, piece.state}].push_back(&piece);
  const auto place = [](const Manifest::Piece* piece) {
    return std::pair(piece->slice ? piece->slice->begin : 0, piece->offset);
  };
  for (auto& [key, pieces] : pieces_)
    std::ranges::sort(pieces, [&](const auto* a, const auto* b) { return place(a) < place(b); });
}

std::shared_ptr<CheckpointReader> CheckpointReader::open(const std::string& path) {
  const std::optional<Folder> folder = Folder::open(path);
  if (!folder) return nullptr;
  std::shared_ptr<CheckpointReader> reader;
  try {
    reader = std::make_shared<CheckpointReader>(path);
  } catch (const FileError&) {
    if (folder->is_at(path)) throw;
    return nullptr;
  }
  // Without this check the manifest and a shard could be of two checkpoints.
  return folder->is_at(path) ? reader : nullptr;
}

void CheckpointReader::close() {
  const auto close_all = [&](auto& files) {
    for (auto& [name, opened] : files) {
      opened.file.reset();
      opened.failure = fmt::format("checkpoint: {}/{}: was closed", path_, name);
    }
  };
  close_all(shards_);
  close_all(own_files_);
}

const CheckpointReader::Pieces& CheckpointReader::pieces(const std::string& parameter,
                                                         const std::string& state) const {
  const auto found = pieces_.find({parameter, state});
  if (found == pieces_.end())
    raise<FileError>("checkpoint: {}: has no {} of '{}'", path_, state, parameter);
  return found->second;
}

void CheckpointReader::check_tiles(const std::string& parameter, const std::string& state) const {
  const Pieces& all = pieces(parameter, state);
  const int64_t numel = manifest_.numel_of(parameter, state);
  const std::string what = fmt::format("the {} of '{}'", state, parameter);
  if (std::ranges::none_of(all, [](const auto* piece) { return bool(piece->slice); }))
    return check_tiles(all, numel, what);
  // All pieces must be of one division into slices. The slices must follow one another, and each
  // slice must be covered by its pieces.
  const Slice cut = all.front()->slice.value_or(Slice());
  int64_t rows = 0;
  for (auto first = all.begin(); first != all.end();) {
    const Slice slice = (*first)->slice.value_or(Slice{.extent = 0, .rows = 0});
    const auto is_of_slice = [&](const auto* piece) {
      return piece->slice && piece->slice->begin == slice.begin && piece->slice->rows == slice.rows;
    };
    if (slice.outer != cut.outer || slice.extent != cut.extent || slice.inner != cut.inner ||
        slice.begin != rows || slice.rows == 0)
      raise<FileError>(
          "checkpoint: {}: '{}' does not begin at row {} of {} of {}, where the slice "
          "before it ends",
          path_, (*first)->name(), rows, cut.extent, what);
    const auto last = std::find_if_not(first, all.end(), is_of_slice);
    check_tiles({first, last}, slice.numel(), "a slice of " + what);
    rows += slice.rows;
    first = last;
  }
  if (rows != cut.extent)
    raise<FileError>("checkpoint: {}: {} has rows up to {}; expected {}", path_, what, rows,
                     cut.extent);
}

void CheckpointReader::check_tiles(const Pieces& pieces, int64_t numel,
                                   const std::string& what) const {
  int64_t end = 0;
  for (const Manifest::Piece* piece : pieces) {
    if (piece->offset != end)
      raise<FileError>("checkpoint: {}: '{}' begins at element {}; expected {}", path_,
                       piece->name(), piece->offset, end);
    end += piece->shape.numel();
    if (end > numel) break;
  }
  if (end != numel)
    raise<FileError>("checkpoint: {}: {} has {} elements; expected {}", path_, what, end, numel);
}

const SafetensorsReader& CheckpointReader::file(const std::string& name) const {
  const Opened<SafetensorsReader>& shard = shards_.at(name);
  if (!shard.file) throw FileError(shard.failure);
  return *shard.file;
}

SafetensorsReader CheckpointReader::open_shard(const std::string& name) const {
  SafetensorsReader reader(path_ + "/" + name);
  const auto header = manifest_.headers.find(name);
  if (header != manifest_.headers.end() && header->second != reader.header_checksum())
    raise<FileError>(
        "checkpoint: {}/{}: its header, from byte 0 on, is damaged or another shard's: "
        "its checksum differs from the manifest's",
        path_, name);
  return reader;
}

std::string CheckpointReader::read_own_file(const std::string& name) const {
  const Opened<File>& file = own_files_.at(name);
  if (!file.file) throw FileError(file.failure);
  std::string contents = read_text(*file.file, max_file_bytes);
  if (checksum(std::as_bytes(std::span(contents))) != manifest_.file_checksums.at(name))
    raise<FileError>("checkpoint: {}: is damaged: its checksum differs from the manifest's",
                     file.file->path());
  return contents;
}

CheckpointInfo CheckpointReader::info() const {
  CheckpointInfo info = manifest_.info;
  for (const auto& file : manifest_.file_checksums)
    info.files.emplace(file.first, read_own_file(file.first));
  return info;
}

const SafetensorsReader& CheckpointReader::open(const Manifest::Piece& piece) const {
  const SafetensorsReader& reader = file(piece.file);
  const std::string name = piece.name();
  // A file of another checkpoint may have fewer elements than requested.
  if (reader.contains(name) && reader.entries().at(name).shape.numel() == piece.shape.numel())
    return reader;
  raise<FileError>("checkpoint: {}/{}: has no tensor '{}' of {} elements", path_, piece.file, name,
                   piece.shape.numel());
}

void CheckpointReader::refuse(const Manifest::Piece& piece, int64_t begin, int64_t end) const {
  const std::string name = piece.name();
  const SafetensorsReader::Entry& entry = file(piece.file).entries().at(name);
  const int64_t size = size_of(entry.dtype);
  raise<FileError>(
      "checkpoint: {}/{}: tensor '{}' is damaged, bytes {} to {} of the file: its "
      "checksum differs from the manifest's",
      path_, piece.file, name, entry.begin + begin * size, entry.begin + end * size);
}

void CheckpointReader::for_floats(const Manifest::Piece& piece,
                                  const SafetensorsReader::Visit& visit) const {
  Checksum checksum;
  open(piece).for_floats(piece.name(), [&](std::span<const float> values) {
    checksum.update(std::as_bytes(values));
    visit(values);
  });
  if (checksum.hex() != piece.checksum) refuse(piece, 0, piece.shape.numel());
}

void CheckpointReader::for_floats(const Manifest::Piece& piece, size_t block,
                                  const SafetensorsReader::Visit& visit) const {
  const int64_t begin = static_cast<int64_t>(block) * block_elements;
  const int64_t end = std::min(begin + block_elements, piece.shape.numel());
  Checksum checksum;
  open(piece).for_floats(piece.name(), begin, end - begin, [&](std::span<const float> values) {
    checksum.update(std::as_bytes(values));
    visit(values);
  });
  if (checksum.hex() != piece.blocks[block]) refuse(piece, begin, end);
}

void CheckpointReader::for_floats(const std::string& parameter, const std::string& state,
                                  const SafetensorsReader::Visit& visit) const {
  const Pieces& all = pieces(parameter, state);
  if (!all.front()->slice)
    for (const Manifest::Piece* piece : all) for_floats(*piece, visit);
  else
    merge(all, visit);
}

void CheckpointReader::merge(const Pieces& all, const SafetensorsReader::Visit& visit) const {
  struct Part {
    int64_t run;
    PieceSequence elements;
  };
  const auto check = [&](const Manifest::Piece& piece, const std::string& checksum) {
    if (checksum != piece.checksum) refuse(piece, 0, piece.shape.numel());
  };
  const PieceSequence::Open open_piece =
      [&](const Manifest::Piece& piece) -> const SafetensorsReader& { return open(piece); };
  std::vector<Part> parts;
  for (auto first = all.begin(); first != all.end();) {
    const Slice& slice = *(*first)->slice;
    const auto last = std::find_if(
        first, all.end(), [&](const auto* piece) { return piece->slice->begin != slice.begin; });
    parts.push_back({slice.rows * slice.inner, {{first, last}, open_piece, check}});
    first = last;
  }
  const bool is_empty = std::ranges::all_of(parts, [](const Part& part) { return part.run == 0; });
  if (is_empty) return;  // an empty slice may have any number as `outer`
  for (int64_t block = 0; block < all.front()->slice->outer; ++block)
    for (Part& part : parts)
      for (int64_t left = part.run; left > 0;) {
        const std::span<const float> values = part.elements.next(left);
        visit(values);
        left -= std::ssize(values);
      }
}

std::vector<float> CheckpointReader::read(const std::string& parameter, const std::string& state,
                                          const Slice& part, int64_t begin, int64_t end) const {
  std::vector<float> wanted(static_cast<size_t>(end - begin));
  const int64_t whole = manifest_.numel_of(parameter, state);
  for (const Manifest::Piece* piece : pieces(parameter, state)) {
    const Slice slice = piece->slice.value_or(whole_slice(whole));
    // Calls f(i, j, count) for each run: `count` elements from index i of the slice belong at index
    // j of the result.
    const auto for_each_wanted = [&](int64_t first, int64_t last, const auto& f) {
      for_each_common(slice, first, last, part, [&](int64_t i, int64_t j, int64_t count) {
        const int64_t from = std::max(j, begin), to = std::min(j + count, end);
        if (from < to) f(i + from - j, from - begin, to - from);
      });
    };
    const auto is_wanted = [&](int64_t first, int64_t last) {
      bool any = false;
      for_each_wanted(first, last, [&](int64_t, int64_t, int64_t) { any = true; });
      return any;
    };
    const auto take_from = [&](int64_t first) {
      return [&, first](std::span<const float> values) mutable {
        const int64_t last = first + std::ssize(values);
        for_each_wanted(first, last, [&](int64_t i, int64_t j, int64_t count) {
          std::copy_n(values.begin() + (i - first), count, wanted.begin() + j);
        });
        first = last;
      };
    };
    const int64_t numel = piece->shape.numel();
    if (piece->blocks.empty()) {
      if (is_wanted(piece->offset, piece->offset + numel))
        for_floats(*piece, take_from(piece->offset));
      continue;
    }
    for (size_t block = 0; block < piece->blocks.size(); ++block) {
      const int64_t first = static_cast<int64_t>(block) * block_elements;
      const int64_t last = std::min(first + block_elements, numel);
      if (is_wanted(piece->offset + first, piece->offset + last))
        for_floats(*piece, block, take_from(piece->offset + first));
    }
  }
  return wanted;
}

bool CheckpointReader::reads_ranges(const std::string& parameter, const std::string& state) const {
  const Pieces& all = pieces(parameter, state);
  return std::ranges::none_of(all, [](const Manifest::Piece* piece) {
    return piece->slice || (piece->blocks.empty() && piece->shape.numel() > block_elements);
  });
}

std::vector<float> CheckpointReader::read(const std::string& parameter, const std::string& state,
                                          const Slice& part) const {
  return read(parameter, state, part, 0, part.numel());
}

std::vector<float> CheckpointReader::read(const std::string& parameter,
                                          const std::string& state) const {
  return read(parameter, state, whole_slice(manifest_.numel_of(parameter, state)));
}

void CheckpointReader::check_bytes() const {
  for (const Manifest::Piece& piece : manifest_.pieces)
    for_floats(piece, [](std::span<const float>) {});
}

std::vector<std::string> CheckpointReader::damages() const {
  std::vector<std::string> found;
  const auto note = [&](const auto& check) {
    try {
      check();
    } catch (const Error& error) {
      found.emplace_back(error.what());
      return false;
    }
    return true;
  };
  for (const auto& parameter : manifest_.parameters) {
    const auto has = [&](const std::string& state) {
      return pieces_.contains({parameter.first, state});
    };
    const auto need = [&](const std::string& state) {
      if (!has(state)) note([&] { check_tiles(parameter.first, state); });
    };
    need("master");
    // A frozen parameter has no states; others have all, but an optimizer of matrices may keep
    // fewer of them.
    const auto& states = manifest_.states;
    const bool is_trained = std::ranges::any_of(states, has);
    const bool may_lack = manifest_.optimizer != "adam" && parameter.second.rank() == 2;
    if (is_trained && !manifest_.shared)
      for (const std::string& state : states)
        if (state == states.front() || !may_lack) need(state);
  }
  for (const auto& state : pieces_)
    note([&] { check_tiles(state.first.first, state.first.second); });
  // By file, so that a bad file is reported once and not for each of its tensors.
  std::map<std::string, bool> readable;
  for (const Manifest::Piece& piece : manifest_.pieces) {
    const auto [known, is_new] = readable.try_emplace(piece.file);
    if (is_new) known->second = note([&] { file(piece.file); });
    if (known->second) note([&] { for_floats(piece, [](std::span<const float>) {}); });
  }
  for (const auto& file : manifest_.file_checksums) note([&] { read_own_file(file.first); });
  return found;
}

}  // namespace zg::zero
