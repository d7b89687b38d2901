#include "zerograd/kernels/optimizer/fold_gradient.h"

#include "zerograd/kernels/check.h"
#include "zerograd/kernels/optimizer/fold_gradient_cpu.h"
#include "zerograd/kernels/slots.h"

namespace zg {

void validate(const FoldGradient& args) {
  const char* op = "fold_gradient";
  check_dtype(op, "leaf", args.leaf, {DType::f32, DType::bf16, DType::f16});
  check_dtype(op, "sum", args.sum, {DType::f32, DType::bf16});
  check_shape(op, "sum", args.sum, args.leaf.shape());
  check_device(op, {&args.leaf, &args.sum});
  if (args.rounding != DType::f32 && args.rounding != DType::bf16 && args.rounding != DType::f16)
    throw DTypeError(std::string(op) + ": rounding is " + name_of(args.rounding) +
                     "; expected f32, bf16 or f16");
}

ZG_KERNEL(FoldGradient, fold_gradient)

}  // namespace zg
