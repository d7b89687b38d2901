#include "zerograd/zero/audit.h"

#include <link.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "zerograd/runtime/pending.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/audit_ops.h"
#include "zerograd/zero/line_file.h"

namespace zg::zero {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t index_factor = 0x9e3779b97f4a7c15, word_factor = 0xd1b54a32d192ed03;

// The finalizer of splitmix64 (Steele, Lea, Flood 2014), a bijection.
uint64_t scrambled(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// The sum over words of a mixture of key, index and word. Different ranges of one array can be
// summed in any order, on any rank.
template <class Word>
uint64_t sum_of(uint64_t key, int64_t first, std::span<const Word> words) {
  uint64_t sum = 0, place = key + static_cast<uint64_t>(first) * index_factor;
  for (const Word& word : words) {
    sum += scrambled(place + std::bit_cast<uint32_t>(word) * word_factor);
    place += index_factor;
  }
  return sum;
}

std::string hex(uint64_t sum) { return fmt::format("{:016x}", sum); }

// The shortest text that is read as this float or double. JSON has no NaN and no infinities.
template <class Real>
Json number(Real value) {
  const std::string text = std::isnan(value) ? "nan" : fmt::format("{}", value);
  return std::isfinite(value) ? Json(std::stod(text)) : Json(text);
}

// The limbs of a sum of squares that are not 0, from the highest, as INDEX:LIMB in hex. A granule
// adds the same to each limb wherever it is, so they do not depend on the ranks.
std::string limb_text(const std::vector<int64_t>& limbs) {
  std::string text;
  for (size_t i = limbs.size(); i-- > 0;)
    if (limbs[i] != 0) text += fmt::format("{}{}:{:x}", text.empty() ? "" : " ", i, limbs[i]);
  return text;
}

// The variables that this library reads, and that may change bits; libraries that others replace.
Json environment() {
  constexpr size_t most = 1 << 16;
  Json found = Json::object();
  for (char** at = environ; *at; ++at)
    if (const std::string_view variable = *at;
        (variable.starts_with("ZG_") && !variable.starts_with("ZG_NUM_THREADS=")) ||
        variable.starts_with("LD_PRELOAD="))
      found[printable(std::string(variable.substr(0, variable.find('='))), most)] =
          printable(std::string(variable.substr(variable.find('=') + 1)), most);
  return found;
}

}  // namespace

std::map<std::string, std::string> build_ids() {
  using Ids = std::map<std::string, std::string>;
  const auto add = [](dl_phdr_info* object, size_t, void* found) {
    constexpr std::string_view note("\3\0\0\0GNU\0", 8);  // after the number of its bytes
    const std::string path = *object->dlpi_name ? object->dlpi_name : "/proc/self/exe";
    if (path.find('/') == path.npos) return 0;  // the vdso, which is in no file
    std::string& id = (*static_cast<Ids*>(found))[path];
    for (const auto& header : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
      if (header.p_type != PT_NOTE) continue;
      const std::string_view notes(
          reinterpret_cast<const char*>(object->dlpi_addr + header.p_vaddr), header.p_memsz);
      const size_t at = notes.find(note);
      if (at == notes.npos || at < 4) continue;
      for (const char byte : notes.substr(at + note.size(), static_cast<uint8_t>(notes[at - 4])))
        id += fmt::format("{:02x}", static_cast<uint8_t>(byte));
    }
    return 0;
  };
  Ids found, ids;
  dl_iterate_phdr(add, &found);
  for (const auto& [path, id] : found)
    ids[path == "/proc/self/exe" ? "program" : path.substr(path.rfind('/') + 1)] =
        id.empty() ? file_checksum(File::open(path)) : id;
  return ids;
}

struct AuditState final : StepObserver {
  AuditState(Engine& engine, const AuditOptions& options);
  ~AuditState() override { engine.set_observer(nullptr); }
  Communicator& world() const { return engine.world(); }
  bool on_meta() const { return engine.device().type() == Device::Type::meta; }
  void tape_begins() override;
  void backward_begins(const Var* loss) override;
  void step_ends(float rate, int64_t micro_batches, const StepResult& result) override;
  void begin_step();
  void forget();
  std::optional<std::string> write(const TrainedStep& step, bool is_last);
  void open();
  void append(Json& record);
  void add_units(Json& record) const;
  void add_data(Json& record) const;

  Engine& engine;
  const AuditOptions options;
  const Json settings, layout;
  const std::unique_ptr<Communicator> group;  // null: one rank
  const Device host;  // separate, so that memory records of the engine's device do not have it
  std::optional<AuditedOps> ops;  // of the step that runs
  std::optional<LineFile> file;   // on rank 0
  std::string previous;           // hash of the last record
  // This rank's micro-batches of the step:
  uint64_t data = 0;
  int64_t first_sample = INT64_MAX, end_sample = 0;
  bool is_lost = false, has_warned = false;
  int64_t next = -1;  // the step of the next record
  // If the engine's steps write the records:
  bool is_new = false;              // no micro-batch since begin_step()
  bool is_used = false;             // one since forget()
  std::vector<PendingItem> losses;  // by micro-batch, on the last stage
};

namespace {

std::unique_ptr<Communicator> group_of(Communicator& world, const std::string& path) {
  if (world.size() == 1) return nullptr;
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return world.group(all, "audit " + path);
}

// Floats get the shortest text that is read as the same float.
Json shortened(Json json) {
  if (json.is_structured())
    for (Json& each : json) each = shortened(std::move(each));
  else if (json.is_number_float() && json == json.get<float>())
    json = number(json.get<float>());
  return json;
}

// The program's settings, or else the engine's.
Json settings_of(const Engine& engine, const AuditOptions& options) {
  const Json settings = parse_json_object<Json>(options.settings, "audit: settings");
  if (!settings.empty()) return settings;
  const Config& config = engine.config();
  const UpdateOptions& update = config.update;
  const LossScaleOptions& scaling = config.loss_scaling;
  return {{"compute", name_of(config.compute)},
          {"masters", name_of(config.optimizer)},
          {"load", name_of(config.load)},
          {"grad_accum", name_of(config.grad_accum)},
          {"optimizer", optimizer_name(update)},
          {"betas", {update.beta1, update.beta2}},
          {"epsilon", update.epsilon},
          {"momentum", {update.momentum, update.dampening, update.nesterov}},
          {"muon",
           {update.muon.momentum, update.muon.nesterov, name_of(update.muon.rate),
            update.muon.adam_rate}},
          {"adafactor",
           {update.adafactor.beta2_decay, update.adafactor.epsilon1, update.adafactor.epsilon2,
            update.adafactor.clip}},
          {"weight_decay", update.weight_decay},
          {"stochastic_rounding", update.stochastic_rounding},
          {"groups", text_of(update.groups)},
          {"clip_norm", config.clip_norm},
          {"loss_scale",
           {scaling.loss_scale, scaling.initial_scale_power, scaling.window, scaling.hysteresis,
            scaling.consecutive_hysteresis, scaling.min_loss_scale}},
          {"reduce_at_boundary", config.reduce_at_boundary},
          {"nccl_reduce", config.nccl_reduce},
          {"seed", config.seed}};
}

Json layout_of(const Engine& engine, const AuditOptions& options) {
  Json layout = parse_json_object<Json>(options.layout, "audit: layout");
  const Mesh* mesh = engine.mesh();
  if (layout.empty())
    layout = {{"data_ranks", engine.ranks().size()},
              {"pipeline_stages", mesh ? mesh->shape.pipeline : 1},
              {"tensor_ranks", mesh ? mesh->shape.tensor : 1},
              {"stage", engine.config().stage}};
  if (engine.config().stage == 3)
    layout["param_persistence_threshold"] = engine.config().param_persistence_threshold;
  layout["interval"] = options.interval;
  return layout;
}

// By parameter that this rank has: unit, name, range of elements, sum, and whether the rank counts
// it. The length of the text depends on no value, so that a plan knows it.
Json sums_of(const Engine& engine) {
  // Differences of marks name ranges, and those of adjacent ranges add up. Without the factor some
  // marks of small indices are multiples of each other.
  const auto mark = [](int64_t at) {
    return scrambled((static_cast<uint64_t>(at) + 1) * index_factor);
  };
  struct Sums {
    uint64_t range = 0, sum = 0;
    bool is_counted = false;
  };
  std::vector<Sums> held(engine.store().parameters().size());
  engine.visit_masters(
      [&](const Parameter& parameter, int64_t begin, std::span<const float> x, bool is_counted) {
        Sums& own = held[static_cast<size_t>(parameter.index)];
        own.is_counted = is_counted;
        const uint64_t key = hash_name(parameter.name.c_str());
        for (int64_t i = begin; !x.empty();) {
          const int64_t left = parameter.slice.run_left(i), at = parameter.slice.whole_index(i);
          const auto run = x.first(std::min(x.size(), static_cast<size_t>(left)));
          own.range += mark(at + std::ssize(run)) - mark(at);
          own.sum += sum_of(key, at, run);
          x = x.subspan(run.size());
          i += std::ssize(run);
        }
      });
  Json sums = Json::array();
  for (const auto& unit : engine.store().units())
    for (const Parameter* parameter : unit->parameters) {
      const Sums& own = held[static_cast<size_t>(parameter->index)];
      sums.push_back({printable(unit->name, 200), printable(parameter->name, 200), hex(own.range),
                      hex(own.sum), own.is_counted ? 1 : 0});
    }
  return sums;
}

}  // namespace

AuditState::AuditState(Engine& engine, const AuditOptions& options)
    : engine(engine),
      options(options),
      settings(shortened(settings_of(engine, options))),
      layout(layout_of(engine, options)),
      group(group_of(engine.world(), options.path)),
      host(Device::cpu(engine.world().rank(), {.threads = 1, .separate = true})) {
  engine.set_observer(this);
}

Audit::Audit(Engine& engine, const AuditOptions& options) {
  if (options.interval < 1)
    raise<ConfigError>("audit: interval: expected 1 or more steps, got {}", options.interval);
  state_ = std::make_unique<AuditState>(engine, options);
}

Audit::~Audit() = default;

// The checksums of the model's units, in its order, and of copies that differ.
void AuditState::add_units(Json& record) const {
  const std::vector<std::string> texts = gather_sealed(group.get(), sums_of(engine));
  if (on_meta() || world().rank() > 0) return;
  const size_t tensor_ranks = engine.mesh() ? static_cast<size_t>(engine.mesh()->shape.tensor) : 1;
  std::map<std::string, std::pair<std::string, std::string>> firsts;  // rank, sum; by name, range
  struct Whole {
    uint64_t range = 0, sum = 0;
  };
  std::map<std::pair<std::string, size_t>, Whole> wholes;  // by name, tensor rank
  Json sums = Json::object(), copies;
  const auto add_copy = [&](const std::string& name, const std::string& range,
                            const std::string& sum, const std::string& rank) {
    const auto& [first, first_sum] =
        firsts.emplace(name + range, std::pair(rank, sum)).first->second;
    if (sum == first_sum) return;
    copies[name][first] = first_sum;
    copies[name][rank] = sum;
  };
  for (size_t rank = 0; rank < texts.size(); ++rank)
    for (const Json of_rank = opened(texts[rank], rank); const Json& one : of_rank) {
      const std::string unit = one[0], name = one[1], range = one[2], sum = one[3];
      const bool is_counted = one[4] == 1;
      const uint64_t number = std::stoull(sum, nullptr, 16);
      Json& of_unit = sums[unit];
      if (is_counted) of_unit = number + (of_unit.is_null() ? 0 : of_unit.get<uint64_t>());
      Whole& whole = wholes[{name, rank % tensor_ranks}];
      whole.range += std::stoull(range, nullptr, 16);
      whole.sum += number;
      add_copy(name, range, sum, fmt::format("rank_{}", rank));
    }
  // Tensor ranks with slices of other sizes divide a unit at other elements over their data ranks.
  const Json of_ranks = copies;
  for (const auto& [of, whole] : wholes)
    if (!of_ranks.contains(of.first))
      add_copy(of.first, hex(whole.range), hex(whole.sum),
               fmt::format("tensor_rank_{}", of.second));
  for (const auto& [unit, sum] : sums.items())  // null: mirrors only
    if (!sum.is_null()) record["units"][unit] = hex(sum);
  if (!copies.is_null()) record["copies"] = copies;
}

void Audit::add(std::span<const Tensor> tensors, int64_t first_sample, int64_t samples) {
  AuditState& s = *state_;
  const TraceSpan span(s.engine.device().compute(), "audit");
  if (s.is_used && s.engine.micro_batches() == 0) s.forget();
  const Mesh* mesh = s.engine.mesh();
  // Stages and tensor ranks have equal batches.
  if (s.on_meta() || (mesh && (mesh->stage > 0 || mesh->tensor_rank > 0))) return;
  s.first_sample = std::min(s.first_sample, first_sample);
  s.end_sample = std::max(s.end_sample, first_sample + samples);
  for (size_t k = 0; k < tensors.size(); ++k) {
    const Tensor& x = tensors[k];
    if (!x || x.numel() == 0) continue;
    const int64_t rows = x.shape().rank() > 0 && x.shape()[0] == samples ? samples : 1;
    const std::vector<uint8_t> bytes = x.alias(0, {x.bytes()}, DType::u8).to_host<uint8_t>();
    const size_t row_bytes = bytes.size() / static_cast<size_t>(rows);
    std::vector<uint32_t> words((row_bytes + 3) / 4);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(words.data(), bytes.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
      const auto sample = static_cast<uint64_t>(first_sample + row);
      s.data += sum_of<uint32_t>(scrambled(scrambled(k + 1) + sample), 0, words);
    }
  }
}

// Null: no rank has called Audit::add(), or none with tensors.
void AuditState::add_data(Json& record) const {
  std::vector<int64_t> words = {first_sample, end_sample, static_cast<int64_t>(data)};
  if (group) {
    const Tensor all = Tensor::empty({3 * group->size()}, DType::i64, host);
    group->wait(group->all_gather(Tensor::from(words, {3}, host), all, "data of a step"));
    words = all.to_host<int64_t>();
  }
  int64_t first = first_sample, end = 0;
  uint64_t sum = 0;
  for (size_t i = 0; i < words.size(); i += 3) {
    first = std::min(first, words[i]);
    end = std::max(end, words[i + 1]);
    sum += static_cast<uint64_t>(words[i + 2]);
  }
  record["samples"] = first < end ? Json{first, end} : Json();
  record["data"] = sum ? Json(hex(sum)) : Json();
}

void AuditState::append(Json& record) {
  record["previous"] = previous;
  std::string text = record.dump();
  text.pop_back();
  previous = checksum(std::as_bytes(std::span(text)));
  file->write(fmt::format("{},\"hash\":\"{}\"}}\n", text, previous));
}

void AuditState::open() {
  next = engine.steps();
  Json record = {{"command", options.command},
                 {"run",
                  {{"schema", audit_schema},
                   {"version", version()},
                   {"build", build_ids()},
                   {"environment", environment()},
                   {"instruction_set", name_of(engine.device().traits().isa)},
                   {"device", name_of(engine.device().type())}}},
                 {"settings", settings},
                 {"layout", layout},
                 {"before_step", next}};
  add_units(record);
  if (on_meta() || world().rank() > 0 || is_lost) return;
  file.reset();
  previous.clear();
  try {
    file.emplace(options.path, [&]() -> uintmax_t {
      if (next == 0) return 0;
      const AuditTrail trail = AuditTrail::read(options.path);
      for (const AuditTrail::Record& kept : trail.records) {
        if (kept.step >= next) return static_cast<uintmax_t>(kept.begin);
        previous = kept.hash;
      }
      return static_cast<uintmax_t>(trail.bytes);
    });
    append(record);
  } catch (const FileError& error) {
    raise<FileError>("audit: {}", error.what());
  }
}

void AuditState::begin_step() {
  if (engine.steps() != next) open();
  is_new = true;
  ops.reset();
  if (options.first_op_step <= next && next < options.end_op_step && !on_meta())
    ops.emplace(engine, options.tensor);
}

std::optional<std::string> AuditState::write(const TrainedStep& step, bool is_last) {
  next = step.step + 1;
  Json of_ops;
  if (ops) of_ops = ops->end(group.get());
  ops.reset();  // before the exchanges of the audit itself
  const TraceSpan span(engine.device().compute(), "audit");
  Json record = {{"step", step.step}};
  add_data(record);
  record.update(Json{{"micro_batches", step.micro_batches * engine.ranks().size()},
                     {"rate", number(static_cast<float>(step.rate))},
                     {"loss_scale", number(step.result.loss_scale)},
                     {"loss", number(step.loss)},
                     {"squares", limb_text(step.result.square_limbs)},
                     {"skipped", step.result.skipped}});
  if (!of_ops.is_null()) record["ops"] = std::move(of_ops);
  if (next % options.interval == 0 || is_last) add_units(record);
  if (!file) return std::nullopt;
  try {
    append(record);
  } catch (const FileError& error) {
    file.reset();
    is_lost = true;
    return fmt::format("audit: {}; no more of it is written, and training goes on", error.what());
  }
  if (!record.contains("copies") || std::exchange(has_warned, true)) return std::nullopt;
  return fmt::format(
      "audit: after step {} copies of parameters differ: {}; a fault of a device, or "
      "code that updates the ranks differently",
      step.step, printable(record["copies"].dump(), 200));
}

// Forgets the micro-batches of the last step, or of one that was dropped.
void AuditState::forget() {
  data = 0;
  first_sample = INT64_MAX;
  end_sample = 0;
  is_used = false;
  losses.clear();
}

// Also after a step that was dropped. Audit::add() may have come before.
void AuditState::tape_begins() {
  if (engine.micro_batches() != 0 || is_new) return;
  if (is_used) forget();
  begin_step();
}

void AuditState::backward_begins(const Var* loss) {
  is_new = false;
  is_used = true;
  if (loss) losses.emplace_back(loss->value());
}

void AuditState::step_ends(float rate, int64_t micro_batches, const StepResult& result) {
  engine.device().compute().synchronize();
  std::vector<double> values;
  for (const PendingItem& loss : losses) values.push_back(loss.value());
  const bool has_loss = !engine.mesh() || engine.mesh()->is_last_stage();
  // Another engine may have begun the backward of a tape that both record.
  const bool has_all = !has_loss || std::ssize(values) == micro_batches;
  const double loss = has_all ? engine.mean_loss(values, micro_batches) : std::nan("");
  if (const auto failure = write({.step = engine.steps() - 1,
                                  .micro_batches = micro_batches,
                                  .loss = loss,
                                  .rate = rate,
                                  .result = result},
                                 false))
    print_line(stderr, "warning: {}", *failure);
}

void Audit::begin_step() {
  state_->engine.set_observer(nullptr);
  state_->forget();
  state_->begin_step();
}

std::optional<std::string> Audit::write(const TrainedStep& step, bool is_last) {
  return state_->write(step, is_last);
}

bool Audit::lost() const { return state_->is_lost; }

void Audit::sync() {
  if (state_->file) state_->file->sync();
}

}  // namespace zg::zero
