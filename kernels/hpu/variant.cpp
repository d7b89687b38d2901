#include "kernels/hpu/variant.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "runtime/error.h"
#include "runtime/hpu/module.h"

namespace zg::hpu {
namespace {

constexpr const char* names[] = {"portable", "sub_groups", "dpas"};

Variant best_of(const Features& features) {
  const auto& sizes = features.sub_groups;
  return std::find(sizes.begin(), sizes.end(), 16) == sizes.end() ? Variant::portable
                                                                  : Variant::sub_groups;
}

}  // namespace

Variant variant_of(const Stream& stream) {
  const Variant best = best_of(features_of(stream.device().index()));
  const char* asked = std::getenv("ZG_HPU_VARIANT");
  if (!asked) return best;
  const auto found = std::find(std::begin(names), std::end(names), std::string(asked));
  if (found == std::end(names))
    throw ConfigError(std::string("ZG_HPU_VARIANT: expected portable, sub_groups or dpas, got '") +
                      asked + "'");
  const auto variant = static_cast<Variant>(found - names);
  if (variant > best)
    throw ConfigError(std::string("ZG_HPU_VARIANT: this device has no ") + asked + "; expected " +
                      names[static_cast<size_t>(best)] + " or less");
  return variant;
}

}  // namespace zg::hpu
