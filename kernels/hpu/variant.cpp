#include "zerograd/kernels/hpu/variant.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "zerograd/runtime/hpu/features.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

constexpr const char* variant_names[] = {"portable", "sub_groups", "dpas"};

Variant best_of(const Stream& stream) {
  if (stream.type() == Device::Type::meta) return Variant::dpas;  // a plan is for a device with all
  const int index = stream.device().index();
  if (dpas_sub_group_size(index) > 0) return Variant::dpas;
  const auto& sizes = features_of(index).sub_groups;
  return std::ranges::find(sizes, 16) == sizes.end() ? Variant::portable : Variant::sub_groups;
}

}  // namespace

Variant variant_of(const Stream& stream) {
  const char* const asked = std::getenv("ZG_HPU_VARIANT");
  if (!asked) return best_of(stream);
  const auto found = std::ranges::find(variant_names, std::string(asked));
  if (found == std::end(variant_names))
    raise<ConfigError>("ZG_HPU_VARIANT: expected portable, sub_groups or dpas, got '{}'", asked);
  const auto variant = static_cast<Variant>(found - variant_names);
  if (variant == Variant::portable) return variant;
  const Variant best = best_of(stream);
  if (variant > best)
    raise<ConfigError>("ZG_HPU_VARIANT: this device has no {}; expected {} or less", asked,
                       variant_names[static_cast<size_t>(best)]);
  return variant;
}

const char* dpas_variant(const Stream& stream) {
  if (stream.type() == Device::Type::meta) return "dpas16";
  return dpas_sub_group_size(stream.device().index()) == 8 ? "dpas8" : "dpas16";
}

}  // namespace zg::hpu
