// Compares what the instructions of the kernels give on a GPU with what the emulator gives, bit by
// bit. `twins_emulated --write FILE` writes random inputs and the emulator's results;
// `twins_gpu --check FILE` runs the same kernels on these inputs, so nothing is emulated there.
#include "tests/cuda/twins.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>

#include "zerograd/kernels/cuda/mma.cuh"

namespace zg::twins {
namespace {

constexpr int warp = 32, rounds = 64;

// --- instructions of sm_80 ---

/// Each lane has registers a[4], b[2], c[4] as input and d[4] as output.
template <class T>
__global__ void multiply(const uint32_t* operands, const float* c, float* d) {
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t a[4];
  float sums[4];
  for (int i = 0; i < 4; ++i) a[i] = operands[lane * 6 + i];
  for (int i = 0; i < 4; ++i) sums[i] = c[lane * 4 + i];
  cuda::multiply_fragments<T>(sums, a, operands[lane * 6 + 4], operands[lane * 6 + 5]);
  for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
}

template <bool transposed>
__global__ void load(const uint32_t* from, const uint32_t* rows, uint32_t* to) {
  const cuda::SharedAddress shared = cuda::dynamic_address();
  const auto lane = static_cast<int>(threadIdx.x);
  cuda::copy_async(shared + lane * 16, from + lane * 4, 16);
  cuda::commit_copies();
  cuda::wait_for_copies<0>();
  __syncthreads();
  uint32_t got[4];
  cuda::load_matrices<transposed>(got, shared + rows[lane] * 16);
  for (int i = 0; i < 4; ++i) to[lane * 4 + i] = got[i];
}

/// Two groups of asynchronous copies of 16, 8 and 0 bytes; the rest is zero-filled.
__global__ void copies(const uint32_t* from, uint32_t* to) {
  auto* const shared = cuda::dynamic_shared<uint32_t>();
  const auto lane = static_cast<int>(threadIdx.x);
  for (int group = 0; group < 2; ++group) {
    const int place = (group * warp + lane) * 4;
    cuda::copy_async(cuda::dynamic_address() + place * 4, from + place, (group + lane) % 3 * 8);
    cuda::commit_copies();
  }
  cuda::wait_for_copies<0>();
  __syncthreads();
  for (int i = lane; i < 2 * warp * 4; i += warp) to[i] = shared[i];
}

template <class T>
__global__ void packs(const float* from, uint32_t* to) {
  const auto lane = static_cast<int>(threadIdx.x);
  to[lane] = cuda::pack<T>(from[2 * lane], from[2 * lane + 1]);
}

template <class T>
Twin multiply_twin(const char* name) {
  return {.name = name,
          .rounds = rounds,
          .draw =
              [](std::mt19937& random) {
                Words operands = whole_numbers<T>(random, warp * 6);
                return Inputs{std::move(operands), whole_floats(random, warp * 4)};
              },
          .run =
              [](const Runner& runner, const Inputs& in) {
                auto* const d = runner.room<float>(warp * 4);
                runner.run(multiply<T>, warp, 0, runner.bring<const uint32_t>(in[0]),
                           runner.bring<const float>(in[1]), d);
                return runner.fetch(d, warp * 4);
              }};
}

template <bool transposed>
Twin load_twin(const char* name) {
  return {.name = name,
          .rounds = rounds,
          .draw =
              [](std::mt19937& random) {
                Words matrices = random_words(random, warp * 4), rows = random_words(random, warp);
                for (uint32_t& row : rows) row %= warp;
                return Inputs{std::move(matrices), std::move(rows)};
              },
          .run =
              [](const Runner& runner, const Inputs& in) {
                auto* const to = runner.room<uint32_t>(warp * 4);
                runner.run(load<transposed>, warp, warp * 16, runner.bring<const uint32_t>(in[0]),
                           runner.bring<const uint32_t>(in[1]), to);
                return runner.fetch(to, warp * 4);
              }};
}

Twin copy_twin() {
  return {.name = "cp.async",
          .rounds = rounds,
          .draw = [](std::mt19937& random) { return Inputs{random_words(random, 2 * warp * 4)}; },
          .run =
              [](const Runner& runner, const Inputs& in) {
                auto* const to = runner.room<uint32_t>(2 * warp * 4);
                runner.run(copies, warp, 2 * warp * 16, runner.bring<const uint32_t>(in[0]), to);
                return runner.fetch(to, 2 * warp * 4);
              }};
}

template <class T>
Twin pack_twin(const char* name) {
  return {.name = name,
          .rounds = rounds,
          .draw =
              [](std::mt19937& random) {
                // The values have few low bits, so halfway cases and subnormals occur.
                Words values = random_words(random, 2 * warp);
                for (uint32_t& value : values) {
                  const uint32_t exponent = 127 - 30 + value % 40;
                  value = (value & 0x80000000u) | exponent << 23 |
                          (static_cast<uint32_t>(random()) & 0x7ff000u);
                }
                return Inputs{std::move(values)};
              },
          .run =
              [](const Runner& runner, const Inputs& in) {
                auto* const to = runner.room<uint32_t>(warp);
                runner.run(packs<T>, warp, 0, runner.bring<const float>(in[0]), to);
                return runner.fetch(to, warp);
              }};
}

std::vector<Twin> all_twins() {
  std::vector<Twin> twins = {multiply_twin<bf16>("mma.m16n8k16.bf16"),
                             multiply_twin<f16>("mma.m16n8k16.f16"),
                             load_twin<false>("ldmatrix"),
                             load_twin<true>("ldmatrix.trans"),
                             copy_twin(),
                             pack_twin<bf16>("cvt.bf16x2"),
                             pack_twin<f16>("cvt.f16x2")};
  for (Twin& twin : hopper_twins()) twins.push_back(std::move(twin));
  return twins;
}

// --- the file of cases ---

constexpr char first_line[] = "zerograd twins 1\n";

struct Case {
  std::string name;
  Inputs inputs;
  Words expected;
};

void write_words(std::ostream& file, const Words& words) {
  const auto count = static_cast<uint32_t>(words.size());
  file.write(reinterpret_cast<const char*>(&count), sizeof count);
  file.write(reinterpret_cast<const char*>(words.data()),
             static_cast<std::streamsize>(words.size() * sizeof(uint32_t)));
}

Words read_words(std::istream& file) {
  uint32_t count = 0;
  file.read(reinterpret_cast<char*>(&count), sizeof count);
  if (!file || count > 1u << 24) throw std::runtime_error("the file of twins is damaged");
  Words words(count);
  file.read(reinterpret_cast<char*>(words.data()),
            static_cast<std::streamsize>(words.size() * sizeof(uint32_t)));
  if (!file) throw std::runtime_error("the file of twins ends too soon");
  return words;
}

void write_cases(const char* path) {
  std::ofstream file(path, std::ios::binary);
  file << first_line;
  const Runner runner;
  for (const Twin& twin : all_twins())
    for (int round = 0; round < twin.rounds; ++round) {
      std::mt19937 random(static_cast<unsigned>(round));
      const Inputs inputs = twin.draw(random);
      const Words outputs = twin.run(runner, inputs);
      runner.end_case();
      file << twin.name << '\n' << inputs.size() << '\n';
      for (const Words& words : inputs) write_words(file, words);
      write_words(file, outputs);
    }
  if (!file.flush()) throw std::runtime_error(std::string("cannot write ") + path);
}

std::map<std::string, std::vector<Case>> read_cases(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(sizeof first_line - 1, ' ');
  if (!file.read(start.data(), static_cast<std::streamsize>(start.size())) || start != first_line)
    throw std::runtime_error(std::string(path) + " is not a file of twins");
  std::map<std::string, std::vector<Case>> cases;
  for (std::string name, count; std::getline(file, name);) {
    Case read{.name = name};
    std::getline(file, count);
    for (unsigned long i = std::stoul(count); i > 0; --i) read.inputs.push_back(read_words(file));
    read.expected = read_words(file);
    cases[name].push_back(std::move(read));
  }
  return cases;
}

// --- the comparison ---

/// "word 3 of 128 is 00000001, expected 00000002; 5 words differ"; empty if none differs.
std::string difference(const Words& found, const Words& expected) {
  size_t first = 0, count = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    if (i >= found.size() || found[i] != expected[i])
      if (count++ == 0) first = i;
  if (count == 0) return {};
  char text[160];
  std::snprintf(text, sizeof text, "word %zu of %zu is %08x, expected %08x; %zu words differ",
                first, expected.size(), first < found.size() ? found[first] : 0, expected[first],
                count);
  return text;
}

/// Prints the line of one twin. Returns whether all of its cases have the same bits.
bool check(const Runner& runner, const Twin& twin, const std::vector<Case>& cases) {
  std::printf("%s: ", twin.name.c_str());
  std::fflush(stdout);  // so that the last line names an instruction that never ends
  if (cases.empty()) return std::puts("FAILED: the file has no case of it"), false;
  size_t wrong = 0;
  std::string first;
  for (size_t round = 0; round < cases.size(); ++round) {
    const Words found = twin.run(runner, cases[round].inputs);
    runner.end_case();
    const std::string text = difference(found, cases[round].expected);
    if (!text.empty() && wrong++ == 0) first = "case " + std::to_string(round) + ": " + text;
  }
  if (wrong == 0) return std::printf("%zu cases, the same bits\n", cases.size()), true;
  std::printf("DIFFERS in %zu of %zu cases; %s\n", wrong, cases.size(), first.c_str());
  return false;
}

constexpr int unfinished = 3;  // status: the twins after one that failed were not compared

/// Compares the twins that come after the one named `after`; all if it is empty.
int check_all(const char* path, std::string after) {
  auto cases = read_cases(path);
  const Runner runner;
  int major = 0;
  cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, runner.device()),
              "twins");
  bool equal = true;
  for (const Twin& twin : all_twins()) {
    if (!after.empty()) {
      if (twin.name == after) after.clear();
      continue;
    }
    if (twin.needs_sm_90 && major != 9) {
      std::printf("%s: SKIPPED: it needs a device of sm_90a\n", twin.name.c_str());
      continue;
    }
    try {
      equal = check(runner, twin, cases[twin.name]) && equal;
    } catch (const std::exception& error) {
      // After most errors of a kernel the context is unusable. Another process can go on.
      return std::printf("FAILED: %s\n", error.what()), unfinished;
    }
  }
  return equal ? 0 : 1;
}

}  // namespace
}  // namespace zg::twins

int main(int count, char** arguments) try {
  using namespace zg;
  const std::string what = count >= 3 ? arguments[1] : "";
  if (!(what == "--write" && count == 3) && !(what == "--check" && count <= 4))
    return std::fputs("usage: twins --write FILE | --check FILE [AFTER]\n", stderr), 2;
  if (const std::string absence = Device::absence(Device::Type::cuda); !absence.empty())
    return std::fprintf(stderr, "twins: %s\n", absence.c_str()), 6;
  if (what == "--check") return twins::check_all(arguments[2], count == 4 ? arguments[3] : "");
  twins::write_cases(arguments[2]);
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "twins: %s\n", error.what()), 1;
}
