#include "tools/explain.h"

#include "zerograd/runtime/text.h"
#include "zerograd/zero/model_states.h"
#include "zerograd/zero/precision.h"

namespace zg::tools {
namespace {

std::string gigabytes(double bytes) { return text("%.1f", bytes / 1e9); }

std::string states_table(double parameters, int ranks, zero::Config config) {
  std::string table = text(
      "%.4g parameters on %d ranks; the paper: 2 bytes of value, 2 of gradient, K = 12 of "
      "optimizer;\nours: values %s, sums %s in shards at every stage, masters and moments %s\n\n"
      "| stage | paper GB | paper volume | ours GB | values | sums | optimizer | our volume |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|",
      parameters, ranks, name_of(config.compute), name_of(config.grad_accum),
      name_of(config.optimizer));
  for (config.stage = 0; config.stage <= 3; ++config.stage) {
    const zero::ModelStates paper = zero::paper_states(parameters, ranks, config.stage);
    const zero::ModelStates ours = zero::our_states(parameters, ranks, config);
    table += text("\n| %d | %s | %gx | %s | %s | %s | %s | %gx |", config.stage,
                  gigabytes(paper.total()).c_str(), paper.volume, gigabytes(ours.total()).c_str(),
                  gigabytes(ours.parameter).c_str(), gigabytes(ours.gradient).c_str(),
                  gigabytes(ours.optimizer).c_str(), ours.volume);
  }
  return table;
}

constexpr const char* precision_columns =
    "| precision | load | mixed | local | compute | optimizer |\n|---|---|---|---|---|---|";

std::string precision_row(const std::string& name, const zero::Precision& precision) {
  return text("\n| %s | %s | %s | %s | %s | %s |", name.c_str(), zg::name_of(precision.load),
              precision.mixed ? zg::name_of(*precision.mixed) : "none",
              zg::name_of(precision.local), zg::name_of(precision.compute),
              zg::name_of(precision.optimizer));
}

std::string precision_table() {
  std::string table = precision_columns;
  for (DType compute : {DType::f32, DType::bf16, DType::f16})
    table +=
        precision_row(zg::name_of(compute), zero::precision_of(zero::Config{.compute = compute}));
  for (auto preset : {zero::PrecisionPreset::fsdp_memory, zero::PrecisionPreset::fsdp_mixed,
                      zero::PrecisionPreset::deepspeed})
    table += precision_row(zero::name_of(preset), zero::precision_of(preset));
  return table;
}

}  // namespace

std::string explain_formulas() {
  constexpr double parameters = 7.5e9;
  constexpr int ranks = 64;
  return "ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, figure 1): " +
         states_table(parameters, ranks, {.compute = DType::bf16}) + "\n\n" + precision_table();
}

std::string explain_run(const Run& run, int64_t parameters, const RankMemory& memory) {
  const int ranks = static_cast<int>(run.options.data_ranks());
  const zero::Config& config = run.settings.optimisation.engine;
  const zero::RestingBytes& rest = memory.rest;
  zero::Config stages = config;
  stages.reduce_at_boundary = false;  // affects stages 0 and 1 only
  return "This run: " + states_table(static_cast<double>(parameters), ranks, stages) + "\n\n" +
         precision_columns +
         precision_row(run.settings.optimisation.precision(), zero::precision_of(config)) +
         text(
             "\n\nresting bytes of rank %d at stage %d: %lld = values %lld + sums %lld + "
             "optimizer %lld + padding %lld",
             memory.rank, config.stage, (long long)rest.total(), (long long)rest.parameter,
             (long long)rest.gradient, (long long)rest.optimizer, (long long)rest.padding);
}

}  // namespace zg::tools
