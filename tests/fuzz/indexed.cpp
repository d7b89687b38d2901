#include <algorithm>

#include "tests/fuzz/bounded.h"
#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/runtime/error.h"

// Megatron's datasets: the input is used as a whole index, and as arrays and tokens after a valid
// header, in which the first bytes of the input change one field.
namespace zg::testing {
namespace {

const MemoryFile index_file("index"), data_file("data");

void read(const std::string& index, const std::string& data) {
  index_file.set(index);
  data_file.set(data);
  try {
    const models::IndexedDataset dataset({index_file.path(), data_file.path()});
    const int64_t count = dataset.sequences();
    if (count > static_cast<int64_t>(index.size() / 12)) report("sequences", "more than bytes");
    if (count == 0) return;
    const models::DocumentStream in_order(dataset, 0, count);
    const models::DocumentStream shuffled(dataset, 0, count,
                                          models::Permutation(1, "fuzz", 0, count));
    if (in_order.size() != shuffled.size()) report("tokens", "an order has others");
    // Sequences may share bytes, so that there are many more tokens than bytes.
    std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(in_order.size(), 4096)));
    for (const models::DocumentStream* stream : {&in_order, &shuffled})
      for (int64_t begin : {int64_t{0}, stream->size() - static_cast<int64_t>(ids.size())}) {
        stream->read(begin, ids);
        if (!ids.empty() && *std::min_element(ids.begin(), ids.end()) < 0) report("ids", "below 0");
      }
  } catch (const FileError& error) {
    const std::string message = error.what();
    if (!message.starts_with(index_file.path() + ": ") &&
        !message.starts_with(data_file.path() + ": "))
      report("an error without its file", message);
  }
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The input has, in order: the dtype, the numbers of sequences and documents, a position in the
/// header and its new byte, the arrays of the index, the tokens.
void read_behind_header(const std::string& bytes) {
  if (bytes.size() < 5) return;
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const size_t rest = bytes.size() - 5;
  const size_t sequences = std::min<size_t>(at(1) % 16, rest / 12);
  const size_t documents = std::min<size_t>(at(2) % 8, (rest - 12 * sequences) / 8);
  std::string index("MMIDIDX\0\0", 9);
  append(index, uint64_t{1});
  append(index, static_cast<uint8_t>(at(0) % 10));
  append(index, static_cast<uint64_t>(sequences));
  append(index, static_cast<uint64_t>(documents));
  if (at(3) < index.size()) index[at(3)] = bytes[4];
  const size_t arrays = 12 * sequences + 8 * documents;
  read(index + bytes.substr(5, arrays), bytes.substr(5 + arrays));
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  const std::string text(bytes, bytes + size);
  bounded([&] { read(text, text); });
  bounded([&] { read_behind_header(text); });
  return 0;
}
