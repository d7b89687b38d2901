#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "zerograd/runtime/tensor.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/visit_type.h"

// Tensors as text, in the layout of numpy's str(): the same digits, columns, line breaks and
// summary.
namespace zg {
namespace {

constexpr int64_t threshold = 1000;  // elements; larger tensors are summarised
constexpr int64_t edge_items = 3;    // at both ends of each axis of a summary
constexpr size_t line_width = 75;
constexpr int precision = 8;  // digits behind the point

/// The rows along an axis that are shown.
std::vector<int64_t> shown_rows(const Shape& shape, int axis) {
  std::vector<int64_t> rows;
  const bool summary = shape.numel() > threshold && shape[axis] > 2 * edge_items;
  for (int64_t i = 0; i < shape[axis]; ++i)
    if (!summary || i < edge_items || i >= shape[axis] - edge_items) rows.push_back(i);
  return rows;
}

/// Flat indices of the elements that are shown, in order.
void collect(const Shape& shape, int axis, int64_t at, std::vector<int64_t>& indices) {
  if (axis == shape.rank()) return indices.push_back(at);
  for (const int64_t row : shown_rows(shape, axis))
    collect(shape, axis + 1, at * shape[axis] + row, indices);
}

template <class T>
std::vector<T> read(const Tensor& tensor, const std::vector<int64_t>& indices) {
  std::vector<T> values;
  for (size_t i = 0, end = 0; i < indices.size(); i = end) {  // runs of neighbours
    int64_t count = 0;
    for (; end < indices.size() && indices[end] == indices[i] + count; ++end) ++count;
    const Tensor part = tensor.flat(indices[i], count);
    const std::vector<T> run = part.to_host<T>();
    values.insert(values.end(), run.begin(), run.end());
  }
  return values;
}

/// The fewest digits behind the point of d.ddde+dd that give the value again in its type.
template <class T>
int digits_of(T value) {
  for (int digits = 0; digits < 16; ++digits) {
    const double parsed =
        std::strtod(fmt::format("{:.{}e}", static_cast<double>(value), digits).c_str(), nullptr);
    if constexpr (std::is_same_v<T, double>) {
      if (parsed == value) return digits;
    } else if (static_cast<float>(T(static_cast<float>(parsed))) == static_cast<float>(value)) {
      return digits;
    }
  }
  return 16;
}

/// The words with spaces before them, all of one width.
std::vector<std::string> aligned(std::vector<std::string> words) {
  size_t width = 0;
  for (const std::string& word : words) width = std::max(width, word.size());
  for (std::string& word : words) word.insert(0, width - word.size(), ' ');
  return words;
}

template <class T>
std::vector<std::string> float_words(const std::vector<T>& values) {
  double largest = 0, smallest = HUGE_VAL;
  int digits = 0;
  for (const T value : values) {
    const double size = std::fabs(static_cast<double>(value));
    if (!std::isfinite(size)) continue;
    digits = std::max(digits, std::min(precision, digits_of(value)));
    if (size == 0) continue;
    largest = std::max(largest, size);
    smallest = std::min(smallest, size);
  }
  const double ratio = std::is_same_v<T, double>
                           ? largest / smallest
                           : static_cast<double>(T(static_cast<float>(largest / smallest)));
  const bool exponents = largest > 0 && (largest >= 1e8 || smallest < 1e-4 || ratio > 1000);
  std::vector<std::string> words;
  size_t tail = 0;  // the longest text behind the point or the e
  const auto tail_of = [&](const std::string& word) {
    return word.size() - std::min(word.find(exponents ? 'e' : '.'), word.size());
  };
  for (const T value : values) {
    const auto exact = std::isnan(static_cast<double>(value)) ? std::nan("")  // without its sign
                                                              : static_cast<double>(value);
    std::string& word = words.emplace_back(fmt::format("{:#.{}e}", exact, digits));
    if (std::isfinite(exact) && !exponents) {
      const int exponent = std::atoi(word.c_str() + word.find('e') + 1);
      word = fmt::format("{:#.{}f}", exact, std::clamp(digits_of(value) - exponent, 0, precision));
      word.erase(word.find_last_not_of('0') + 1);
    }
    tail = std::max(tail, tail_of(word));
  }
  for (size_t i = 0; i < words.size(); ++i) {
    if (!std::isfinite(static_cast<double>(values[i]))) continue;
    const size_t missing = tail - tail_of(words[i]);
    if (exponents)
      words[i].insert(words[i].find('e') + 2, missing, '0');
    else
      words[i].append(missing, ' ');
  }
  return aligned(std::move(words));
}

/// One word for each element, all of one width.
std::vector<std::string> words_of(const Tensor& tensor, const std::vector<int64_t>& indices) {
  return visit_type(tensor.dtype(), [&]<class T>() {
    const std::vector<T> values = read<T>(tensor, indices);
    if constexpr (std::is_integral_v<T>) {
      std::vector<std::string> words;
      for (const T value : values)
        if constexpr (std::is_same_v<T, bool>)
          words.push_back(value ? "True" : "False");
        else
          words.push_back(std::to_string(value));
      return aligned(std::move(words));
    } else {
      return float_words(values);
    }
  });
}

/// The text of one axis, behind `axis` spaces; takes its words from `word` on.
std::string rows_text(const Shape& shape, int axis, const std::string*& word, size_t width) {
  if (axis == shape.rank()) return *word++;
  const std::vector<int64_t> rows = shown_rows(shape, axis);
  const bool innermost = axis + 1 == shape.rank();
  const std::string indent(static_cast<size_t>(axis) + 1, ' ');
  std::string text, line = indent;
  const auto append = [&](const std::string& next) {
    if (line.size() + next.size() > width - 1 && line.size() > indent.size()) {
      text += line.erase(line.find_last_not_of(' ') + 1) + "\n";
      line = indent;
    }
    line += next;
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool gap = i > 0 && rows[i] != rows[i - 1] + 1, last = i + 1 == rows.size();
    if (innermost) {
      if (gap) append("...");
      if (gap) line += ' ';
      append(rows_text(shape, axis + 1, word, width - 1));
      if (!last) line += ' ';
      continue;
    }
    const std::string between(static_cast<size_t>(shape.rank() - axis - 1), '\n');
    if (gap) text += indent + "..." + between;
    text += indent + rows_text(shape, axis + 1, word, width - 1) + (last ? "" : between);
  }
  if (innermost) text += line;
  return "[" + text.substr(std::min(text.size(), indent.size())) + "]";
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor) return out << "absent";
  const Shape& shape = tensor.shape();
  std::vector<int64_t> indices;
  if (shape.numel() > 0) collect(shape, 0, 0, indices);
  // On a meta device, too: a plan counts the copies of its run.
  const std::vector<std::string> words = words_of(tensor, indices);
  const Device& device = tensor.device();
  if (device.type() != Device::Type::meta) {
    const std::string* word = words.data();
    out << (shape.numel() == 0 ? "[]" : rows_text(shape, 0, word, line_width)) << ' ';
  }
  out << name_of(tensor.dtype()) << ' ' << shape.str();
  if (device.type() == Device::Type::meta) return out << " on meta, without values";
  if (device.type() != Device::Type::cpu) out << " on " << device.name();
  return out;
}

}  // namespace zg
