#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/api.h"
#include "zerograd/runtime/device.h"
#include "zerograd/zero/config.h"

// Finds settings of a training that fit into given memory, and puts the fastest first.
//
//   const ModelSizes sizes = ModelSizes::of(store);  // and layers, width, tokens, operations
//   const Search search = find_fitting(settings_of(own, {}, sizes, ranks), sizes, ranks,
//                                      {.limits = {.device = 24LL << 30}}, plan);
//   search.fitting.front().setting.engine;
//
// `plan` gives the bytes of a setting, for example by plan_ranks() of the program with it.
namespace zg::zero {

/// The values that a search varies; the rest of `engine` is the run's.
struct Setting {
  Config engine = {};
  bool recomputes = false;  ///< backward computes the activations of a block again
  /// Samples of a micro-batch of a data rank; micro-batches of a step.
  int64_t micro_batch = 1, accumulation = 1;
  int64_t tensor = 1, pipeline = 1;  ///< ranks of these axes; data ranks are the others
};

/// Bytes of a rank by space. As a limit, 0 means none.
struct SpaceBytes {
  int64_t device = 0, host = 0, file = 0;
  int64_t both = 0;  ///< as a limit: of device and host, where they are one memory
  bool operator==(const SpaceBytes&) const = default;
};

/// A model as a search sees it.
struct ModelSizes {
  struct Unit {
    std::vector<int64_t> numels;  ///< elements of each parameter
    int64_t times = 1;            ///< equal units that follow each other
  };
  std::vector<Unit> units;
  int64_t parameters = 0, trainable = 0;  ///< elements
  int64_t layers = 1, width = 1;
  int64_t tokens = 1;           ///< of a sample
  double operations = 0.0;      ///< of a sample's products, forward and backward
  bool divides_layers = false;  ///< its layers may be divided among pipeline stages
  int64_t heads = 1;            ///< tensor ranks divide them; 1: not

  ZG_API static ModelSizes of(const ParameterStore& store);
};

/// A lower bound of the bytes that a rank with the most needs: its states at rest, and at stage 3
/// the largest unit, gathered. Activations, buffers and padding are not counted. The bound of a CPU
/// is one of every device: see rounds_at_use().
ZG_API SpaceBytes least_bytes(const Setting& setting, const ModelSizes& model, int64_t ranks);

/// Rates of a rank, 1/s: operations of products, bytes of device memory, bytes received from other
/// ranks, copied between device and host, read or written by the host's update, of a disk, and
/// received from ranks of other nodes. The initial values are rough ones of a GPU with 24 GB; only
/// their ratios decide an order.
struct StepRates {
  double operations = 60e12, memory = 700e9, wire = 10e9, link = 12e9, host = 20e9, disk = 1.5e9,
         network = 1e9;
  int64_t node_ranks = 0;  ///< ranks of a node; 0: all
};
/// A device by its published sizes; rates are those of products in bf16.
struct Card {
  const char* name;
  Device::Type type;  ///< the device whose kernels a plan counts
  double gib;         ///< memory of a rank's device
  StepRates rates;
  const char* peaks;  ///< file of bench/peaks; empty: none
};
/// The first card whose name contains the words, without regard to case, spaces and hyphens:
/// "H100", "rtx 4090", "3090". Throws ConfigError, which begins with `flag` and lists the cards.
ZG_API const Card& card_named(const std::string& name, const std::string& flag = "card");

/// Predicted seconds of a step, by bytes moved and operations, recomputed ones included; nothing
/// overlaps. `compute`: seconds of the kernels of a rank, if they are known better.
ZG_API double step_seconds(const Setting& setting, const ModelSizes& model, int64_t ranks,
                           const StepRates& rates, std::optional<double> compute = {});

/// The choices of settings_of(). An empty list keeps the run's own value.
struct Choices {
  std::vector<int> stages = {0, 1, 3};  ///< stage 2 has the bytes and the time of stage 1
  std::vector<bool> recomputes = {false, true};
  std::vector<Space> optimizer = {Space::device, Space::host, Space::file};
  std::vector<Space> gradient = {Space::device, Space::host, Space::file};
  std::vector<Space> parameter = {Space::device, Space::host, Space::file};  ///< at stage 3
  std::vector<Space> activation = {Space::device, Space::host, Space::file};
  std::vector<double> ratios = {1.0, 0.75, 0.5, 0.25};  ///< OffloadOptions::optimizer_ratio
  bool buckets = true;  ///< smaller buckets of collectives, and at stage 3 no prefetch
  /// Micro-batch and accumulation; samples of a step stay. Above 16 samples each micro-batch is at
  /// least twice the one before.
  bool batches = true;
  bool axes = true;  ///< tensor and pipeline ranks
};
/// All combinations that training accepts, without those that equal another in bytes and time.
/// `own` is the run's setting, whose samples of a step every setting keeps.
ZG_API std::vector<Setting> settings_of(const Setting& own, const Choices& choices,
                                        const ModelSizes& model, int64_t ranks);

/// The plan of a setting.
struct PlannedSetting {
  Setting setting;
  SpaceBytes bytes;      ///< of the rank that needs the most, by space
  double seconds = 0.0;  ///< predicted, of a step
  std::string tight;     ///< the largest share of a limit: of "device", "host", "file" or "both"
  double load = 0.0;     ///< that share; above 1: it does not fit
  bool fits() const { return load <= 1.0; }
  /// Planned with fewer micro-batches than a step of the pipeline has: these may take some MiB
  /// more.
  bool part_of_step = false;
};

struct SearchOptions {
  SpaceBytes limits = {};
  StepRates rates = {};
  /// Ends when this many settings fit and all others are predicted to be slower.
  size_t enough = std::numeric_limits<size_t>::max();
  double seconds = std::numeric_limits<double>::infinity();  ///< then no further plan is begun
  int threads = 1;                                           ///< plans made at the same time
};
struct Search {
  std::vector<PlannedSetting> fitting;  ///< fastest first
  std::vector<PlannedSetting> rest;     ///< planned, do not fit; the smallest load first
  size_t bounded = 0;                   ///< settings whose least_bytes() exceed a limit
  /// The reasons for which `plan` refused settings, and how many settings each.
  std::map<std::string, size_t> refused;
  size_t unplanned = 0;  ///< slower ones, or those for which no time was left
  bool complete = true;  ///< false: the time ended the search
};
/// Bytes and, if it knows them, seconds of a setting (0: step_seconds()). Throws ConfigError or
/// Unsupported if the training refuses the setting. Called by several threads if
/// SearchOptions::threads is above 1.
using PlanSetting = std::function<PlannedSetting(const Setting&)>;

/// Plans settings until enough fit. Only a lower bound above a limit skips a setting for good; the
/// order follows step_seconds(), expected activations, and the bytes and seconds that plans so far
/// took above these; until one fits, every second plan is of the smallest. So if nothing fits and
/// the search is complete, no setting of the list fits.
ZG_API Search find_fitting(const std::vector<Setting>& settings, const ModelSizes& model,
                           int64_t ranks, const SearchOptions& options, const PlanSetting& plan);

}  // namespace zg::zero
