#include "zerograd/zero/audit.h"

#include <link.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

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

// JSON has no NaN and no infinities.
Json json_number(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", std::fabs(value)));
}

// The limbs of a sum of squares that are not 0, from the highest, as INDEX:LIMB in hex. A granule
// adds the same to each limb wherever it is, so they do not depend on the ranks.
std::string limb_text(const std::vector<int64_t>& limbs) {
  std::string text;
  for (size_t i = limbs.size(); i-- > 0;)
    if (limbs[i] != 0) text += fmt::format("{}{}:{:x}", text.empty() ? "" : " ", i, limbs[i]);
  return text;
}

// The build ids of the program and its libraries, which the linker computed from their code; the
// checksums of those without one.
Json builds() {
  using Ids = std::map<std::string, std::string>;
  const auto add = [](dl_phdr_info* object, size_t, void* found) {
    constexpr std::string_view note("\3\0\0\0GNU\0", 8);  // after the number of its bytes
    const std::string path = *object->dlpi_name ? object->dlpi_name : "/proc/self/exe";
    if (path.find('/') == path.npos) return 0;  // the kernel's
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
  Ids found;
  dl_iterate_phdr(add, &found);
  Json ids = Json::object();
  for (const auto& [path, id] : found)
    ids[path == "/proc/self/exe" ? "program" : path.substr(path.rfind('/') + 1)] =
        id.empty() ? file_checksum(File::open(path)) : id;
  return ids;
}

// The variables that this library reads, and that may change bits; libraries that others replace.
Json environment() {
  Json found = Json::object();
  for (char** at = environ; *at; ++at)
    if (const std::string_view variable = *at;
        (variable.starts_with("ZG_") && !variable.starts_with("ZG_NUM_THREADS=")) ||
        variable.starts_with("LD_PRELOAD="))
      found[std::string(variable.substr(0, variable.find('=')))] =
          variable.substr(variable.find('=') + 1);
  return found;
}

}  // namespace

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
  std::optional<std::string> write(const TrainedStep& step, int64_t first_sample, bool is_last);
  void open();
  void append(Json& record);
  Json units() const;
  Json sum_of_data();

  Engine& engine;
  const AuditOptions options;
  const Json settings, layout;
  const std::unique_ptr<Communicator> group;  // null: one rank
  const Device host;  // separate, so that memory records of the engine's device do not have it
  std::optional<AuditedOps> ops;  // of the step that runs
  std::optional<LineFile> file;   // on rank 0
  std::string previous;           // hash of the last record
  uint64_t data = 0;              // of this rank's micro-batches of the step
  bool has_data = false, is_lost = false;
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

// The program's settings, or else the engine's.
Json settings_of(const Engine& engine, const AuditOptions& options) {
  Json settings = parse_json_object<Json>(options.settings, "audit: settings");
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
  layout["interval"] = options.interval;
  return layout;
}

}  // namespace

AuditState::AuditState(Engine& engine, const AuditOptions& options)
    : engine(engine),
      options(options),
      settings(settings_of(engine, options)),
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

// The checksums of the model's units, in its order. Every rank sends those of the elements that it
// counts, and null for a unit without such ones.
Json AuditState::units() const {
  Json sums = Json::object();
  const auto add = [&sums](const std::string& unit, const Json& sum) {
    Json& whole = sums[unit];
    if (!sum.is_null()) whole = sum.get<uint64_t>() + (whole.is_null() ? 0 : whole.get<uint64_t>());
  };
  for (const auto& unit : engine.store().units()) add(printable(unit->name, 200), nullptr);
  engine.visit_masters([&](const Parameter& parameter, int64_t begin, std::span<const float> x) {
    uint64_t sum = 0;
    const uint64_t key = hash_name(parameter.name.c_str());
    for (int64_t i = begin; !x.empty();) {
      const auto run = std::min<size_t>(x.size(), static_cast<size_t>(parameter.slice.run_left(i)));
      sum += sum_of(key, parameter.slice.whole_index(i), x.first(run));
      x = x.subspan(run);
      i += static_cast<int64_t>(run);
    }
    add(printable(parameter.unit->name, 200), sum);
  });
  if (group) {
    // Padded, so that a plan knows the length: it has this rank's units only.
    constexpr size_t block = 4096;
    std::string text = sums.dump();
    text.resize((text.size() + block - 1) / block * block, ' ');
    const std::vector<std::string> texts = gather_texts(*group, text);
    if (on_meta()) return {};
    sums.clear();
    for (const std::string& of_rank : texts)
      for (const Json own = Json::parse(of_rank); const auto& [unit, sum] : own.items())
        add(unit, sum);
  }
  Json units = Json::object();
  for (const auto& [unit, sum] : sums.items())
    if (!sum.is_null()) units[unit] = hex(sum);
  return units;
}

void Audit::add(std::span<const Tensor> tensors, int64_t first_sample, int64_t samples) {
  AuditState& s = *state_;
  const TraceSpan span(s.engine.device().compute(), "audit");
  if (s.is_used && s.engine.micro_batches() == 0) s.forget();
  const Mesh* mesh = s.engine.mesh();
  // Stages and tensor ranks have equal batches.
  if (s.on_meta() || (mesh && (mesh->stage > 0 || mesh->tensor_rank > 0))) return;
  s.has_data = s.has_data || !tensors.empty();
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

// Null: no rank had data. The halves are added as two numbers, so that no sum overflows.
Json AuditState::sum_of_data() {
  std::vector<int64_t> sums = {static_cast<int64_t>(data & 0xffffffff),
                               static_cast<int64_t>(data >> 32), has_data ? 1 : 0};
  if (group) {
    const Tensor all = Tensor::from(sums, {3}, host);
    group->wait(group->all_reduce(all, "data of a step"));
    sums = all.to_host<int64_t>();
  }
  if (sums[2] == 0) return {};
  return hex(static_cast<uint64_t>(sums[0]) + (static_cast<uint64_t>(sums[1]) << 32));
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
                   {"build", builds()},
                   {"environment", environment()},
                   {"instruction_set", name_of(engine.device().traits().isa)},
                   {"device", name_of(engine.device().type())}}},
                 {"settings", settings},
                 {"layout", layout},
                 {"before_step", next},
                 {"units", units()}};
  if (on_meta() || world().rank() > 0 || is_lost) return;
  file.reset();
  previous.clear();
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
}

void AuditState::begin_step() {
  if (engine.steps() != next) open();
  is_new = true;
  ops.reset();
  if (options.first_op_step <= next && next < options.end_op_step && !on_meta())
    ops.emplace(engine, options.tensor);
}

std::optional<std::string> AuditState::write(const TrainedStep& step, int64_t first_sample,
                                             bool is_last) {
  next = step.step + 1;
  Json of_ops;
  if (ops) of_ops = ops->end(group.get());
  ops.reset();  // before the exchanges of the audit itself
  const TraceSpan span(engine.device().compute(), "audit");
  Json record = {{"step", step.step},
                 {"samples", {first_sample, first_sample + step.samples}},
                 {"micro_batches", step.micro_batches * engine.ranks().size()},
                 {"data", sum_of_data()},
                 {"rate", json_number(step.rate)},
                 {"loss_scale", json_number(step.result.loss_scale)},
                 {"loss", json_number(step.loss)},
                 {"squares", limb_text(step.result.square_limbs)},
                 {"skipped", step.result.skipped}};
  if (!of_ops.is_null()) record["ops"] = std::move(of_ops);
  if (next % options.interval == 0 || is_last) record["units"] = units();
  if (!file) return std::nullopt;
  try {
    append(record);
  } catch (const FileError& error) {
    file.reset();
    is_lost = true;
    return fmt::format("audit: {}; no more of it is written, and training goes on", error.what());
  }
  return std::nullopt;
}

// Forgets the micro-batches of the last step, or of one that was dropped.
void AuditState::forget() {
  data = 0;
  has_data = is_used = false;
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
                                 0, false))
    print_line(stderr, "warning: {}", *failure);
}

void Audit::begin_step() {
  state_->engine.set_observer(nullptr);
  state_->forget();
  state_->begin_step();
}

std::optional<std::string> Audit::write(const TrainedStep& step, int64_t first_sample,
                                        bool is_last) {
  return state_->write(step, first_sample, is_last);
}

bool Audit::lost() const { return state_->is_lost; }

void Audit::sync() {
  if (state_->file) state_->file->sync();
}

}  // namespace zg::zero
