#include "tests/cuda/twins.cu"
