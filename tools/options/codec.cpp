#include "tools/options/fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "zerograd/models/gpt/family.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::tools {
namespace {

// --- enumerations: the values that a checkpoint may have, which name_of() names ---

template <class E>
constexpr std::initializer_list<E> known = {};
template <>
constexpr auto known<DType> = {DType::f32, DType::bf16, DType::f16};
template <>
constexpr auto known<Space> = {Space::device, Space::host, Space::file};
template <>
constexpr auto known<Bits> = {Bits::portable, Bits::fast};
template <>
constexpr auto known<LossMean> = {LossMean::micro_batch, LossMean::token};
template <>
constexpr auto known<models::Order> = {models::Order::random, models::Order::sequential};
template <>
constexpr auto known<models::Position> = {models::Position::learned, models::Position::alibi,
                                          models::Position::rope};
template <>
constexpr auto known<nn::NormKind> = {nn::NormKind::layer, nn::NormKind::rms,
                                      nn::NormKind::rms_plus_one};
template <>
constexpr auto known<nn::MlpKind> = {nn::MlpKind::gelu_tanh, nn::MlpKind::gelu_erf,
                                     nn::MlpKind::gated_silu, nn::MlpKind::gated_gelu_tanh,
                                     nn::MlpKind::gated_gelu_erf};
template <>
constexpr auto known<RopeScaling> = {RopeScaling::none, RopeScaling::linear, RopeScaling::llama3,
                                     RopeScaling::yarn, RopeScaling::longrope};
template <>
constexpr auto known<OptimizerRule> = optimizer_rules;
template <>
constexpr auto known<zero::MatrixRate> = zero::matrix_rates;
template <>
constexpr auto known<zero::WarmupType> = {zero::WarmupType::linear, zero::WarmupType::log};

const char* name_of(models::Order order) {
  return order == models::Order::random ? "random" : "sequential";
}
const char* name_of(zero::WarmupType type) {
  return type == zero::WarmupType::linear ? "linear" : "log";
}

// --- writing ---

template <class T>
Json json_of(const T& value) {
  if constexpr (!std::is_enum_v<T>)
    return value;
  else if constexpr (requires { Json(name_of(value)); })
    return name_of(value);
  else
    return static_cast<int>(value);
}
Json json_of(double number) {
  // JSON has no infinities, and a diverged run must still save.
  return std::isfinite(number) ? Json(number)
                               : Json(std::isnan(number) ? "nan"
                                      : number > 0       ? "inf"
                                                         : "-inf");
}
Json json_of(const std::vector<zero::ParameterGroup>& groups) { return zero::text_of(groups); }
template <std::integral T>
Json json_of(const std::optional<T>& number) {
  return number ? Json(*number) : Json(nullptr);
}
Json json_of(const std::optional<StepRange>& steps) {
  return steps ? Json(fmt::format("{}:{}", steps->first, steps->end - steps->first)) : Json();
}
Json json_of(const EpochLimit& limit) {
  return limit.batches > 0 ? Json(limit.batches) : Json(limit.share);
}
Json json_of(const FaultInjection& injection) {
  const auto fault = static_cast<size_t>(injection.fault);
  return fault == 0 ? "none" : fault_words[fault - 1];
}

// --- reading ---

[[noreturn]] void refuse_json(const std::string& expected, const Json& got) {
  raise<ConfigError>("expected {}, got {}", expected, printable(got.dump()));
}

template <class E>
requires std::is_enum_v<E>
void read_json(const Json& json, E& value, const Bounds&) {
  std::vector<std::string> names;
  for (const E one : known<E>) {
    if (json_of(one) == json) return void(value = one);
    names.push_back(json_of(one).template get<std::string>());
  }
  refuse_json("one of " + join(names, ", "), json);
}
void read_json(const Json& json, models::Family& family, const Bounds&) {
  for (const models::Family one : models::all_families)
    if (json_of(one) == json) return void(family = one);
  refuse_json(models::list_families(&models::FamilyRow::name), json);
}
void read_json(const Json& json, zero::ScheduleKind& kind, const Bounds&) {
  kind = zero::schedule_kind(json.get<std::string>());
}
void read_json(const Json& json, zero::DecayStyle& style, const Bounds&) {
  style = zero::decay_style(json.get<std::string>());
}
void read_json(const Json& json, std::vector<zero::ParameterGroup>& groups, const Bounds&) {
  if (!json.is_string()) refuse_json("a text", json);
  groups = zero::parameter_groups(json.get<std::string>());
}
void read_json(const Json& json, bool& value, const Bounds&) {
  if (!json.is_boolean()) refuse_json("true or false", json);
  value = json.get<bool>();
}
// A zero byte would end a path too early when the file is opened.
void read_json(const Json& json, std::string& text, const Bounds&) {
  if (!json.is_string()) refuse_json("a text", json);
  text = json.get<std::string>();
  if (text.find('\0') != std::string::npos) refuse_json("a text without zero bytes", json);
}
// The conversions of nlohmann::json are not used: they wrap or round a number that does not fit.
template <std::integral Integer>
void read_json(const Json& json, Integer& value, const Bounds& limits) {
  const Between& bounds = std::get<Between>(limits);
  const bool fits = json.is_number_integer() &&
                    !(json.is_number_unsigned() &&
                      json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits || json.get<int64_t>() < bounds.minimum || json.get<int64_t>() > bounds.maximum)
    refuse_json(fmt::format("a whole number from {} to {}", bounds.minimum, bounds.maximum), json);
  value = static_cast<Integer>(json.get<int64_t>());
}
void read_json(const Json& json, std::optional<int32_t>& token, const Bounds& bounds) {
  token.reset();
  if (!json.is_null()) read_json(json, token.emplace(), bounds);
}
template <std::floating_point Real>
void read_json(const Json& json, Real& value, const Bounds& bounds) {
  if (std::holds_alternative<AnyNumber>(bounds)) {
    constexpr Real infinity = std::numeric_limits<Real>::infinity();
    for (const Real other : {infinity, -infinity, std::numeric_limits<Real>::quiet_NaN()})
      if (json_of(other) == json) return void(value = other);
    if (!json.is_number()) refuse_json("a number", json);
    return void(value = json.get<Real>());
  }
  const Range& range = std::get<Range>(bounds);
  const double number = json.is_number() ? json.get<double>() : NAN;
  const bool above = range.open_below ? number > range.minimum : number >= range.minimum;
  const bool below = range.open_above ? number < range.maximum : number <= range.maximum;
  value = static_cast<Real>(number);  // a float may overflow within the range
  if (!above || !below || !std::isfinite(value)) refuse_json(range.words, json);
}
template <class T>
requires std::is_arithmetic_v<T>
void read_json(const Json& json, std::vector<T>& numbers, const Bounds& bounds) {
  if (!json.is_array())
    refuse_json(std::is_integral_v<T> ? "a list of tokens" : "a list of numbers", json);
  numbers.clear();
  for (const Json& number : json) read_json(number, numbers.emplace_back(), bounds);
}
void read_json(const Json& json, std::array<double, 3>& values, const Bounds& bounds) {
  if (!json.is_array() || json.size() != values.size())
    refuse_json(std::get<Range>(bounds).words, json);
  for (size_t i = 0; i < values.size(); ++i) read_json(json[i], values[i], bounds);
}

// --- flags ---

Flag choice_of(const FlagRow& row, size_t now, const std::function<void(size_t)>& choose) {
  const std::string shown = row.shown                  ? row.shown
                            : now < row.choices.size() ? row.choices[now]
                                                       : "";
  return {row.names, join(row.choices, "|"),
          shown.empty() ? row.help : fmt::format("{} [{}]", row.help, shown),
          [choose, choices = row.choices](const std::string& name, const std::string& value) {
            // DeepSpeed's name of the host is cpu.
            const bool is_host = value == "cpu" && choices.back() == "nvme";
            choose(parse_choice(name, is_host ? "host" : value, choices));
          }};
}

template <class T>
Flag flag_for(const FlagRow& row, T& target) {
  if constexpr (std::is_same_v<T, int64_t>)
    if (row.value == "SIZE") return size_flag(row.names, target, row.help);
  if constexpr (std::is_same_v<T, bool>) {
    return switch_flag(row.names, target, row.help);
  } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, std::optional<int64_t>>) {
    return integer_flag(row.names, target, row.help, {row.minimum, row.shown});
  } else if constexpr (std::is_same_v<T, int>) {
    const auto now = static_cast<size_t>(target);
    if (!row.choices.empty())
      return choice_of(row, now, [&target](size_t choice) { target = static_cast<int>(choice); });
    return {row.names, "N", fmt::format("{} [{}]", row.help, target),
            [&target, &row](const std::string& name, const std::string& value) {
              target = static_cast<int>(parse_integer(name, value, row.minimum, row.maximum));
            }};
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return seed_flag(target, row.help);
  } else if constexpr (std::is_floating_point_v<T>) {
    return number_flag(row.names, target, row.range, row.help, row.shown);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return row.use == PathUse::none ? text_flag(row.names, row.value, target, row.help)
                                    : path_flag(row.names, row.value, target, row.use, row.help);
  } else if constexpr (std::is_same_v<T, std::vector<zero::ParameterGroup>>) {
    return {row.names, row.value, row.help,
            [&target](const std::string& name, const std::string& value) {
              target = zero::parameter_groups(value, name);
            }};
  } else if constexpr (std::is_enum_v<T>) {
    const auto values = known<T>;
    const auto found = std::ranges::find(values, target);
    const auto now = values.size() > 0 ? static_cast<size_t>(found - values.begin())
                                       : static_cast<size_t>(target);
    return choice_of(row, now, [&target, values](size_t choice) {
      target = values.size() > 0 ? values.begin()[choice] : static_cast<T>(choice);
    });
  } else {
    return {row.names, row.value, row.help};
  }
}

template <class T>
void read_any(const Json& json, void* value, const Bounds& bounds) {
  if constexpr (requires(T & typed) { read_json(json, typed, bounds); })
    read_json(json, *static_cast<T*>(value), bounds);
}

}  // namespace

template <class T>
[[gnu::noinline]] const Codec& codec_of() {
  static const Codec codec = {
      .bytes = sizeof(T),
      .write = [](const void* value) { return Json(json_of(*static_cast<const T*>(value))); },
      .read = read_any<T>,
      .copy = [](const void* from,
                 void* to) { *static_cast<T*>(to) = *static_cast<const T*>(from); },
      .flag = [](const FlagRow& row,
                 void* target) { return flag_for(row, *static_cast<T*>(target)); }};
  return codec;
}

namespace {

template <class... Types>
std::vector<const Codec*> codecs_of() {
  return {&codec_of<Types>()...};
}

}  // namespace

std::vector<const Codec*> all_codecs() {
  return codecs_of<bool, int, int64_t, uint64_t, float, double, std::string, std::array<double, 3>,
                   std::optional<int32_t>, std::optional<int64_t>, std::vector<int32_t>,
                   std::vector<double>, std::vector<zero::ParameterGroup>, DType, Space, LossMean,
                   Bits, models::Order, models::Family, models::Position, nn::NormKind, nn::MlpKind,
                   RopeScaling, OptimizerRule, zero::MatrixRate, zero::ScheduleKind,
                   zero::WarmupType, zero::DecayStyle, zero::DeepSpeedVersion, PipelineSchedule,
                   Device::Type, EpochLimit, std::optional<StepRange>, FaultInjection,
                   TrainOptions::Progress>();
}

}  // namespace zg::tools
