"""What tools/gpu_check and tools/hpu_check run, in which order and for how long. Only data: the steps are methods of
the classes in gpu.py and hpu.py. First come the steps whose failure would stop all others, and the results that
matter most."""

TOKENS = 16 * 1024  # of a training step
GPT2_SIZES = ["--tied", "--vocab-size", "50257", "--block-size", "1024", "--dropout", "0", "--precision", "bf16"]
GPT2 = ["--model-type", "gpt2", *GPT2_SIZES]
GPT2_XL = ["--model-type", "gpt2-xl", *GPT2_SIZES]
GPT2_BLOCK = ["--n-layer", "1", "--n-head", "12", "--n-embd", "768", *GPT2_SIZES]
BATCHES = [["--batch-size", "16"], ["--batch-size", "8", "--grad-accum", "2"], ["--batch-size", "4", "--grad-accum", "4"]]
OFFLOAD = ["--zero-stage", "2", "--offload-optimizer", "host"]

# Groups of test cases by doctest's filters. Each runs in its own process. So an error after which the device cannot be
# used, or a kernel that never ends, loses only the rest of its group.
PRODUCTS = {"loss, matmul": "--source-file=*/kernels/loss/*,*/kernels/matmul/*",
            "ops": "--source-file=*/kernels/ops_test.cpp"}
TILES = {"attention": "--source-file=*/kernels/attention/attention_test.cpp",
         "masks": "--source-file=*/kernels/attention/attention_masks_test.cpp",
         "rows": "--source-file=*/kernels/movement/*,*/kernels/norm/*,*/kernels/reduce/*"}
KERNELS = {**TILES, **PRODUCTS,
           "alibi, rope": "--source-file=*/kernels/attention/alibi*,*/kernels/attention/rope*",
           "elementwise": "--source-file=*/kernels/elementwise/*",
           "optimizer": "--source-file=*/kernels/optimizer/*"}
WIDE = {"wide tiles": "--source-file=*/hpu/matmul_wide_tiles_test.cpp"}
OTHERS = {"others": "--source-file-exclude=*/kernels/*/*,*/kernels/ops_test.cpp"}
ENGINES = {"faults, scratch": "--source-file=*/hpu/faults_test.cpp,*/hpu/workspace_test.cpp,*/hpu/rounds_test.cpp",
           "pinned memory": "--test-case=kernels compute on pinned operands*,copies and fills of pinned memory*",
           "ranks": "--source-file=*/accelerator/comm_test.cpp",
           "operators": "--source-file=*/accelerator/operators_test.cpp,*/accelerator/values_test.cpp",
           "engines": "--source-file=*/accelerator/engine_test.cpp,*/accelerator/whole_update_test.cpp"}

# {device: {part: (its seconds, [(step, its seconds, seconds of each of its programs, method, arguments...)])}}
PARTS = {
    "gpu": {
        "truth": (240, [
            ("info", 20, 15, "info"),
            ("faults", 60, 15, "faults"),
            ("twins", 40, 30, "twins"),
            ("tests, own products", 100, 40, "tested", {**KERNELS, **OTHERS}, {"ZG_CUDA_MATMUL": "own"}),
            ("tests, cuBLASLt", 40, 30, "tested", PRODUCTS, {"ZG_CUDA_MATMUL": "cublaslt"}),
            ("training", 40, 30, "trained", 30, []),
            ("124M twice", 40, 20, "repeated"),
            ("matmul algorithms", 50, 45, "algorithms"),
            ("sanitizers", 100, 45, "sanitizers")]),
        "numbers": (300, [
            ("info", 20, 15, "info"),
            ("step, 124M", 40, 30, "bench_step", GPT2, BATCHES),
            ("step, 1.5B", 70, 40, "bench_step", GPT2_XL, BATCHES),
            ("PyTorch, steps", 50, 45, "measured_peers", "steps"),
            ("plan beside trace", 40, 30, "traced"),
            ("kernels, bf16", 70, 65, "bench_kernels", " bf16$"),
            ("PyTorch, kernels", 50, 45, "measured_peers", "kernels"),
            ("speed of light", 60, 55, "speed_of_light"),
            ("step, 124M, measured algorithms", 30, 25, "step_algorithms"),
            ("training, offload", 40, 30, "trained", 10, OFFLOAD),
            ("kernels, others", 90, 85, "bench_kernels", " (f64|f32|f16)$")]),
    },
    "hpu": {
        "truth": (540, [
            ("info", 40, 15, "info"),
            ("faults", 180, 90, "faults"),  # the driver compiles each kernel at its first use
            ("built-in functions", 60, 50, "built_in_functions"),
            ("training beside the CPU", 120, 90, "beside_cpu"),
            ("tests, portable", 150, 90, "tested", KERNELS, {"ZG_HPU_VARIANT": "portable"}),
            ("tests, sub_groups", 90, 80, "tested", {**TILES, **PRODUCTS}, {"ZG_HPU_VARIANT": "sub_groups"}),
            ("tests, dpas", 90, 80, "tested", {**TILES, **PRODUCTS, **WIDE}, {"ZG_HPU_VARIANT": "dpas"}),
            ("tests of ranks and engines", 120, 90, "tested", ENGINES, {})]),
        "numbers": (300, [
            ("info", 40, 15, "info"),
            ("training", 90, 80, "trained", 10, []),
            ("step, 124M", 60, 50, "bench_step", GPT2, BATCHES),
            ("plan beside trace", 60, 50, "traced"),
            ("kernels, bf16", 120, 115, "bench_kernels", " bf16$"),
            ("kernels, others", 120, 115, "bench_kernels", " (f64|f32|f16)$")]),
    },
}

SORT = ["--data", "sort", "--model-type", "gpt-nano", "--batch-size", "2"]
TINY = ["--n-layer", "1", "--n-head", "1", "--n-embd", "16", "--block-size", "8", "--vocab-size", "16", "--steps", "1",
        "--warm-up", "0"]  # for rehearsals
# Runs of two micro-batches that must give the bits of the first.
SAME_BITS = {"one rank": ["--grad-accum", "2"], "two ranks": ["--ranks", "2", "--zero-stage", "2"],
             "optimizer and parameters on the host": ["--grad-accum", "2", "--zero-stage", "3", "--offload-optimizer",
                                                      "host", "--offload-param", "host"]}
# {precision: how far the last loss of 20 steps may be from the CPU's}
CPU_LOSSES = {"f32": 0.02, "bf16": 0.1}

SANITIZED_TESTS = "*attention*,*cross_entropy*"

# Functions whose share of the card's limits Nsight Compute tells; the last are cuBLASLt's.
NSIGHT_KERNELS = ("forward", "backward_queries", "backward_keys", "norm_forward", "norm_backward", "map_kernel",
                  "backward_and_forward", "loss_of_rows", "optimizer_step", "fold_pieces", "sum_rows_by_id",
                  ".*(nvjet|gemm).*")
# The values that nvidia-smi is asked for (nothing is set): the columns of a record's "clocks" after the time.
CLOCKS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu")
# {part of a card's name: the rates to begin with}
PEAKS = {"H100": "h100-sxm.json", "H200": "h200-sxm.json", "A100": "a100-80gb-sxm.json",
         "emulated device": "h100-sxm.json"}
