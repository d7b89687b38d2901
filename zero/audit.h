#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/zero/engine.h"

// The audit trail of a run: a file with a JSON line for each step, whose contents do not depend on
// ranks, stages, offload and threads, so that two runs can be compared step by step. Each record
// has the hash of the record before it and its own, so that no record can be edited without the
// ones after it. The hashes find errors; they are no signature: who computes the chain again can
// write anything, and only a replay of the steps shows that.
namespace zg::zero {

struct AuditOptions {
  std::string path;
  /// Every so many steps a record has a hash of each unit's parameters, and so has the last step of
  /// TrainerOptions::steps.
  int64_t interval = 25;
  /// JSON objects of the program's settings: those that may change bits, and the others. Empty: the
  /// engine's.
  std::string settings = "{}", layout = "{}";
  /// The words of the program's command line, which a replay repeats. They are not compared.
  std::vector<std::string> command = {};
  /// The steps [first_op_step, end_op_step) also have `ops`: a hash of each tensor that a kernel or
  /// a collective has written, on every rank.
  int64_t first_op_step = 0, end_op_step = 0;
  /// Not empty: the output with this number in `ops`, "1/compute/17", has its bytes in hex there
  /// instead of a hash.
  std::string tensor = {};
};

/// Writes an audit trail. Trainer has one, by TrainerOptions::audit. A program with a loop of its
/// own makes one after its engine, and each Engine::step() writes a record:
///
///     zero::Audit audit(engine, {.path = "run.audit"});
///
/// Its records have `samples` and `data` if the program calls add() for each micro-batch. Every
/// function but add(), sync() and lost() is collective over Engine::world(); rank 0 writes. The
/// ranks exchange through a group of their own and separate devices, so Communicator::wire() and
/// memory records do not have these bytes.
///
/// A step's record has: `samples`, its range of samples; `data`, a checksum of the tensors of its
/// micro-batches, row by row, where row i of a tensor is that of sample first_sample + i; the loss,
/// the rate and the loss scale; `squares`, the limbs of the exact sum of the squares of the
/// gradients (SumOfSquares); and, every interval, `units`. A checksum of parameters is the sum,
/// over the elements, of a mixture of name, index and bits of the master. A change of one element
/// always changes it. Parameters that other tensor ranks have too, or in stage 0 other data ranks,
/// are counted once. `copies` has the checksums of copies that differ, by rank; by tensor rank if
/// tensor ranks divide the parameter at different elements. It is absent if none differs.
///
/// `ops` has each rank's masters before the step, and each output by rank, track of a trace and
/// number there: "0/compute/17 backward block.0 linear: matmul c f32 [44, 96]". Each follows those
/// that it is computed from, and otherwise those of lower ranks between the same collectives.
/// Kernels that a collective calls are left out. A plan does not have the exchange of `ops`.
class ZG_API Audit {
 public:
  /// The first step opens the file. Before step 0 it replaces an old one. Before a later step,
  /// after a resume, the chain in it goes on: records of this step and later ones, and a last line
  /// that a crash has cut, are removed. The first record of a run has version, instruction set,
  /// settings and layout. begin_step() throws FileError for a file that is not a chain or cannot be
  /// written. Throws ConfigError for an interval below 1, FileError for settings that are not JSON
  /// objects. It is the engine's observer, and must end before the engine.
  Audit(Engine& engine, const AuditOptions& options);
  ~Audit();
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  /// The tensors of samples [first_sample, first_sample + samples), once on each data rank, before
  /// or after Engine::tape() of their micro-batch.
  void add(std::span<const Tensor> tensors, int64_t first_sample, int64_t samples);
  /// Called before each step by a program that writes the records itself, as Trainer does: then the
  /// engine's steps write none. Forgets the micro-batches of a step that was dropped.
  void begin_step();
  /// After Engine::step(). `is_last`: no step of the run follows. Returns a warning, once each, if
  /// copies differ, and if the file cannot be written: then the rest of the trail is lost, not the
  /// run.
  std::optional<std::string> write(const TrainedStep& step, bool is_last);
  bool lost() const;  ///< records are missing, because the file could not be written
  /// Waits until the file is on the disk: before a checkpoint that lies behind its records.
  void sync();

 private:
  std::unique_ptr<struct AuditState> state_;
};

inline constexpr const char* audit_schema = "zerograd.audit/1";

/// A file of Audit, read and checked.
struct AuditTrail {
  /// Names and values as JSON texts. Objects within are flattened: "settings.run.rate".
  using Fields = std::vector<std::pair<std::string, std::string>>;
  struct Record {
    bool is_step = false;  ///< false: the begin or the resumption of a run, before step `step`
    int64_t step = 0, line = 0, begin = 0;  ///< `begin`: its first byte in the file
    size_t run = 0;                         ///< the record of its run
    std::string hash;
    Fields fields;  ///< without the hashes of the chain
  };
  std::string path;
  std::vector<Record> records;
  int64_t bytes = 0;      ///< of the whole lines
  bool is_cut = false;    ///< the last line is not whole: a crash has cut it
  std::string last_hash;  ///< of the last record; empty: there is none

  /// Throws FileError, which names line and step, where a record is not as it was written.
  ZG_API static AuditTrail read(const std::string& path);
  ZG_API const Record* step(int64_t step) const;  ///< null: not recorded
  /// The record of the run that took the step.
  ZG_API const Record& run_of(int64_t step) const;
  /// The hashes of the units before a step; empty: not recorded.
  ZG_API Fields units_before(int64_t step) const;

 private:
  ZG_API size_t records_before(int64_t step) const;  ///< those of earlier steps, and of begins
};

/// The build ids of the program and its libraries by name, which the linker computed from their
/// code; the checksums of those without one. Throws FileError.
ZG_API std::map<std::string, std::string> build_ids();

/// A field that differs, with both values; "-" where a record does not have it.
struct AuditDifference {
  std::string field, first, second;
  std::string other = {};  ///< an output of an op: its field in the second record, if another
};

ZG_API std::vector<AuditDifference> compare(const AuditTrail::Fields& a,
                                            const AuditTrail::Fields& b);

struct AuditComparison {
  std::vector<int64_t> equal;         ///< compared and equal, rising
  std::optional<int64_t> differs_at;  ///< the first step whose records differ
  std::vector<AuditDifference> step;  ///< the fields that differ there
  /// Settings that may change bits (with version, builds, instruction set and environment), and
  /// layouts, of the runs that took this step or the last equal one. Builds are the last.
  std::vector<AuditDifference> settings, layout;
};
/// Compares the steps from `first` to `last` that both trails have, and the units before them.
/// Hashes of units and of ops are compared where both have them, ops only if the layouts are equal.
/// If two records of a rank do not have the same outputs, those with equal hashes are paired,
/// wherever they are. Outputs that one record alone has are differences only if another field of
/// the step differs: recomputation, buckets and speculation add and move outputs.
ZG_API AuditComparison compare(const AuditTrail& a, const AuditTrail& b, int64_t first = 0,
                               int64_t last = INT64_MAX);
/// "a.audit has 6 more steps, 4 to 9", than `b`; empty: none.
ZG_API std::string more_steps(const AuditTrail& a, const AuditTrail& b);

}  // namespace zg::zero
