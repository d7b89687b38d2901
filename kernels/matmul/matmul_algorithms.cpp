#include "zerograd/kernels/matmul/matmul_algorithms.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/matmul/matmul_source.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg {
namespace {

using AlgorithmJson = nlohmann::ordered_json;
using ProblemVector = MatmulProblem::Vector;

constexpr const char* algorithms_schema = "zerograd.matmul-algorithms/1";
constexpr int most_candidates = 1000;
constexpr const char* measure_again = "try zerograd bench matmul-algorithms, which measures again";

/// The functions of CUDA; null in a build without it, which has no device of this type.
constexpr struct {
  cuda::MatmulSource (*source)(const Device&);
  void (*set)(int, std::shared_ptr<const MatmulAlgorithms>);
  std::optional<MatmulAlgorithm> (*fastest)(const MatmulProblem&, const Device&,
                                            const MatmulMeasurement&);
} library_calls{ZG_FUNCTION_cuda(matmul_source), ZG_FUNCTION_cuda(set_matmul_algorithms),
                ZG_FUNCTION_cuda(fastest_algorithm)};

cuda::MatmulSource require_cublaslt(const Device& device) {
  if (device.type() != Device::Type::cuda)
    raise<Unsupported>(
        "matmul algorithms: expected a cuda device, because they are for cuBLASLt, got {}; omit "
        "them",
        device);
  cuda::MatmulSource source = library_calls.source(device);
  if (!source.is_cublaslt)
    raise<Unsupported>(
        "matmul algorithms: they are for cuBLASLt, but {} multiplies by its {}; omit them, or use "
        "cuBLASLt",
        device, source.library);
  return source;
}

/// The integers of a problem, with their keys. Problem: const or not.
template <class Problem, class Visit>
void visit_integers(Problem& problem, const Visit& visit) {
  visit("M", problem.M);
  visit("N", problem.N);
  visit("K", problem.K);
  visit("batch", problem.batch);
  visit("lda", problem.lda);
  visit("ldb", problem.ldb);
  visit("ldc", problem.ldc);
  visit("stride_a", problem.stride_a);
  visit("stride_b", problem.stride_b);
  visit("stride_c", problem.stride_c);
  visit("workspace", problem.workspace);
}

std::string digits_of(const MatmulAlgorithm& algorithm) {
  std::string digits;
  for (const uint64_t word : algorithm.words) digits += fmt::format("{:016x}", word);
  return digits;
}

AlgorithmJson json_of(const MatmulProblem& problem, const MatmulAlgorithm& algorithm) {
  AlgorithmJson json;
  visit_integers(problem, [&](const char* key, int64_t value) { json[key] = value; });
  json["operands"] = name_of(problem.operands);
  json["sums"] = name_of(problem.sums);
  json["transpose_a"] = problem.transpose_a;
  json["transpose_b"] = problem.transpose_b;
  json["vector"] = name_of(problem.vector);
  json["algorithm"] = digits_of(algorithm);
  json["candidate"] = algorithm.candidate;
  json["candidates"] = algorithm.candidates;
  json["seconds"] = algorithm.seconds;
  json["first_seconds"] = algorithm.first_seconds;
  if (algorithm.apart) json["apart"] = true;  // older versions compute with row_sums then
  return json;
}

/// All but the checksum.
AlgorithmJson body_of(const MatmulAlgorithms& all) {
  AlgorithmJson json = {{"schema", algorithms_schema}, {"gpu", all.gpu}, {"library", all.library}};
  json["products"] = AlgorithmJson::array();
  for (const auto& [problem, algorithm] : all.algorithms)
    json["products"].push_back(json_of(problem, algorithm));
  return json;
}

std::string checksum_of(const AlgorithmJson& body) {
  const std::string text = body.dump(-1, ' ', /*ensure_ascii=*/true);
  return zg::checksum(std::as_bytes(std::span(text)));
}

int64_t integer(const JsonNode& node, int64_t most = int64_t{1} << 53) {
  if (!node.value.is_number_unsigned() || node.value.get<uint64_t>() > static_cast<uint64_t>(most))
    node.fail(fmt::format("an integer from 0 to {}", most));
  return node.value.get<int64_t>();
}

double seconds(const JsonNode& node) {
  const double value = node.value.is_number() ? node.value.get<double>() : -1.0;
  if (!(value >= 0.0)) node.fail("a number from 0");
  return value;
}

template <class Value>
Value named(const JsonNode& node, std::initializer_list<Value> values) {
  std::vector<std::string> known;
  for (const Value value : values) {
    if (node.text() == name_of(value)) return value;
    known.emplace_back(name_of(value));
  }
  node.fail(join(known, ", "));
}

std::array<uint64_t, 8> words_of(const JsonNode& node) {
  const std::string& digits = node.text();
  constexpr size_t each = 16;
  std::array<uint64_t, 8> words{};
  if (digits.size() != each * words.size() ||
      digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    node.fail("128 hexadecimal digits");
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = std::stoull(digits.substr(each * i, each), nullptr, 16);
  return words;
}

MatmulProblem problem_from(const JsonNode& node) {
  const std::initializer_list<DType> dtypes = {DType::f32, DType::bf16, DType::f16};
  MatmulProblem problem{
      .operands = named(node.at("operands"), dtypes),
      .sums = named(node.at("sums"), dtypes),
      .transpose_a = node.at("transpose_a").flag(),
      .transpose_b = node.at("transpose_b").flag(),
      .vector = named(node.at("vector"),
                      {ProblemVector::none, ProblemVector::bias, ProblemVector::row_sums})};
  visit_integers(problem, [&](const char* key, int64_t& value) { value = integer(node.at(key)); });
  return problem;
}

/// Seconds of a launch by the host's clock, over about 2 ms of launches.
double seconds_of_launch(const std::function<void()>& launch, Stream& stream) {
  using Clock = std::chrono::steady_clock;
  constexpr double enough = 2e-3;
  constexpr double most = 200.0;
  const auto measured = [&](int launches) {
    stream.synchronize();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < launches; ++i) launch();
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / launches;
  };
  launch();  // loads the kernel
  const double once = measured(1);
  if (once >= enough) return once;
  return measured(static_cast<int>(std::min(most, enough / std::max(once, 1e-9)) + 1.0));
}

/// Seconds of reduce for the row_sums of a product.
double seconds_of_sums(const MatmulProblem& problem, const Device& device,
                       const MatmulMeasurement& how) {
  const Matmul product{.a = cuda::random_elements(problem.K * problem.M, problem.operands, device),
                       .M = problem.M,
                       .N = problem.N,
                       .K = problem.K,
                       .row_sums = Tensor::empty({problem.M}, problem.sums, device)};
  std::vector<double> seconds;
  for (int round = 0; round < how.rounds; ++round)
    seconds.push_back(how.time(problem, /*candidate=*/-1,
                               [&] { kernels::reduce(reduce_rows(product), device.compute()); }));
  std::nth_element(seconds.begin(), seconds.begin() + how.rounds / 2, seconds.end());
  return seconds[static_cast<size_t>(how.rounds / 2)];
}

thread_local PlannedProducts* planned_products = nullptr;

}  // namespace

namespace cuda {

void refuse_algorithm(const MatmulAlgorithms& algorithms, const MatmulProblem& problem, int status,
                      int64_t workspace) {
  const std::string why = status != 0
                              ? fmt::format("cuBLASLt refuses it with status {}", status)
                              : fmt::format("expected a workspace of at most {} bytes, got {}",
                                            problem.workspace, workspace);
  raise<FileError>("{}: the algorithm of {}: {}; {}", algorithms.path, sizes(problem), why,
                   measure_again);
}

void print_refusal(const MatmulProblem& problem, const std::exception& error) {
  print_line(stderr,
             "matmul: {}: {}; cuBLASLt is not asked again, and kernels of zerograd compute it, "
             "which takes about twice as long; try another version of the library",
             sizes(problem), error.what());
}

Tensor random_elements(int64_t count, DType dtype, const Device& device) {
  constexpr int64_t most = int64_t{1} << 16;
  Tensor tensor = Tensor::empty({count}, dtype, device);
  const auto fill = [&]<class T>(T) {
    std::vector<T> values(static_cast<size_t>(std::min(most, count)));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] =
          T(2.0f * uniform(Philox::block({static_cast<uint32_t>(i), 0, 0, 0}, 1)[0]) - 1.0f);
    for (int64_t done = 0; done < count; done += most)
      device.compute().copy(tensor.raw() + done * int64_t{sizeof(T)}, values.data(),
                            static_cast<size_t>(std::min(most, count - done)) * sizeof(T));
    device.compute().synchronize();
  };
  if (dtype == DType::bf16)
    fill(bf16());
  else if (dtype == DType::f16)
    fill(f16());
  else
    fill(float());
  return tensor;
}

}  // namespace cuda

const char* name_of(MatmulProblem::Vector vector) {
  return vector == ProblemVector::bias       ? "bias"
         : vector == ProblemVector::row_sums ? "row_sums"
                                             : "none";
}

std::string sizes(const MatmulProblem& p) {
  const auto apart = [](const char* name, int64_t distance, int64_t packed) {
    return distance == packed ? std::string() : fmt::format(", {} {}", name, distance);
  };
  return fmt::format(
      "{}M {}, N {}, K {}, {} to {}{}{}{}{}{}{}",
      p.batch > 1 ? fmt::format("batch {}, ", p.batch) : "", p.M, p.N, p.K, p.operands, p.sums,
      p.transpose_a ? ", a transposed" : "", p.transpose_b ? ", b transposed" : "",
      apart("lda", p.lda, p.transpose_a ? p.M : p.K),
      apart("ldb", p.ldb, p.transpose_b ? p.K : p.N), apart("ldc", p.ldc, p.N),
      p.vector == ProblemVector::none ? std::string() : fmt::format(", {}", p.vector));
}

std::string MatmulAlgorithms::json() const {
  AlgorithmJson file = body_of(*this);
  file["checksum"] = checksum_of(file);
  return file.dump(1) + "\n";
}

std::string MatmulAlgorithms::checksum() const { return checksum_of(body_of(*this)); }

MatmulAlgorithms MatmulAlgorithms::parse(const std::string& text, const std::string& path) {
  const std::string advice = fmt::format("; {}", measure_again);
  // In the order of the file, as the checksum is.
  AlgorithmJson body = parse_json_object<AlgorithmJson>(text, path, {.advice = advice});
  const nlohmann::json file = body;
  const JsonNode root{.value = file, .name = path + ": ", .advice = advice};
  if (root.at("schema").text() != algorithms_schema) root.at("schema").fail(algorithms_schema);
  MatmulAlgorithms all{
      .gpu = root.at("gpu").text(), .library = root.at("library").text(), .path = path};
  const std::string& written = root.at("checksum").text();
  body.erase("checksum");
  if (const std::string found = checksum_of(body); found != written)
    raise<FileError>(
        "{}: checksum: expected {}, that of the rest of the file, got {}: the file is damaged, or "
        "was edited; {}",
        path, found, printable(written), measure_again);
  for (const JsonNode& entry : root.at("products").members()) {
    MatmulAlgorithm algorithm{
        .words = words_of(entry.at("algorithm")),
        .candidate = static_cast<int>(integer(entry.at("candidate"), most_candidates)),
        .candidates = static_cast<int>(integer(entry.at("candidates"), most_candidates)),
        .seconds = seconds(entry.at("seconds")),
        .first_seconds = seconds(entry.at("first_seconds")),
        .apart = entry.at("apart").flag(/*absent=*/false)};
    const MatmulProblem problem = problem_from(entry);
    if (algorithm.apart && problem.vector != ProblemVector::row_sums)
      entry.at("apart").fail("false, because only row_sums can be apart");
    if (!all.algorithms.emplace(problem, algorithm).second)
      raise<FileError>("{}.{}: expected one algorithm, got a second; {}", entry.name,
                       sizes(problem), measure_again);
  }
  return all;
}

MatmulAlgorithms MatmulAlgorithms::read(const std::string& path) {
  constexpr int64_t most = 64 << 20;
  return parse(read_text(path, most), path);
}

void MatmulAlgorithms::write(const std::string& path) const { replace_text(path, json()); }

void use_matmul_algorithms(std::shared_ptr<const MatmulAlgorithms> algorithms,
                           const Device& device) {
  const cuda::MatmulSource source = require_cublaslt(device);
  if (algorithms) {
    const auto check = [&](const char* key, const std::string& got, const std::string& expected) {
      if (got != expected)
        raise<FileError>(
            "{}: {}: expected '{}', which {} has, got '{}': algorithms are those of one GPU and "
            "one version of cuBLASLt; {}",
            algorithms->path, key, expected, device, printable(got, 100), measure_again);
    };
    check("gpu", algorithms->gpu, source.gpu);
    check("library", algorithms->library, source.library);
  }
  library_calls.set(device.index(), std::move(algorithms));
}

PlannedProducts::PlannedProducts() : outer_(std::exchange(planned_products, this)) {}
PlannedProducts::~PlannedProducts() { planned_products = outer_; }
PlannedProducts* PlannedProducts::current() { return planned_products; }

MatmulAlgorithms measure_matmul_algorithms(const std::set<MatmulProblem>& problems,
                                           const Device& device,
                                           const MatmulMeasurement& measurement) {
  cuda::MatmulSource source = require_cublaslt(device);
  if (measurement.candidates < 1 || measurement.candidates > most_candidates ||
      measurement.rounds < 1)
    raise<ConfigError>(
        "measure_matmul_algorithms: expected 1 to {} candidates and 1 or more rounds, got {} and "
        "{}",
        most_candidates, measurement.candidates, measurement.rounds);
  MatmulMeasurement how = measurement;
  if (!how.time)
    how.time = [&device](const MatmulProblem&, int, const std::function<void()>& launch) {
      return seconds_of_launch(launch, device.compute());
    };
  MatmulAlgorithms all{.gpu = std::move(source.gpu), .library = std::move(source.library)};
  /// The entry of a problem; null: the library refuses it.
  const auto measure = [&](const MatmulProblem& problem) -> MatmulAlgorithm* {
    auto entry = all.algorithms.find(problem);
    if (entry == all.algorithms.end()) {
      const std::optional<MatmulAlgorithm> fastest = library_calls.fastest(problem, device, how);
      if (!fastest) return nullptr;
      entry = all.algorithms.emplace(problem, *fastest).first;
    }
    return &entry->second;
  };
  for (const MatmulProblem& problem : problems) {
    MatmulAlgorithm* const with_sums = measure(problem);
    if (problem.vector != ProblemVector::row_sums) continue;
    MatmulProblem product = problem;
    product.vector = ProblemVector::none;
    const MatmulAlgorithm* const without = measure(product);
    if (!with_sums || !without) continue;
    const double apart = without->seconds + seconds_of_sums(problem, device, how);
    with_sums->apart = apart < with_sums->seconds;
    with_sums->seconds = std::min(apart, with_sums->seconds);
  }
  return all;
}

}  // namespace zg
