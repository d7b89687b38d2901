#pragma once

#include <cstddef>
#include <cstdint>

#include "zerograd/kernels/matmul/matmul.h"

// The functions that the *_simd.cpp sources of matmul define for each instruction set. Operands are
// multiplied as panels of 32-bit words, [steps][width] each: a word is one f32 (f16 and bf16 are
// widened, and the two steps of a pair of bf16 change places), or, on machines with bf16
// instructions, a pair of bf16 that are neighbours along K.
namespace zg::cpu {

/// A block of an operand that is to be packed into panels. Elements beyond its edges become 0.
struct PackBlock {
  const std::byte* source;
  DType dtype;           ///< f32 | bf16 | f16
  int64_t row_stride;    ///< elements between stored rows
  bool along_k;          ///< stored rows run along K, so that packing transposes them
  int64_t width, depth;  ///< elements along M or N, and along K
  int64_t panel;         ///< width of a panel
  float* panels;
};

/// How the sums of a block are written to c: c = activation(sums + bias). The argument of the
/// activation is written to pre_activation.
struct Epilogue {
  DType dtype;  ///< dtype of the operands and the bias
  DType c_dtype;
  std::byte *c, *pre_activation;  ///< rows c_row_stride apart; pre_activation may be null
  int64_t c_row_stride;
  const std::byte* bias;  ///< bias of the first column; may be null
  Activation activation;
};

/// One block of c: the products of some panels of a with some of b.
struct MultiplyBlock {
  /// The words of an operand. Either the panels of a packed slab at these steps of K; or,
  /// `in_place`, this block of the operand as it is stored.
  struct Words {
    const std::byte* data;
    /// Index along M or N at which the block begins; padded width of the slab, which has pitch
    /// words for each step.
    int64_t first = 0, pitch = 0;
    bool in_place = false;
    /// In place: bytes from row to row, and from step to step.
    int64_t row_bytes = 0, step_bytes = 0;
  };
  Words a;    ///< in place: row_bytes or step_bytes is the size of a word
  Words b;    ///< in place: row_bytes is the size of a word, and the columns fill whole vectors; or
              ///< `dots`
  bool dots;  ///< few rows: a and b are in place, both stored along K; a step is one element
  int64_t rows, columns, steps;
  float* sums;  ///< [rows, columns] f32, sums_row_stride apart; may be c
  int64_t sums_row_stride;
  bool add;  ///< add to `sums` instead of overwriting it
  /// Sums of other groups that are added to the complete ones: `folds` blocks fold_words apart,
  /// with rows fold_row_stride apart.
  const float* folded;
  int64_t folds, fold_words, fold_row_stride;
  const float* bias;  ///< added to complete sums; may be null
  bool finish;        ///< the epilogue is needed: `sums` is not c, or there is an activation, a
                      ///< pre_activation or another bias
  Epilogue epilogue;
};

struct MatmulTable {
  int64_t rows, columns;  ///< tile of c in registers; also the widths of panels of a and of b
  bool pairs;             ///< a pair of bf16 is one word
  void (*pack)(const PackBlock&);
  void (*multiply)(const MultiplyBlock&);
};

}  // namespace zg::cpu
