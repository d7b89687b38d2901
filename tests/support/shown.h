#pragma once

// How failures of tests show values. Every source of a test includes this first (CMake's -include):
// text instead of the address of a char*, floats with the digits that tell them apart, tensors'
// types by name, and ranges, pairs, optionals and enums element by element. A type that it cannot
// show does not compile: give it an operator<<, a str(), or name_of() for an enum.
#include <string>

namespace doctest {
class String;
}

namespace zg::testing {

template <class T>
doctest::String shown(const T& value);

}  // namespace zg::testing

#define DOCTEST_STRINGIFY(...) ::zg::testing::shown(__VA_ARGS__)
#include <doctest/doctest.h>

#include <charconv>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace zg::testing {

template <class T>
concept has_name = std::is_enum_v<T> && requires(T value) {
  name_of(value);
};

template <class T>
concept is_text = std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view> ||
    std::is_convertible_v<const T&, const char*>;

template <class T>
concept is_doctest = std::is_same_v<T, doctest::String> || std::is_same_v<T, doctest::Approx> ||
    std::is_same_v<T, doctest::Contains> || std::is_same_v<T, doctest::IsNaN<float>> ||
    std::is_same_v<T, doctest::IsNaN<double>>;

template <class T>
concept is_range = requires(const T& value) {
  value.begin();
  value.end();
  value.size();
};

template <class T>
concept is_tuple = requires {
  std::tuple_size<T>::value;
};

template <class T>
std::string text_of_value(const T& value);

/// Stands for any member of a struct.
struct AnyMember {
  template <class T>
  operator T() const;  // NOLINT: implicit, and never called
};

/// How many members a plain struct has.
template <class T, class... Members>
constexpr size_t count_of_members() {
  if constexpr (requires { T{Members()..., AnyMember()}; })
    return count_of_members<T, Members..., AnyMember>();
  else
    return sizeof...(Members);
}

/// f(members...) of a plain struct of up to eight.
template <class T, class F>
auto with_members(const T& value, const F& f) {
  constexpr size_t count = count_of_members<T>();
  static_assert(count >= 1 && count <= 8, "a struct of this size needs an operator<< or a str()");
  if constexpr (count == 1) {
    const auto& [a] = value;
    return f(a);
  } else if constexpr (count == 2) {
    const auto& [a, b] = value;
    return f(a, b);
  } else if constexpr (count == 3) {
    const auto& [a, b, c] = value;
    return f(a, b, c);
  } else if constexpr (count == 4) {
    const auto& [a, b, c, d] = value;
    return f(a, b, c, d);
  } else if constexpr (count == 5) {
    const auto& [a, b, c, d, e] = value;
    return f(a, b, c, d, e);
  } else if constexpr (count == 6) {
    const auto& [a, b, c, d, e, g] = value;
    return f(a, b, c, d, e, g);
  } else if constexpr (count == 7) {
    const auto& [a, b, c, d, e, g, h] = value;
    return f(a, b, c, d, e, g, h);
  } else {
    const auto& [a, b, c, d, e, g, h, i] = value;
    return f(a, b, c, d, e, g, h, i);
  }
}

template <class Iterator>
std::string text_of_range(Iterator begin, Iterator end) {
  constexpr int most = 64;
  std::string text = "[";
  int count = 0;
  for (; begin != end; ++begin)
    if (++count <= most) text += (count > 1 ? ", " : "") + text_of_value(*begin);
  if (count > most) text += ", ... " + std::to_string(count) + " in all";
  return text + "]";
}

/// The fewest digits that no other number of the type has.
template <class T>
std::string text_of_number(T value) {
  char text[64];
  const auto end = std::to_chars(std::begin(text), std::end(text), value).ptr;
  return std::string(text, end);
}

template <class... Parts>
std::string text_of_parts(const Parts&... parts) {
  std::string text;
  ((text += (text.empty() ? "(" : ", ") + text_of_value(parts)), ...);
  return text + ")";
}

template <class T>
std::string text_of_value(const T& value) {
  using U = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<U, bool> || std::is_same_v<U, std::vector<bool>::reference>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_null_pointer_v<U>) {
    return "null";
  } else if constexpr (is_text<U>) {
    if constexpr (std::is_pointer_v<U>)
      if (!value) return "null";
    return std::string(value);
  } else if constexpr (std::is_same_v<U, char>) {
    return std::string(1, value);
  } else if constexpr (std::is_integral_v<U>) {
    return std::to_string(value);
  } else if constexpr (std::is_floating_point_v<U>) {
    return text_of_number(value);
  } else if constexpr (std::is_array_v<U>) {
    return text_of_range(std::begin(value), std::end(value));
  } else if constexpr (has_name<U>) {
    return name_of(value);
  } else if constexpr (std::is_enum_v<U>) {
    return std::to_string(static_cast<std::underlying_type_t<U>>(value));
  } else if constexpr (requires { std::string(value.str()); }) {
    return value.str();
  } else if constexpr (requires(std::ostream & out) { out << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else if constexpr (is_range<U>) {
    return text_of_range(value.begin(), value.end());
  } else if constexpr (is_tuple<U>) {
    return std::apply([](const auto&... parts) { return text_of_parts(parts...); }, value);
  } else if constexpr (requires { value.has_value(), *value; }) {
    return value.has_value() ? text_of_value(*value) : "nothing";
  } else if constexpr (requires { static_cast<float>(value); }) {  // bf16, f16
    return text_of_number(static_cast<float>(value));
  } else if constexpr (requires { value.time_since_epoch().count(); }) {
    return std::to_string(value.time_since_epoch().count());
  } else if constexpr (requires { value.dtype(), value.shape(), static_cast<bool>(value); }) {
    return value ? text_of_value(value.dtype()) + " " + text_of_value(value.shape()) : "absent";
  } else if constexpr (requires { std::string(value.name()); }) {
    return value.name();
  } else if constexpr (requires { static_cast<bool>(value); }) {
    return static_cast<bool>(value) ? "true" : "false";
  } else if constexpr (std::is_aggregate_v<U>) {
    return with_members(value, [](const auto&... parts) { return text_of_parts(parts...); });
  } else {
    static_assert(sizeof(U) == 0,
                  "a failing test could not show this type; see tests/support/shown.h for how to");
  }
}

template <class T>
doctest::String shown(const T& value) {
  if constexpr (is_doctest<T>)
    return doctest::toString(value);
  else
    return text_of_value(value).c_str();
}

}  // namespace zg::testing
