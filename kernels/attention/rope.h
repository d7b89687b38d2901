#pragma once

#include <cstdint>
#include <vector>

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/api.h"

namespace zg {

/// How the frequencies of rotary positions are changed for texts that are longer than those of the
/// first training.
enum class RopeScaling : uint8_t {
  none,
  linear,  ///< all divided by `factor`. Chen et al. 2023, arXiv:2306.15595
  llama3,  ///< low ones divided by `factor`, high ones kept, those between interpolated (Llama 3.1)
  yarn,    ///< as llama3, by the number of turns. Peng et al. 2023, arXiv:2309.00071, section 3.2
  longrope  ///< each divided by a factor of its own. Ding et al. 2024, arXiv:2402.13753
};
ZG_API const char* name_of(RopeScaling scaling);

/// Rotary positions. Su et al. 2021, arXiv:2104.09864. The names and defaults are those of Hugging
/// Face's `rope_scaling`.
struct RopeOptions {
  double theta = 10000.0;  ///< frequency i of R / 2 is theta^(-2 i / R) radians a token
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;
  int64_t original_positions = 8192;  ///< all but linear: the longest text of the first training
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3
  double beta_fast = 32.0, beta_slow = 1.0;              ///< yarn: turns in the longest text
  /// yarn, longrope: factor of cosine and sine; 0: 0.1 ln(factor) + 1, with longrope
  /// sqrt(1 + ln(factor) / ln(original_positions)).
  double attention_factor = 0.0;
  bool truncate = true;  ///< yarn: the borders of the ramp are whole numbers
  /// longrope: R / 2 factors for texts of up to original_positions, and for longer ones.
  std::vector<double> short_factors = {}, long_factors = {};
  bool operator==(const RopeOptions&) const = default;
};
ZG_API void validate(const RopeOptions&);  ///< ConfigError naming the field

/// The R / 2 frequencies, in radians a token: those that transformers 5 and PyTorch compute on a
/// CPU with AVX-512, about one in a thousand to 1 ulp. (With AVX2 some of theirs differ from these
/// by 1 ulp where 64 does not divide R.) The bits are the same on every processor. ConfigError
/// unless R is even and at least 2. `positions`: tokens of the text, for longrope.
ZG_API std::vector<float> rope_frequencies(const RopeOptions& options, int64_t R,
                                           int64_t positions = 0);
/// The table of Rope: [positions, R], f32 | f64. Row p has the cosines of the R / 2 angles p *
/// frequency, then their sines. The angles are rounded to f32, as in transformers. f32 cosines and
/// sines are the nearest to them; PyTorch's differ by at most 1 ulp. With `first` above 0 the table
/// has the rows from that one on.
ZG_API Tensor rope_table(const RopeOptions& options, int64_t R, int64_t positions, DType dtype,
                         const Device& device, int64_t first = 0);

/// Turns the first R elements of each head by the angles of its token's position, in the layout of
/// Hugging Face's transformers: elements i and i + R / 2 form the pair of frequency i. The other
/// elements of a head are copied.
struct Rope {
  Tensor x;          ///< [B, T, H * D] f64 | f32 | bf16 | f16
  Tensor y;          ///< out, like x; may be x
  Tensor table;      ///< [positions, R] accumulator dtype, from rope_table(); R is even
  Tensor positions;  ///< [B, T] i32: rows of the table. Absent: token t has first_position + t
  int64_t heads = 1;
  int64_t first_position = 0;
  bool backward = false;  ///< turns the other way: x is the gradient of y, y that of x
};
ZG_API void validate(const Rope&);  ///< ShapeError, DTypeError
inline std::vector<Operand> operands(const Rope& a) {
  return {{"x", a.x}, {"table", a.table}, {"positions", a.positions}, {"y", a.y, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<Rope> rope;
}

}  // namespace zg
