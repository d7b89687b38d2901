#include "zerograd/runtime/dlpack.h"

#include <thread>

#include "tests/support/error_message.h"

// The other side of the protocol, as any program declares it: the layout is DLPack's ABI.
extern "C" {
struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};
}

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int32_t on_cpu = 1, on_cuda = 2;

/// A [2, 3] of another program, in f32 on the CPU unless a test changes it.
struct Theirs {
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::vector<int64_t> shape = {2, 3}, strides = {3, 1};
  int deleted = 0;
  DLManagedTensor managed = {
      {values.data(), {on_cpu, 0}, 2, {2, 32, 1}, shape.data(), strides.data(), 0},
      this,
      [](DLManagedTensor* self) { ++static_cast<Theirs*>(self->manager_ctx)->deleted; }};
};

}  // namespace

TEST_CASE("dlpack: to_dlpack shares a tensor's memory and keeps it until the deleter is called") {
  const Device device = Device::cpu();
  const int64_t before = device.memory().live();
  DLManagedTensor* shared = nullptr;
  const std::byte* raw = nullptr;
  {
    const Tensor whole = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {3, 2}, device);
    const Tensor rows = whole.slice(1, 3);
    raw = rows.raw();
    shared = to_dlpack(rows);
  }
  const DLTensor& tensor = shared->dl_tensor;
  CHECK(tensor.data == raw);
  CHECK(tensor.byte_offset == 0);
  CHECK(tensor.ndim == 2);
  CHECK(std::vector<int64_t>(tensor.shape, tensor.shape + 2) == std::vector<int64_t>{2, 2});
  CHECK(tensor.strides == nullptr);
  CHECK(tensor.device.device_type == on_cpu);
  CHECK(int{tensor.dtype.code} == 2);
  CHECK(int{tensor.dtype.bits} == 32);
  CHECK(static_cast<float*>(tensor.data)[0] == 2.0f);
  CHECK(device.memory().live() > before);
  std::thread([&] { shared->deleter(shared); }).join();
  CHECK(device.memory().live() == before);
}

TEST_CASE(
    "dlpack: a tensor of any dtype that goes to DLPack and back keeps its memory and values") {
  const Device device = Device::cpu();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32,
                            DType::u8, DType::boolean}) {
    CAPTURE(dtype);
    const Tensor own = Tensor::full({3, 1, 2}, 1.0, dtype, device);
    const Tensor back = from_dlpack(to_dlpack(own), device);
    CHECK(back.dtype() == dtype);
    CHECK(back.shape() == own.shape());
    CHECK(back.raw() == own.raw());
    CHECK(back.to_doubles() == own.to_doubles());
  }
  for (const Shape& shape : {Shape{}, Shape{0, 4}}) {
    const Tensor back = from_dlpack(to_dlpack(Tensor::zeros(shape, DType::f32, device)), device);
    CHECK(back.shape() == shape);
  }
}

TEST_CASE("dlpack: from_dlpack shares memory, does not count it, and calls the deleter once") {
  const Device device = Device::cpu();
  const int64_t before = device.memory().live();
  Theirs theirs;
  {
    Tensor view;
    {
      const Tensor taken = from_dlpack(&theirs.managed, device);
      CHECK(taken.to_host<float>() == theirs.values);
      CHECK(device.memory().live() == before);
      taken.data<float>()[5] = 60.0f;
      view = taken.view({3, 2}).slice(1, 3);
    }
    CHECK(theirs.deleted == 0);
    theirs.values[4] = 50.0f;
    CHECK(view.to_host<float>() == std::vector<float>{3, 4, 50, 60});
  }
  CHECK(theirs.deleted == 1);
}

TEST_CASE("dlpack: from_dlpack refuses wrong strides, dtypes and devices, and calls the deleter") {
  const Device device = Device::cpu();
  const auto refused = [&](const auto& change) {
    Theirs theirs;
    change(theirs.managed.dl_tensor);
    std::string what = "nothing was thrown";
    try {
      from_dlpack(&theirs.managed, device);
    } catch (const Error& error) {
      what = error.what();
    }
    CHECK(theirs.deleted == 1);
    return what;
  };
  int64_t transposed[] = {1, 2};
  CHECK(
      contains(refused([&](DLTensor& t) { t.strides = transposed; }), "[2, 3] is not contiguous"));
  CHECK(contains(refused([](DLTensor& t) { t.dtype.lanes = 4; }), "32 bits, 4 lanes; expected"));
  CHECK(contains(refused([](DLTensor& t) { t.dtype.code = 5; }), "element type of code 5"));
  CHECK(contains(refused([](DLTensor& t) {
                   t.device = {on_cuda, 1};
                 }),
                 "DLPack device type 2, index 1; expected memory of cpu:0"));
  CHECK(
      contains(refused([](DLTensor& t) { t.byte_offset = 2; }), "multiple of its element's size"));
  int64_t negative[] = {2, -3};
  CHECK(
      contains(refused([&](DLTensor& t) { t.shape = negative; }), "expected extents of 0 or more"));
  int64_t wraps[] = {int64_t{1} << 62, 6};
  CHECK(contains(refused([&](DLTensor& t) { t.shape = wraps; }), "[4611686018427387904, 6]"));
  CHECK(contains(refused([&](DLTensor& t) { t.strides = wraps; }), "[2, 3] is not contiguous"));
  CHECK(contains(refused([](DLTensor& t) { t.shape = nullptr; }), "2 axes without extents"));
  CHECK(contains(refused([](DLTensor& t) { t.ndim = -1; }), "-1 axes without extents"));
  CHECK(contains(refused([](DLTensor& t) { t.byte_offset = -uint64_t{4}; }), "offset of at most"));
  CHECK(contains(refused([](DLTensor& t) { t.data = nullptr; }), "expected an address"));
  // A row of one element may have any stride there.
  Theirs single;
  single.shape = {1, 6};
  single.strides = {99, 1};
  CHECK(from_dlpack(&single.managed, device).shape() == Shape{1, 6});
  CHECK_ERROR(Unsupported, "has no memory to share",
              to_dlpack(Tensor::zeros({2}, DType::f32, Device::meta())));
  CHECK_THROWS_AS(to_dlpack(Tensor()), ShapeError);
  CHECK_THROWS_AS(from_dlpack(nullptr, device), ShapeError);
}
