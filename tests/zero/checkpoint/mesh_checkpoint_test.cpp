#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/mesh_toy.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/checkpoint/checkpoint_save.h"
#include "zerograd/zero/checkpoint/consolidate.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;

namespace {

constexpr int micro_batches_per_step = 8;

void train_mesh_step(Engine& engine, int64_t step) {
  const Mesh* mesh = engine.mesh();
  const int data = engine.ranks().size(), rank = mesh ? mesh->data_rank : engine.ranks().rank();
  for (int g = rank; g < micro_batches_per_step; g += data)
    mesh_micro_batch(engine, static_cast<uint64_t>(step * 10 + g));
  engine.step(1e-2f);
}

template <class F>
void on_mesh(const MeshShape& shape, const Config& config, const F& f) {
  run_local(shape.ranks(), [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, shape);
    const MeshToy toy(mesh);
    Engine engine(toy.store, mesh, device, config);
    f(engine);
  });
}

std::string shape_text(const MeshShape& shape) {
  return std::to_string(shape.data) + std::to_string(shape.pipeline) + std::to_string(shape.tensor);
}

void save_mesh(Engine& engine, const std::string& directory) {
  zero::save_checkpoint(
      directory, engine,
      {.steps = engine.steps(), .micro_batches = engine.steps() * micro_batches_per_step});
}

void require_hash(Engine& engine, const std::string& hash, const char* when) {
  if (engine.parameter_hash() != hash)
    throw std::runtime_error(std::string("parameter_hash differs ") + when);
}

const MeshShape shapes[] = {{1, 1, 1}, {2, 2, 2}, {1, 4, 2}, {2, 1, 4}, {8, 1, 1}, {1, 8, 1}};

}  // namespace

TEST_CASE(
    "a run saved on any mesh and stage and resumed on any other gives the uninterrupted run's "
    "bits") {
  const TemporaryFolder folder;
  const std::vector<DType> dtypes = {DType::f32, DType::bf16};
  std::map<DType, std::string> saved, end;  // the hashes
  const auto path_of = [&](DType compute, const MeshShape& shape) {
    return folder / (name_of(compute) + shape_text(shape));
  };
  for (const DType compute : dtypes) {
    on_mesh({}, {.compute = compute}, [&](Engine& engine) {
      train_mesh_step(engine, 0);
      train_mesh_step(engine, 1);
      saved[compute] = engine.parameter_hash();
      train_mesh_step(engine, 2);
      end[compute] = engine.parameter_hash();
    });
    int stage = 0;
    for (const MeshShape& shape : shapes) {
      const std::string directory = path_of(compute, shape);
      on_mesh(shape, {.stage = stage++ % 4, .compute = compute, .param_persistence_threshold = 40},
              [&](Engine& engine) {
                train_mesh_step(engine, 0);
                train_mesh_step(engine, 1);
                require_hash(engine, saved.at(compute), "before they are saved");
                save_mesh(engine, directory);
              });
      CAPTURE(directory);
      CHECK(zero::damages_of(zero::find_checkpoint(directory)).empty());
      CHECK(zero::consolidate(directory, folder / "one", DType::f32) == saved[compute]);
    }
  }
  for_cover(
      [&](const MeshShape& from, const MeshShape& to, DType compute, int stage) {
        INFO(shape_text(from), " to ", shape_text(to), ", ", name_of(compute), ", stage ", stage);
        const Config config{
            .stage = stage, .compute = compute, .seed = 5, .param_persistence_threshold = 40};
        on_mesh(to, config, [&](Engine& engine) {
          zero::load_checkpoint(path_of(compute, from), engine);
          require_hash(engine, saved.at(compute), "as loaded");
          train_mesh_step(engine, 2);
          require_hash(engine, end.at(compute), "a step later");
        });
      },
      shapes, shapes, dtypes, std::vector{0, 1, 2, 3});
}

TEST_CASE(
    "a mesh trains while a CheckpointSave writes, and the checkpoint has the state when it began") {
  for (const int stage : {0, 3}) {
    const TemporaryFolder folder;
    std::string before;
    on_mesh({2, 2, 2}, {.stage = stage, .compute = DType::bf16}, [&](Engine& engine) {
      train_mesh_step(engine, 0);
      const std::string hash = engine.parameter_hash();
      if (engine.world().rank() == 0) before = hash;
      zero::CheckpointSave save(folder.path(), engine, {.steps = 1}, /*read_back=*/true);
      train_mesh_step(engine, 1);
      if (save.finish().failed_rank >= 0) throw FileError("not saved");
      if (engine.parameter_hash() == hash) throw ShapeError("nothing was trained");
    });
    on_mesh({1, 1, 2}, {.compute = DType::bf16}, [&](Engine& engine) {
      zero::load_checkpoint(folder.path(), engine);
      require_hash(engine, before, "as saved");
    });
  }
}

TEST_CASE(
    "load_weights loads a mesh checkpoint, a consolidated file or a checkpoint by split() into any "
    "mesh") {
  const TemporaryFolder folder;
  std::string hash;
  on_mesh({2, 2, 2}, {.stage = 1}, [&](Engine& engine) {
    train_mesh_step(engine, 0);
    const std::string own = engine.parameter_hash();
    if (engine.world().rank() == 0) hash = own;
    save_mesh(engine, folder / "mesh");
  });
  REQUIRE(zero::consolidate(folder / "mesh", folder / "one", DType::f32) == hash);
  zero::split(folder / "one", folder / "split", {.config_json = "{}"}, 3);
  for (const MeshShape& shape : {MeshShape{1, 1, 1}, MeshShape{1, 2, 4}, MeshShape{2, 1, 2}})
    on_mesh(shape, {.stage = 3, .seed = 5, .param_persistence_threshold = 0}, [&](Engine& engine) {
      for (const char* source : {"mesh", "one", "split"}) {
        zero::load_weights(folder / source, engine);
        require_hash(engine, hash, (std::string("with the weights of ") + source).c_str());
        train_mesh_step(engine, 0);
        if (engine.parameter_hash() == hash) throw ShapeError("nothing was trained");
      }
      // Without read_part a source gives whole parameters only, as the weights of Hugging Face do.
      WeightSource whole = zero::weights_of(folder / "mesh");
      whole.read_part = {};
      zero::load_weights(whole, engine);
      require_hash(engine, hash, "from whole parameters");
    });
}

TEST_CASE("a mesh of one rank writes the same checkpoint files as an engine without a mesh") {
  const TemporaryFolder folder;
  const MeshToy toy;
  Engine alone(toy.store, Device::cpu());
  train_mesh_step(alone, 0);
  save_mesh(alone, folder / "alone");
  on_mesh({}, {}, [&](Engine& engine) {
    train_mesh_step(engine, 0);
    save_mesh(engine, folder / "mesh");
  });
  for (const char* file : {"/step_1/manifest.json", "/step_1/shard_00000.safetensors"})
    CHECK(read_file(folder / "alone" + file) == read_file(folder / "mesh" + file));
  // Version 2 is only for manifests with slices.
  CHECK(nlohmann::json::parse(read_file(folder / "alone/step_1/manifest.json"))["version"] == 1);
}

TEST_CASE("a mesh checkpoint stores each element once, in one piece per slice of a parameter") {
  const TemporaryFolder folder;
  on_mesh({1, 2, 4}, {}, [&](Engine& engine) {
    train_mesh_step(engine, 0);
    save_mesh(engine, folder.path());
  });
  const zero::Manifest manifest = zero::read_manifest(folder / "step_1");
  std::map<std::string, int64_t> elements, pieces;
  for (const zero::Manifest::Piece& piece : manifest.pieces) {
    elements[piece.parameter + ":" + piece.state] += piece.shape.numel();
    ++pieces[piece.parameter + ":" + piece.state];
  }
  const MeshToy toy;
  for (const auto& parameter : toy.store.parameters()) {
    CAPTURE(parameter->name);
    CHECK(elements[parameter->name + ":master"] == parameter->whole.numel());
    CHECK(elements[parameter->name + ":moment2"] ==
          (parameter->trainable ? parameter->whole.numel() : 0));
    CHECK(pieces[parameter->name + ":master"] == (parameter->name.ends_with("gain") ? 1 : 4));
  }
  // checkpoint_file.h describes the name: this tensor is columns 3 to 5 of a parameter [5, 12].
  CHECK(read_file(folder / "step_1/manifest.json").find("unit.0.columns:master@0/5x12x1/3+3") !=
        std::string::npos);
}

namespace {

/// Applies `change` to the manifest, with a valid checksum, and returns what damages_of() reports.
/// The old manifest is restored.
template <class F>
std::vector<std::string> damages_after(const std::string& step, const F& change) {
  zero::Manifest manifest = zero::read_manifest(step);
  const std::string before = read_file(step + "/manifest.json");
  change(manifest);
  write_file(step + "/manifest.json", zero::manifest_text(manifest));
  std::vector<std::string> damages = zero::damages_of(step);
  write_file(step + "/manifest.json", before);
  return damages;
}

}  // namespace

TEST_CASE(
    "pieces of slices that overlap, leave a gap or contradict each other are reported as damage") {
  const TemporaryFolder folder;
  on_mesh({1, 1, 4}, {}, [&](Engine& engine) {
    train_mesh_step(engine, 0);
    save_mesh(engine, folder.path());
  });
  const std::string step = folder / "step_1", name = "unit.3.columns";
  using Pieces = std::vector<zero::Manifest::Piece>;
  const auto is_third_slice = [&](const zero::Manifest::Piece& piece) {
    return piece.parameter == name && piece.state == "master" && piece.slice->begin == 6;
  };
  const auto third_slice = [&](Pieces& pieces) {
    return std::ranges::find_if(pieces, is_third_slice);
  };
  CHECK(zero::damages_of(step).empty());
  const auto missing = damages_after(step, [&](auto& m) { m.pieces.erase(third_slice(m.pieces)); });
  REQUIRE(!missing.empty());
  CHECK(contains(missing.front(), name));
  CHECK(contains(missing.front(), "row 6"));
  const auto is_last_slice = [&](const zero::Manifest::Piece& piece) {
    return piece.parameter == name && piece.state == "master" && piece.slice->begin == 9;
  };
  const auto short_by =
      damages_after(step, [&](auto& m) { std::erase_if(m.pieces, is_last_slice); });
  REQUIRE(!short_by.empty());
  CHECK(contains(short_by.front(), "has rows up to 9; expected 12"));
  CHECK(!damages_after(step, [&](auto& m) { third_slice(m.pieces)->slice->begin = 5; }).empty());
  CHECK(!damages_after(step, [&](auto& m) { third_slice(m.pieces)->slice->rows = 2; }).empty());
  CHECK(!damages_after(step, [&](auto& m) {
           third_slice(m.pieces)->slice = Slice{.outer = 60, .extent = 1, .rows = 1, .inner = 1};
         }).empty());
  CHECK(!damages_after(step, [&](auto& m) { m.pieces.push_back(*third_slice(m.pieces)); }).empty());
  CHECK(!damages_after(step, [&](auto& m) { third_slice(m.pieces)->slice.reset(); }).empty());
  CHECK(!damages_after(step, [&](auto& m) { third_slice(m.pieces)->offset = 1; }).empty());
  std::filesystem::remove(step + "/shard_00002.safetensors");
  const std::vector<std::string> damages = zero::damages_of(step);
  REQUIRE(!damages.empty());
  CHECK(contains(damages.front(), "shard_00002"));
}

TEST_CASE("CheckpointReader::read verifies only the blocks of a long piece that the slice needs") {
  const TemporaryFolder folder;
  // A checksum block has 2^20 elements, so blocks end inside rows.
  constexpr int64_t rows = 5, width = (int64_t{1} << 20) - 100;
  ParameterStore store;
  const Parameter& parameter = store.add(store.unit("unit"), "large", {rows, width},
                                         Init::normal(1.0f), {.trainable = false});
  Engine engine(store, Device::cpu());
  save_mesh(engine, folder.path());
  const std::vector<float> whole = engine.read(parameter, Engine::State::master);
  const std::string shard = folder / "step_0/shard_00000.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() - 1] = static_cast<char>(bytes.back() ^ 1);  // in the last block
  write_file(shard, bytes);
  const zero::CheckpointReader reader(folder / "step_0");
  const auto read = [&](int64_t begin, int64_t count) {
    const Slice part{.extent = rows, .begin = begin, .rows = count, .inner = width};
    return reader.read("large", "master", part) == part_of(whole, part);
  };
  CHECK(read(0, 1));
  CHECK(read(1, 2));
  const Slice middle{.extent = rows, .begin = 1, .rows = 4, .inner = width};
  std::vector<float> expected = part_of(whole, middle);
  expected.resize(static_cast<size_t>(width) + 7);
  expected.erase(expected.begin(), expected.begin() + 5);
  CHECK(reader.read("large", "master", middle, 5, width + 7) == expected);
  CHECK_THROWS_AS(read(4, 1), FileError);
  CHECK_THROWS_AS(read(0, 5), FileError);
  const Slice columns{.outer = rows, .extent = width, .begin = width - 3, .rows = 3, .inner = 1};
  CHECK_THROWS_AS(reader.read("large", "master", columns), FileError);
  bytes[bytes.size() - 1] = static_cast<char>(bytes.back() ^ 1);
  write_file(shard, bytes);
  CHECK(reader.read("large", "master", columns) == part_of(whole, columns));
}

TEST_CASE(
    "the ranges of Engine::held on all data ranks cover a slice, and write_held sets the values of "
    "a rank's range") {
  for (const int stage : {0, 2, 3})
    on_mesh({4, 1, 2}, {.stage = stage, .compute = DType::bf16, .param_persistence_threshold = 0},
            [&](Engine& engine) {
              const Parameter& rows = *engine.store().find("unit.2.rows");
              using State = Engine::State;
              const auto held = engine.held(rows, State::moment2);
              std::vector<int64_t> counts(4);
              counts[static_cast<size_t>(engine.ranks().rank())] = held.end - held.begin;
              const Tensor sum = Tensor::from(counts, {4}, engine.device());
              engine.ranks().wait(engine.ranks().all_reduce(sum, "held"));
              counts = sum.to_host<int64_t>();
              const int64_t all = counts[0] + counts[1] + counts[2] + counts[3];
              if (all != rows.shape.numel() * (stage == 0 ? 4 : 1))
                throw std::runtime_error("the ranges of moment2 do not add up to the slice");
              const auto masters = engine.held(rows, State::master);
              if (stage < 3 && masters.end - masters.begin != rows.shape.numel())
                throw std::runtime_error("a rank lacks master weights below stage 3");
              std::vector<float> values(static_cast<size_t>(held.end - held.begin));
              for (size_t i = 0; i < values.size(); ++i)
                values[i] = static_cast<float>(held.begin) + static_cast<float>(i);
              engine.write_held(rows, State::moment2, values);
              const std::vector<float> whole = engine.read(rows, State::moment2);
              for (size_t i = 0; i < whole.size(); ++i)
                if (whole[i] != static_cast<float>(i))
                  throw std::runtime_error("read() does not return what write_held() wrote");
            });
}

TEST_CASE("load_checkpoint on a mesh refuses and names a saved parameter that no rank has") {
  const TemporaryFolder folder;
  on_mesh({1, 2, 1}, {}, [&](Engine& engine) { save_mesh(engine, folder.path()); });
  const auto load = [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, {.pipeline = 2});
    ParameterStore store;
    const Unit& unit = store.unit("unit");
    store.add(unit, mesh.stage == 0 ? "tied" : "unit.5.gain",
              mesh.stage == 0 ? Shape{4, 33} : Shape{37}, Init::ones());
    Engine engine(store, mesh, device);
    zero::load_checkpoint(folder.path(), engine);
  };
  const std::string message = message_of<FileError>([&] { run_local(2, load); });
  CHECK(contains(message, "unit.0.columns"));
  CHECK(contains(message, "which the model does not have"));
}

TEST_CASE("parameter_hash refuses slices of tensor ranks that do not make up their parameter") {
  struct Rows {
    int64_t begin, count;
  };
  // The rows of each of two ranks, out of 12.
  const Rows wrong[][2] = {{{0, 6}, {5, 7}}, {{0, 6}, {7, 5}}, {{0, 6}, {6, 5}}, {{6, 6}, {0, 6}}};
  for (const auto& rows : wrong) {
    const auto hash = [&](Communicator& world, const Device& device) {
      const Mesh mesh(world, {.tensor = 2});
      ParameterStore store;
      const auto [begin, count] = rows[mesh.tensor_rank];
      store.add(store.unit("unit"), "cut", {count, 3}, Init::ones(),
                {.trainable = false,
                 .whole = {12, 3},
                 .slice = Slice{.extent = 12, .begin = begin, .rows = count, .inner = 3}});
      Engine engine(store, mesh, device);
      (void)engine.parameter_hash();
    };
    INFO(rows[0].begin, ", ", rows[1].begin, ", ", rows[1].count);
    CHECK_ERROR(ConfigError,
                "the parts of parameter 'cut' on 2 ranks do not cover its shape [12, 3]",
                run_local(2, hash));
  }
}

TEST_CASE(
    "parameters longer than a bucket of WholeModel have the same hash on one rank, on two tensor "
    "ranks and when consolidated") {
  const TemporaryFolder folder;
  constexpr int64_t bucket = int64_t{1} << 20;  // bucket_elements of whole_model.cpp
  std::string alone;
  for (const int ranks : {1, 2}) {
    const MeshShape shape{1, 1, ranks};
    run_local(ranks, [&](Communicator& world, const Device& device) {
      const Mesh mesh(world, shape);
      ParameterStore store;
      const Unit& unit = store.unit("unit");
      const auto add = [&](const char* name, int64_t rows, int64_t columns) {
        const int64_t own = columns / ranks;
        store.add(
            unit, name, {rows, own}, Init::normal(0.5f),
            {.trainable = false,
             .whole = {rows, columns},
             .slice = Slice{
                 .outer = rows, .extent = columns, .begin = mesh.tensor_rank * own, .rows = own}});
      };
      add("many_rows", 3, bucket / 2);  // a bucket holds two rows
      add("long_rows", 2, bucket + 2);  // a row is longer than a bucket
      Engine engine(store, mesh, device, {});
      const std::string hash = engine.parameter_hash();
      if (world.rank() == 0) {
        if (alone.empty()) alone = hash;
        CHECK(hash == alone);
      }
      save_mesh(engine, folder / std::to_string(ranks));
    });
    CHECK(zero::consolidate(folder / std::to_string(ranks), folder / "one", DType::f32) == alone);
  }
}

TEST_CASE("dump_gradients on any mesh writes the same bytes as on one rank") {
  const TemporaryFolder folder;
  std::string alone;
  for (const MeshShape& shape : {MeshShape{1, 1, 1}, MeshShape{2, 2, 2}, MeshShape{1, 1, 4}}) {
    on_mesh(shape, {.stage = 2}, [&](Engine& engine) {
      for (int g = engine.mesh() ? engine.mesh()->data_rank : 0; g < micro_batches_per_step;
           g += shape.data)
        mesh_micro_batch(engine, static_cast<uint64_t>(g));
      zero::dump_gradients(folder / "gradients", engine);
    });
    const std::string bytes = read_file(folder / "gradients");
    if (alone.empty()) alone = bytes;
    CHECK(bytes == alone);
  }
}
