#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "tools/options/run_spec.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/data/pair_data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/seq2seq/seq2seq.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/zero/checkpoint/checkpoint_directory.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/engine.h"

namespace zg {
class SafetensorsReader;
}

// The inputs of a run.
namespace zg::tools {

// Checkpoints and folders (checkpoints.cpp).

using Checkpoint = std::shared_ptr<zero::CheckpointReader>;

/// Opens `path` if it is a step_N folder, else the newest step_N in it that verifies. Names on
/// stderr each step_N that does not verify. Throws FileError when none verifies.
Checkpoint usable_checkpoint(const std::string& path);

/// The step_N that --resume names. For "auto": the newest one in `save`, or null if there is none.
Checkpoint checkpoint_to_resume(const std::string& resume, const std::string& save);
/// With --resume auto, the flags --from-hf, --init and --init-adapter apply only if --save has no
/// checkpoint yet. If there is one, clears these flags. If not, and one of them is given, clears
/// --resume.
void resolve_auto_resume(TrainOptions& options);

/// Throws ConfigError if `file` is inside a checkpoint, so that writing it would damage the
/// checkpoint.
void check_not_in_checkpoint(const std::string& file, const char* command);

/// Checks that two runs do not share a directory. The newest checkpoint is the one with the highest
/// step number, so each run could resume from the checkpoint of the other. Throws ConfigError when
/// `save` contains checkpoints and `resumed` (null: a fresh start) is not one of them, or is not
/// the newest that verifies, because the run would replace the later ones.
void check_own_directory(const std::string& save, const Checkpoint& resumed);

/// Locks the directory of --save. Throws ConfigError naming the flag when another run holds the
/// lock. Prints a warning on stderr if the directory cannot be locked.
std::shared_ptr<zero::DirectoryLock> lock_directory(const std::string& directory);

// The flag --from-hf.

/// Whether a path is a folder with a config.json and without checkpoints.
bool is_hf_folder(const std::string& path);

/// Whether a path is such a folder with an encoder-decoder. False if config.json cannot be read.
bool is_seq2seq_folder(const std::string& path);

/// Whether the weights of a path are read: not of "", and by a plan not of a folder with a
/// config.json alone.
bool reads_weights(const std::string& path, bool is_planned);

/// Opens the folder of a decoder. Throws FileError; the message names the flag.
models::HuggingFaceFolder open_hf_folder(const std::string& path);

// Data of decoders that are fine-tuned on conversations (conversations.cpp).

struct DatasetRequest {
  int64_t block_size = 0;  ///< 0: the default of the data
  uint64_t seed = 3407;
  /// For documents. 0: the tokenizer's vocabulary or, without a tokenizer, the largest token plus
  /// 1, which reads all documents.
  int64_t vocabulary = 0;
  /// Null: one token per character; in conversations texts are numbers, "15 2 7".
  const models::Tokenizer* tokenizer = nullptr;
  // Conversations only.
  std::optional<int32_t> end = {};  ///< the token that ends a response
  std::string folder = {};          ///< the model's folder, for errors; empty: none
  bool validation_only = false;     ///< data.source is not read if there is data.validation_source
};

/// Reads the conversations of data.source and of data.validation_source, if that is given. Throws
/// FileError and ConfigError for invalid files, and where none is left to train on; Unsupported for
/// messages without a chat format.
std::unique_ptr<models::Dataset> conversation_dataset(const DataOptions& data,
                                                      const DatasetRequest& request);

/// Notes on members of conversations that have no effect, and on conversations that do not fit into
/// the block size. A note may be empty.
std::vector<std::string> notes_of(const models::Dataset& dataset);

/// The format in `path`, F.json or F.jinja, or with "" the chat template of a model's folder.
/// Absent: the folder has none. `saved`, the data.chat_format of the checkpoint, is returned if it
/// has the same template. Any other template that asks for a date gets today's. Throws FileError.
std::optional<models::ChatFormat> chat_format_of(const std::string& path, const std::string& folder,
                                                 const std::string& saved);

/// Sets data.chat_format to chat_format_of(data.chat_format_path), if that is not empty, or if
/// there is no format yet and the data has messages.
void resolve_chat_format(DataOptions& data, const std::string& folder, const std::string& saved);

// Models, their settings and weights (setup.cpp, model_weights.cpp).

/// Throws FileError when the data that a checkpoint names does not exist any more.
void check_data_exists(const std::string& source, const std::string& checkpoint,
                       const std::string& flag = "--data");

/// Throws ConfigError for a block size that the task does not support, or for an unknown source.
std::unique_ptr<models::Dataset> make_dataset(const DataOptions& options,
                                              const DatasetRequest& request);

/// An unlimited number of samples of random tokens, uniform in [0, vocabulary). Each is the target
/// of the previous one. The time of a step does not depend on their values.
std::shared_ptr<const models::Dataset> random_tokens(int64_t vocabulary, int64_t block_size,
                                                     bool validates);

/// The characters of a dataset's tokens in order of their ids; empty if tokens are numbers.
std::string characters_of(const models::Dataset& dataset);

/// The block size that flags and the model's name give for the data; 0: the default of the data.
int64_t block_size_of(const TrainOptions& options);
/// The model's configuration, from its name or sizes and the dataset's block size. The vocabulary
/// comes from a flag, a BLOOM's name or the dataset, in this order. Throws ConfigError when the
/// data has more tokens.
models::GPTConfig model_config(const TrainOptions& options, const models::Dataset& dataset);

/// The sizes of an encoder-decoder, as RunSpec::model has them.
models::GPTConfig sizes_of(const models::Seq2SeqConfig& config);

/// The model of some settings: one of both.
struct WholeModel {
  std::unique_ptr<models::GPT> decoder;
  std::unique_ptr<models::Seq2Seq> seq2seq;

  WholeModel(ParameterStore& store, const RunSpec& settings);
};

/// Trained weights and the settings that are stored with them.
struct SavedModel {
  RunSpec settings;
  std::string path;  ///< a step_N, a safetensors file or a Hugging Face folder
  /// The step_N, with open files; null: the path is not a step_N.
  std::shared_ptr<zero::CheckpointReader> checkpoint = nullptr;
  bool weights_only = false;  ///< true: a file without settings. The tensors' shapes give the
                              ///< sizes; what the tokens mean is unknown
  std::string adapter = {};  ///< the folder of PEFT with the adapters; empty: `checkpoint` has them
};
/// Opens a checkpoint (the newest step_N that verifies), a Hugging Face folder, or a safetensors
/// file. The settings of a file are those that consolidate stored in it. If there are none, the
/// tensors' shapes give the sizes, and the options give the number of heads. Throws FileError,
/// ConfigError.
SavedModel open_saved_model(const std::string& path, const TrainOptions& options,
                            const AdapterPaths& paths = {});
RunSpec settings_of(const zero::CheckpointReader& checkpoint);
/// Checks --n-head and --model-type: they have no effect with a checkpoint or file that stores its
/// model.
void check_model_flags(const Given& given, const std::string& checkpoint);

/// The settings that a step_N, file or Hugging Face folder stores; absent: a file with weights
/// only.
std::optional<RunSpec> settings_in(const std::string& path);
/// The weights in a Hugging Face folder for the settings' model, as HuggingFaceFolder::weights().
WeightSource hf_weights(const std::string& path, const RunSpec& settings,
                        std::string* note = nullptr);
/// The weights that open_saved_model() found, with as many positions as its model has. For a model
/// with adapters they are those of the base and of the adapters; `check`: compare the base with the
/// hash in the settings.
WeightSource weights_of(const SavedModel& saved_model, bool check = true);
/// Sets `path` as the new path of the adapters' base. Errors name `checkpoint`. Throws ConfigError
/// if the settings have no adapters.
void move_base(RunSpec& settings, const std::string& path, const std::string& checkpoint);
/// The weights that the adapters of these settings are trained for. Throws FileError.
WeightSource base_weights(const RunSpec& settings);
/// base_weights(), after a comparison with the hash in the settings. Throws FileError.
WeightSource checked_base(const RunSpec& settings);
/// The matrices of a model with adapters.
WeightSource adapter_weights(const SavedModel& saved_model);

/// Throws ConfigError if `path`, which `flag` names, is, contains or lies in the data, the
/// tokenizer or the adapters' base of a checkpoint's run, as far as they exist.
void check_output(const RunSpec& saved, const std::string& flag, const std::string& path);

/// The sizes that the shapes of a file of weights show. The number of heads is not among them.
models::GPTConfig sizes_from_shapes(const std::string& path);
/// The family whose tensor names the file uses; absent: the names are of no known family.
std::optional<models::Family> family_of(const SafetensorsReader& reader);

/// Checks the weights of --init, an open checkpoint or a file. Throws ConfigError when their tokens
/// mean something else than the run's. Throws FileError when their model has another size; the
/// message names the flags that match. Returns a note about their tokens for the user; empty: none.
std::string check_initial_weights(const std::string& path,
                                  const std::shared_ptr<zero::CheckpointReader>& checkpoint,
                                  const RunSpec& run);

// Data of encoder-decoders: texts as tokens, and batches of pairs (pairs.cpp).

/// The tokens of an encoder-decoder's texts. A text ends with the model's first eos and, in a BART,
/// begins with its bos. Without a tokenizer a text is a list of token numbers: "15 2 7".
class PairText {
 public:
  /// `where` begins the errors. The tokenizer may be null; otherwise it must outlive the object.
  PairText(const models::Seq2SeqConfig& config, const models::Tokenizer* tokenizer,
           std::string where);
  /// At most `limit` tokens: the end of a longer text is dropped, and its last token is eos.
  std::vector<int32_t> encode(const std::string& text, int64_t limit) const;
  /// The text without special tokens.
  std::string decode(std::span<const int32_t> ids) const;

 private:
  const models::Seq2SeqTokens tokens_;
  const models::Tokenizer* const tokenizer_;
  const std::string where_;
  const bool begins_with_bos_;
};

/// The template that PairText applies, for the tokenizer's files.
models::TextTemplate template_of(const models::Seq2SeqConfig& config);
/// The special tokens of `tokenizer` for a fresh model. Throws ConfigError if no token ends a text.
models::Seq2SeqTokens seq2seq_tokens(models::Seq2SeqFamily family,
                                     const models::Tokenizer& tokenizer, const std::string& path);

/// Pairs and the lengths to which they are padded. As a Dataset it has no samples of one sequence;
/// its block size is the number of tokens of the longest pair that the limits allow.
class PairData final : public models::Dataset {
 public:
  using Lengths = models::PairDataset::Lengths;
  struct Padding {
    Lengths longest;      ///< the limits
    bool always = false;  ///< true: every pair is padded to the limits
  };
  PairData(models::PairDataset pairs, const Padding& padding, const models::Seq2SeqConfig& config);
  /// For a plan without data: an unlimited number of pairs with the lengths of the limits.
  /// `validates`: there is a validation split.
  PairData(const Padding& padding, const models::Seq2SeqConfig& config, bool validates);

  /// The lengths to which samples [first, first + count) are padded.
  Lengths lengths(models::Split split, int64_t first, int64_t count) const;
  models::Seq2SeqBatch padded(models::Split split, int64_t first, int64_t count,
                              const Lengths& lengths, const Device& device) const;
  /// The labels of samples [first, first + count): their targets' tokens.
  int64_t labels(models::Split split, int64_t first, int64_t count) const;
  Lengths longest() const;  ///< the longest of all pairs

  int64_t vocabulary() const override;
  int64_t block_size() const override { return padding_.longest.source + padding_.longest.target; }
  int64_t epoch_samples(models::Split split) const override;
  void sample(models::Split split, int64_t index, int32_t* ids, int32_t* targets) const override;

 private:
  std::vector<models::TokenPair> samples(models::Split split, int64_t first, int64_t count) const;

  const std::optional<models::PairDataset> pairs_;
  const Padding padding_;
  const models::Seq2SeqConfig config_;
  const bool validates_;
};

struct PairSource {
  const DataOptions& data;
  const Seq2SeqOptions& options;  ///< after resolve_lengths()
  const models::Seq2SeqConfig& config;
  const models::Tokenizer* tokenizer = nullptr;
  uint64_t seed = 3407;
};
/// Reads the pairs of data.source. Throws FileError, and ConfigError for another kind of data, for
/// tokens that the model does not know, and for --n-train or --n-val above the number of pairs.
std::shared_ptr<const PairData> read_pair_data(const PairSource& source);

PairData::Padding padding_of(const Seq2SeqOptions& options);

/// Sets the lengths that are not given to their default. Throws ConfigError for lengths above the
/// model's positions.
void resolve_lengths(const models::Seq2SeqConfig& config, Seq2SeqOptions& options);

/// Mean loss of a label over the first `batches` batches of `batch` pairs of the validation split,
/// without label smoothing; 0 batches: the whole split. Throws ConfigError without such a split.
double pair_loss(const models::Seq2Seq& model, const std::function<Tape()>& make_tape,
                 const PairData& data, const Device& device, int64_t batch, int64_t batches);

// Tokenizers: the choice for a run, and whether the data has the tokens that trained weights know
// (tokenizers.cpp).

/// XXH3-128 of models::tokenizer_json() without the tokens around a text. It does not depend on the
/// file format that the tokenizer was read from.
std::string checksum_of(const models::Tokenizer& tokenizer);

/// Reads the tokenizer that data.tokenizer names and fills data.tokenizer_checksum. If no flag
/// `named` it, the trained model's tokenizer is used, if any; checkpoints store a copy of theirs.
/// Throws ConfigError when the named tokenizer differs from the model's, or the model uses
/// characters. Throws FileError when the tokenizer of an older checkpoint does not exist any more.
/// A tokenizer with more tokens than the trained model is limited to the model's. Absent: there is
/// none.
std::optional<models::Tokenizer> resolve_tokenizer(DataOptions& data, const SavedModel* saved_model,
                                                   bool named);

/// Sets tokenizer_json and tokenizer_config, which a checkpoint stores.
void keep_tokenizer(const models::Tokenizer& tokenizer, RunSpec& settings);

/// resolve_tokenizer() for the tokenizer in a Hugging Face folder, if no flag named one. Only text
/// needs it: for other data a problem with it becomes a note, and no tokenizer is used.
std::optional<models::Tokenizer> folder_tokenizer(DataOptions& data, const SavedModel& folder,
                                                  std::vector<std::string>& notes);

/// The token that ends a response: eos_token of the tokenizer's config, else the first end token of
/// the trained model, else a token with the name of an end token. Absent: there is none.
std::optional<int32_t> end_token(const SavedModel* saved_model, const models::Tokenizer* tokenizer);

/// Throws ConfigError when the data has tokens that the tokenizer does not have, or is a task
/// instead of text.
void check_tokenizer(const DataOptions& data, const models::Tokenizer& tokenizer,
                     const models::Dataset& dataset);

/// Throws ConfigError when the data's tokens are not those of a trained model: more tokens, other
/// characters, or characters where the model uses a tokenizer or numbers.
void check_tokens(const SavedModel& saved_model, const DataOptions& data,
                  const models::Dataset& dataset);

/// For the weights of --init, which may know fewer characters than the run. Throws ConfigError when
/// an id means one token there and another in the run. Returns a note when only one of the two
/// stores the meaning of its tokens; empty: none.
std::string check_initial_tokens(const SavedModel& saved_model, const RunSpec& run);

/// The log line with the number of samples and how text became tokens.
std::string description_of(const DataOptions& data, const models::Dataset& dataset,
                           const std::optional<models::Tokenizer>& tokenizer);

}  // namespace zg::tools
