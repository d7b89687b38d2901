#include "zerograd/zero/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/bounded.h"
#include "zerograd/runtime/checked_product.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/safetensors_format.h"
#include "zerograd/runtime/text/json.h"

// Fuzzes a checkpoint's manifest, unchanged and with a correct checksum, because an attacker can
// compute the checksum too.
namespace zg::testing {
namespace {

using nlohmann::json;

void read(const std::string& text) {
  zero::Manifest manifest;
  try {
    manifest = zero::manifest_from(text, "manifest.json");
  } catch (const FileError& error) {
    if (!std::string(error.what()).starts_with("checkpoint: manifest.json:"))
      report("an error without its file", error.what());
    return;
  }
  const auto addressable = [](const Shape& shape) {
    if (!checked_product(shape.extents())) report("too large", shape.str());
  };
  for (const auto& [name, shape] : manifest.parameters) addressable(shape);
  for (const zero::Manifest::Piece& piece : manifest.pieces) {
    addressable(piece.shape);
    if (piece.offset < 0 || !manifest.parameters.contains(piece.parameter))
      report("a piece of nothing", piece.name());
    const int64_t numel = piece.shape.numel();
    if (const auto& slice = piece.slice) {
      const int64_t whole = manifest.parameters.at(piece.parameter).numel();
      if (slice->whole_numel() != whole || slice->numel() < piece.offset + numel ||
          (numel > 0 && slice->whole_index(piece.offset + numel - 1) >= whole))
        report("a piece outside its parameter", piece.name());
    }
    if (!piece.blocks.empty() &&
        static_cast<int64_t>(piece.blocks.size()) != (numel - 1) / zero::block_elements + 1)
      report("checksums of other blocks", piece.name());
    if (!is_file_name(piece.file)) report("outside the folder", piece.file);
  }
  if (manifest.info.steps < 0 || manifest.info.skipped < 0 || manifest.info.micro_batches < 0)
    report("a negative count", text);
  // Writing and reading the manifest again must give the same pieces.
  const zero::Manifest again = zero::manifest_from(zero::manifest_text(manifest), "again");
  bool alike = again.pieces.size() == manifest.pieces.size();
  for (size_t i = 0; alike && i < again.pieces.size(); ++i)
    alike = again.pieces[i].name() == manifest.pieces[i].name();
  if (!alike) report("not what is written of it", text);
}

std::string with_checksum(const std::string& text) {
  json object;
  try {
    object = parse_json_object(text, "text");
  } catch (const FileError&) {
    return "";
  }
  object.erase("checksum");
  const std::string content = object.dump();
  object["checksum"] = checksum(std::as_bytes(std::span(content)));
  return object.dump(1) + "\n";
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  const std::string text(bytes, bytes + size);
  const std::string valid = with_checksum(text);
  bounded([&] { read(text); });
  if (!valid.empty()) bounded([&] { read(valid); });
  return 0;
}
