#pragma once

#include "tools/options/options.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/lora.h"

// The flags of LoRA's adapters.
namespace zg::tools {

/// The same for the library.
models::LoraConfig lora_of(const LoraOptions& options);
LoraOptions lora_options(const models::LoraConfig& lora);

/// Sets options.lora to `adapter`, the adapters in the folder of --init-adapter, if that is given.
/// Throws ConfigError for a flag that differs from it, for flags of adapters without --lora, and
/// for adapters without a base; Unsupported for an encoder-decoder. Call it when a checkpoint's
/// options are applied.
void resolve_lora(TrainOptions& options, const std::optional<LoraOptions>& adapter);

/// --adapter and --base of eval, generate and export.
Flag adapter_flag(AdapterPaths& paths);
Flag base_flag(AdapterPaths& paths);

}  // namespace zg::tools
