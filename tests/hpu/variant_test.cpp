#include "zerograd/kernels/hpu/variant.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;
using hpu::Variant;

namespace {

/// Sets ZG_HPU_VARIANT while it lives.
class Asked {
 public:
  explicit Asked(const char* variant) {
    if (const char* before = std::getenv(name)) before_ = before;
    variant ? setenv(name, variant, 1) : unsetenv(name);
  }
  ~Asked() { before_ ? setenv(name, before_->c_str(), 1) : unsetenv(name); }

 private:
  static constexpr const char* name = "ZG_HPU_VARIANT";
  std::optional<std::string> before_;
};

std::string_view setting(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// The variant for the devices that the test driver's settings describe.
Variant best_here() {
  if (setting("ZE_TEST_DRIVER_SUB_GROUPS") == "none") return Variant::portable;
  const std::string_view products = setting("ZE_TEST_DRIVER_DPAS");  // none, or wrong ones
  return products == "0" || products == "2" ? Variant::sub_groups : Variant::dpas;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("a device uses the best variant that it supports, DPAS with the right sub-group size") {
  const Asked nothing(nullptr);
  const Device device = Device::hpu();
  CHECK(hpu::variant_of(device.compute()) == best_here());
  CHECK(contains(device.description(), " vector engines, sub-groups of ") !=
        contains(device.description(), " vector engines, no sub-groups, "));
  CHECK(contains(device.description(), "no sub-groups") ==
        (setting("ZE_TEST_DRIVER_SUB_GROUPS") == "none"));
  if (best_here() != Variant::dpas) return;
  const bool of8 = setting("ZE_TEST_DRIVER_SUB_GROUPS").starts_with("8");
  CHECK(hpu::dpas_variant(device.compute()) == std::string(of8 ? "dpas8" : "dpas16"));
}

TEST_CASE("a requested variant is used, or refused by name") {
  const Device device = Device::hpu();
  for (const auto& [name, variant] : {std::pair{"portable", Variant::portable},
                                      {"sub_groups", Variant::sub_groups},
                                      {"dpas", Variant::dpas}}) {
    CAPTURE(name);
    const Asked asked(name);
    if (variant <= best_here())
      CHECK(hpu::variant_of(device.compute()) == variant);
    else
      CHECK_THROWS_WITH_AS(
          hpu::variant_of(device.compute()),
          (std::string("ZG_HPU_VARIANT: this device has no ") + name + "; expected " +
           (best_here() == Variant::portable ? "portable" : "sub_groups") + " or less")
              .c_str(),
          ConfigError);
  }
  const Asked unknown("fast");
  CHECK_THROWS_WITH_AS(hpu::variant_of(device.compute()),
                       "ZG_HPU_VARIANT: expected portable, sub_groups or dpas, got 'fast'",
                       ConfigError);
}

TEST_CASE("products of f32 have the same bits with sub-groups and without") {
  if (best_here() == Variant::portable) return;
  const Device device = Device::hpu();
  const int64_t M = 70, N = 131, K = 93;
  const auto product = [&](const char* variant) {
    const Asked asked(variant);
    const Tensor c = Tensor::empty({M, N}, DType::f32, device);
    kernels::matmul({.a = random_tensor({M, K}, DType::f32, device, 1),
                     .b = random_tensor({K, N}, DType::f32, device, 2),
                     .c = c,
                     .M = M,
                     .N = N,
                     .K = K},
                    device.compute());
    return c;
  };
  CHECK(same_bits(product("portable"), product("sub_groups")));
}

TEST_CASE("products and attention of f16 are refused by name") {
  const Device device = Device::hpu();
  const Tensor x = Tensor::zeros({4, 16}, DType::f16, device);
  CHECK_THROWS_WITH_AS(
      kernels::matmul({.a = x, .b = x, .c = x, .M = 4, .N = 4, .K = 4}, device.compute()),
      "matmul: no hpu kernel for f16; expected f32 or bf16", Unsupported);
  const HeadLayout layout{.batch = 64, .head = 16, .token = 16};
  AttentionShape shape{.B = 1, .H = 1, .T = 4, .keys = 4, .D = 16};
  shape.q = shape.k = shape.v = shape.out = layout;
  CHECK_THROWS_WITH_AS(kernels::attention_forward(
                           {.q = x, .k = x, .v = x, .out = x, .shape = shape}, device.compute()),
                       "attention: no hpu kernel for f16; expected f32 or bf16", Unsupported);
}

TEST_SUITE_END();
