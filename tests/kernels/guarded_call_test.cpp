#include "tests/kernels/guarded_call.h"

#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gelu.h"

using namespace zg;
using namespace zg::testing;

namespace {

using Lines = std::vector<std::string>;

/// Which element beside y a planted kernel writes.
int64_t written_element = 0;

void planted(const GeluForward& a, Workspace, Stream& stream) {
  const int64_t size = size_of(a.y.dtype());
  copy(a.x, a.y, stream);
  stream.fill_zero(a.y.raw() + written_element * size, static_cast<size_t>(size));
}

Lines damages(const GeluForward& args) {
  return guarded_call<GeluForward>(planted, "gelu_forward", args, {}, args.y.device().compute());
}

}  // namespace

TEST_CASE(
    "guarded_call names a kernel that writes an element before or after its output, and the index" *
    doctest::test_suite("every device")) {
  const Device device = devices_at_every_level().back();
  const Tensor rows = random_tensor({3, 11}, DType::f32, device, 1);
  const Tensor whole = Tensor::zeros({5, 11}, DType::f32, device);
  const GeluForward args{.x = rows, .y = whole.slice(1, 4)};
  written_element = 32;
  CHECK(damages(args).empty());
  CHECK(args.y.to_doubles()[31] == rows.to_doubles()[31]);
  CHECK(args.y.to_doubles()[32] == 0.0);
  written_element = 33;
  CHECK(damages(args) ==
        Lines{"gelu_forward: wrote element 33 of y (f32 [3, 11]); expected 0 to 32"});
  written_element = -1;
  CHECK(damages(args) ==
        Lines{"gelu_forward: wrote element -1 of y (f32 [3, 11]); expected 0 to 32"});
  written_element = 900;
  CHECK(damages(args) ==
        Lines{"gelu_forward: wrote element 900 of y (f32 [3, 11]); expected 0 to 32"});
  // In place, and in two bytes.
  const Tensor narrow = random_tensor({7}, DType::bf16, device, 2);
  written_element = 7;
  CHECK(damages({.x = narrow, .y = narrow}) ==
        Lines{"gelu_forward: wrote element 7 of y (bf16 [7]); expected 0 to 6"});
  const Tensor nothing = Tensor::empty({0}, DType::f32, device);
  written_element = 0;
  CHECK(damages({.x = nothing, .y = nothing}) ==
        Lines{"gelu_forward: wrote element 0 of y (f32 [0]); expected 0 to -1"});
}

TEST_CASE("guarded_call guards every output and the workspace, and changes no result" *
          doctest::test_suite("every device")) {
  const Device device = devices_at_every_level().back();
  Stream& stream = device.compute();
  const auto slopes = [&] {
    return BinaryBackward{.op = BinaryOp::divide,
                          .a = random_tensor({9, 7}, DType::f32, device, 1),
                          .b = random_tensor({9, 7}, DType::f32, device, 2, 1.0, 2.0),
                          .dy = random_tensor({9, 7}, DType::f32, device, 3),
                          .da = Tensor::empty({9, 7}, DType::f32, device),
                          .db = Tensor::empty({9, 7}, DType::f32, device)};
  };
  const BinaryBackward plain = slopes(), guarded = slopes();
  kernels::binary_backward(plain, stream);
  const auto function = kernels::binary_backward[device.type()].function;
  CHECK(guarded_call<BinaryBackward>(function, "binary_backward", guarded, {}, stream).empty());
  CHECK(same_bits(plain.da, guarded.da));
  CHECK(same_bits(plain.db, guarded.db));

  const auto beyond = [](const BinaryBackward& a, Workspace workspace, Stream& queue) {
    queue.fill_zero(a.db.raw() + a.db.bytes(), 4);
    queue.fill_zero(workspace.data - 1, 1);
  };
  const Tensor scratch = Tensor::empty({64}, DType::u8, device);
  CHECK(guarded_call<BinaryBackward>(beyond, "binary_backward", guarded,
                                     {.data = scratch.raw(), .bytes = 64, .tensor = &scratch},
                                     stream) ==
        Lines{"binary_backward: wrote element 63 of db (f32 [9, 7]); expected 0 to 62",
              "binary_backward: wrote element -1 of the workspace (u8 [64]); expected 0 to 63"});
}

TEST_CASE("with exact_memory each operand of a kernel lies at the end of an allocation of its own" *
          doctest::test_suite("every device")) {
  const Device device = devices_at_every_level().back();
  static std::vector<std::shared_ptr<Tensor>> made;
  static std::vector<const std::byte*> seen;
  const ExactMemory before = exact_memory;
  exact_memory = [](const Device& on, size_t bytes) {
    made.push_back(
        std::make_shared<Tensor>(Tensor::empty({static_cast<int64_t>(bytes)}, DType::u8, on)));
    return std::shared_ptr<void>(made.back(), made.back()->raw());
  };
  const Tensor rows = random_tensor({3, 11}, DType::f32, device, 1);
  const Tensor whole = Tensor::zeros({5, 11}, DType::f32, device);
  const auto copied = [](const GeluForward& a, Workspace, Stream& stream) {
    seen = {a.x.raw() + a.x.bytes(), a.y.raw() + a.y.bytes()};
    copy(a.x, a.y, stream);
  };
  CHECK(guarded_call<GeluForward>(copied, "gelu_forward", {.x = rows, .y = whole.slice(1, 4)}, {},
                                  device.compute())
            .empty());
  exact_memory = before;
  REQUIRE(made.size() == 2);
  CHECK(seen[0] == made[0]->raw() + made[0]->bytes());
  CHECK(seen[1] == made[1]->raw() + made[1]->bytes());
  made.clear();
  CHECK(bytes_of(whole.slice(1, 4)) == bytes_of(rows));
  CHECK(whole.to_doubles()[10] == 0.0);
  CHECK(whole.to_doubles()[44] == 0.0);
}
