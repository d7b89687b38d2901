#pragma once

#include <functional>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/seq2seq/beam_search.h"
#include "zerograd/models/seq2seq/seq2seq_config.h"
#include "zerograd/runtime/storage/file_set.h"

// Encoder-decoder models in the format of Hugging Face's transformers:
// BlenderbotForConditionalGeneration and BartForConditionalGeneration.
namespace zg::models {

struct ZG_API HFSeq2Seq {
  Seq2SeqConfig config;
  /// The options of transformers' generate(), from generation_config.json, or from config.json if
  /// the folder has no generation_config.json.
  BeamOptions generation;
  std::string generation_json = {};  ///< the text of generation_config.json; empty: none
  std::string generation_note = {};  ///< HFGeneration::note
};

/// The options of a generation_config.json.
struct HFGeneration {
  BeamOptions options;            ///< `sampling` is set where do_sample is true and beams is 1
  std::optional<bool> do_sample;  ///< as the file has it
  /// A list of the keys that change what transformers generates but have no effect here; may be "".
  std::string note;
};
/// Reads a generation_config.json. `absent` has the values of absent token keys. Throws FileError
/// with the key for an invalid value.
ZG_API HFGeneration hf_generation(const std::string& json, const std::string& path,
                                  const BeamOptions& absent);

/// True if a config.json describes a model of this file: by its model_type. FileError if the text
/// is not a JSON object.
ZG_API bool is_hf_seq2seq(const std::string& json, const std::string& path);
/// Reads a config.json. Absent keys have transformers' defaults. Throws FileError with the key if a
/// value is invalid. Throws Unsupported with the key for a feature that Seq2SeqConfig does not
/// have: another model_type (blenderbot-small is another model) or activation_function, embeddings
/// that are not tied, layerdrop, quantized weights. Errors begin with `path`.
ZG_API HFSeq2Seq hf_seq2seq(const std::string& json, const std::string& path);
/// Replaces `generation` in `model` by the options of a generation_config.json. Throws FileError.
ZG_API void read_hf_generation(const std::string& json, const std::string& path, HFSeq2Seq& model);

/// Returns a config.json that transformers loads and hf_seq2seq() reads back as the same model.
/// Throws Unsupported, with the field, for a model that transformers does not have: a BlenderBot
/// with norms behind the layers, a BART with another position_offset, ...
ZG_API std::string hf_json(const Seq2SeqConfig& config, DType dtype = DType::f32);
/// Returns a generation_config.json with these options. `read`: the text of an older file, whose
/// other members, such as temperature, are kept.
ZG_API std::string hf_generation_json(const Seq2SeqConfig& config, const BeamOptions& options,
                                      const std::string& read = {});

/// Every parameter of the model, in byte order of names. The copies of the token table that
/// encoder, decoder and head of transformers have are not listed.
ZG_API std::vector<HFTensor> hf_tensors(const Seq2SeqConfig& config);

/// The folder of an encoder-decoder written by transformers.
using Seq2SeqFolder = HFFolder<HFSeq2Seq>;

/// Writes DIR/model.safetensors, config.json and generation_config.json, as
/// export_hugging_face() in hugging_face.h does for decoders.
ZG_API std::string export_hugging_face(const WeightSource& weights, const HFSeq2Seq& model,
                                       const std::string& directory,
                                       const std::function<void(FileSet& files)>& add = {},
                                       DType dtype = DType::f32);

}  // namespace zg::models
