#include "zerograd/runtime/storage/tensor_files.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/npy_format.h"

using namespace zg;
using namespace zg::testing;

namespace {

const std::string numpy_files = std::string(ZG_FIXTURES) + "numpy/";

std::vector<uint8_t> bytes_of_tensor(const Tensor& tensor) {
  return tensor.alias(tensor.byte_offset(), {tensor.bytes()}, DType::u8).to_host<uint8_t>();
}

/// Equal dtypes, shapes and bytes, NaN included.
void check_equal(const NamedTensors& got, const NamedTensors& expected) {
  REQUIRE(got.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    REQUIRE(got.count(name) == 1);
    CHECK(got.at(name).dtype() == tensor.dtype());
    CHECK(got.at(name).shape() == tensor.shape());
    CHECK(bytes_of_tensor(got.at(name)) == bytes_of_tensor(tensor));
  }
}

/// One tensor of each dtype, one of them empty, a scalar, and a view at an offset.
NamedTensors some_tensors(const Device& device) {
  NamedTensors tensors;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32,
                            DType::u8, DType::boolean})
    tensors.emplace(name_of(dtype), Tensor::full({2, 3}, 1.0, dtype, device));
  tensors.emplace("empty", Tensor::zeros({0, 4}, DType::f32, device));
  tensors.emplace("scalar", Tensor::full({}, -2.5, DType::f32, device));
  const std::vector<int32_t> numbers = {1, 2, 3, 4, 5, 6};
  tensors.emplace("slice", Tensor::from(numbers, {3, 2}, device).slice(1, 3));
  return tensors;
}

}  // namespace

TEST_CASE("files of numpy are read in both byte orders, by rows and by columns, of each version") {
  const Device device = Device::cpu();
  std::vector<int32_t> grid;
  for (int32_t i = 0; i < 24; ++i) grid.push_back(i);
  const Tensor columns = load_npy(numpy_files + "columns.npy", device);
  CHECK(columns.shape() == Shape{2, 3, 4});
  CHECK(columns.to_host<int32_t>() == grid);
  CHECK(load_npy(numpy_files + "big_endian.npy", device).to_host<double>() ==
        std::vector<double>{0, 0.25, 0.5, 0.75, 1});
  for (const char* version : {"version1.npy", "version2.npy", "version3.npy"})
    CHECK(load_npy(numpy_files + version, device).to_doubles() == std::vector<double>{1, 2, 3});
}

TEST_CASE("tensors return from npy, npz and safetensors as they were written") {
  const TemporaryFolder folder;
  const Device device = Device::cpu();
  NamedTensors tensors = some_tensors(device);
  save_safetensors(folder.path() + "/all.safetensors", tensors, {{"format", "pt"}});
  check_equal(load_safetensors(folder.path() + "/all.safetensors", device), tensors);
  const std::string path = folder.path() + "/all.npz";
  CHECK(message_of<DTypeError>([&] { save_npz(path, tensors); }) ==
        "npy: numpy has no bf16; expected another dtype; try cast(x, DType::f32)");
  CHECK_FALSE(path_exists(path));
  tensors.erase("bf16");
  save_npz(path, tensors);
  check_equal(load_npz(path, device), tensors);
  for (const auto& [name, tensor] : tensors) {
    save_npy(folder.path() + "/one.npy", tensor);
    check_equal({{name, load_npy(folder.path() + "/one.npy", device)}}, {{name, tensor}});
  }
  save_npz(path, {});
  CHECK(load_npz(path, device).empty());
  CHECK(read_text(path) == std::string("PK\5\6") + std::string(18, '\0'));  // as numpy writes it
  CHECK(message_of<ShapeError>([&] {
          save_npz(path, {{"x", Tensor()}});
        }) == "save: a tensor is absent; expected one with a shape and a dtype");
  save_npy(folder.path() + "/one.npy", load_npy(numpy_files + "version3.npy", device));
  CHECK(read_text(folder.path() + "/one.npy") == read_text(numpy_files + "version1.npy"));
}

TEST_CASE("a plan reads shapes, and writes no file") {
  const TemporaryFolder folder;
  const Device plan = Device::meta();
  const NamedTensors tensors = load_npz(numpy_files + "arrays.npz", plan);
  CHECK(tensors.at("rank_4").shape() == Shape{2, 2, 2, 2});
  save_npz(folder.path() + "/plan.npz", tensors);
  save_npy(folder.path() + "/plan.npy", tensors.at("f64"));
  save_safetensors(folder.path() + "/plan.safetensors", tensors);
  for (const char* name : {"/plan.npz", "/plan.npy", "/plan.safetensors"})
    CHECK_FALSE(path_exists(folder.path() + name));
}

TEST_CASE("damaged and foreign files of numpy are refused with their place") {
  const TemporaryFolder folder;
  const Device device = Device::cpu();
  const std::string path = folder.path() + "/x.npy", zip = folder.path() + "/x.npz";
  const auto npy_error = [&](const std::string& bytes) {
    write_file(path, bytes);
    const std::string message = message_of<FileError>([&] { load_npy(path, device); });
    CHECK(message.find("npy: " + path + ":") == 0);
    return message.substr(std::min(message.size(), path.size() + 7));
  };
  const std::string good = read_text(numpy_files + "version2.npy");
  CHECK(npy_error("") == "has 0 bytes; expected 10 or more");
  CHECK(npy_error(std::string(20, 'x')) == "not a .npy file: it does not begin with \\x93NUMPY");
  CHECK(npy_error(good.substr(0, 11)) == "ends within its header");
  CHECK(npy_error(good.substr(0, good.size() - 1)) ==
        "f16 [1, 3] takes 6 bytes behind the header, got 5");
  std::string changed = good;
  changed[6] = 9;
  CHECK(npy_error(changed) == "version 9.0; expected 1.0, 2.0 or 3.0");
  const auto with_header = [&](const std::string& text) {
    return npy_error(std::string("\x93NUMPY\1\0", 8) + static_cast<char>(text.size()) + '\0' +
                     text);
  };
  for (const auto& [text, expected] :
       {std::pair("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }",
                  "descr: expected f8, f4, f2, i8, i4, u1 or b1"),
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
         "descr: expected a string, got [[\"a\",\"<f4\"]]"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
         "fortran_order: expected true or false, got 0"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, -1)}",
         "shape[1]: expected an extent of 0 or more, got -1"},
        {"{'descr': '<f4', 'fortran_order': True}", "shape: expected an array, got null"},
        {"{'descr': '<f4', 'descr': '<f4'}", "descr"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (4611686018427387904, 8)}",
         "shape: expected at most 6 axes and 2^60 elements, got [4611686018427387904,8]"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1, 1, 1, 1, 1, 1)}",
         "shape: expected at most 6 axes"}}) {
    CAPTURE(text);
    CHECK(contains(with_header(text), expected));
  }

  const auto zip_error = [&](const std::string& bytes) {
    write_file(zip, bytes);
    const std::string message = message_of<FileError>([&] { load_npz(zip, device); });
    CHECK(message.find("npz: " + zip + ": ") == 0);
    return message.substr(std::min(message.size(), zip.size() + 7));
  };
  CHECK(zip_error(read_text(numpy_files + "compressed.npz")) ==
        "'grid.npy': is compressed (method 8); expected an entry without compression; try "
        "np.savez() in place of np.savez_compressed()");
  CHECK(zip_error("PK") == "not a zip archive: it has no end of a directory");
  save_npz(zip, {{"a", Tensor::full({2}, 1.0, DType::f32, device)}});
  const std::string archive = read_text(zip);
  changed = archive;
  changed[archive.find("\x80?")] = 'x';
  CHECK(zip_error(changed).find("'a.npy': is damaged: checksum ") == 0);
  changed = archive;
  changed[archive.find("PK\1\2") + 8] |= 1;
  CHECK(zip_error(changed) == "'a.npy': is encrypted");
  changed = archive;
  changed.replace(changed.rfind("a.npy"), 5, "a.txt");
  CHECK(zip_error(changed) == "'a.txt': expected a name in .npy");
  // Every cut is an error, not a crash.
  for (size_t length = 0; length < archive.size(); ++length)
    CHECK(zip_error(archive.substr(0, length)) != "nothing was thrown");
}
