#pragma once

// A kernel's CUDA slot: the function of its name below zg::cuda, where the build has CUDA. One that
// is missing is a link error.
#ifdef ZG_CUDA
#define ZG_CUDA_KERNEL(name) ::zg::cuda::name
#else
#define ZG_CUDA_KERNEL(name) nullptr
#endif
