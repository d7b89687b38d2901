#pragma once

#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

namespace zg {

/// --device cpu|cuda|hpu.
Flag device_flag(Device::Type& type);
/// --use-hpu, DeepSpeed's examples' word for --device hpu.
Flag use_hpu_flag(Device::Type& type);
/// ConfigError where both were given.
void check_device(const Given& given);

/// Unsupported where such devices do not compute in the dtype: "`what`: ... f16 ...; try ...".
void require_dtype(Device::Type type, DType dtype, const std::string& what);

/// Unsupported, with the reason, where this machine has no such device.
void require_device(Device::Type type);
/// That too where what computes is no such device: its times are no figures.
void require_figures(Device::Type type);

}  // namespace zg
