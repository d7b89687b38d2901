#pragma once

// A kernel's HPU slot: the function of its name below zg::hpu, where the build has Level Zero. One
// that is missing is a link error.
#ifdef ZG_HPU
#define ZG_HPU_KERNEL(name) ::zg::hpu::name
#else
#define ZG_HPU_KERNEL(name) nullptr
#endif
