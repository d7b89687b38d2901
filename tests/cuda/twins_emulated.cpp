#include "tests/cuda/twins.cu"
#include "tests/cuda/twins_hopper.cu"
