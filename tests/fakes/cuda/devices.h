#pragma once

#include <cstddef>
#include <string>

#include "cuda_runtime_api.h"

// The state of the emulated devices: contexts, errors and address ranges.
namespace zg::emulator {

inline constexpr int device_count = 8;
inline bool is_device(int index) { return index >= 0 && index < device_count; }

/// The device of the current context, or else the one that the thread has chosen.
int current_device();
/// Most calls of the runtime create the context of the current device if the thread has none.
void need_context();
void select_device(int index);  ///< cudaSetDevice of CUDA 12: creates the context
CUresult retain_context(CUcontext* context, CUdevice device);
CUresult push_context(CUcontext context);
CUresult pop_context(CUcontext* context);

/// Remembers an error as the thread's last one and returns it. Success leaves it as it is.
cudaError_t remembered(cudaError_t error);
/// Begins a call of the runtime that works on the current device: creates the context. Returns the
/// device's sticky error.
cudaError_t begin_call();
/// Ends the process if a launch of this thread has failed and cudaGetLastError() was not called.
void expect_errors_asked(const char* call);
void note_failed_launch(const std::string& kernel, cudaError_t error);

/// From now on the calls of the device return the error.
void set_sticky_error(int device, cudaError_t error);

/// The planted failure of this call; 0: none.
int planted_failure(const char* call);

/// Host memory as registrations have it.
enum class HostRange { pageable, pinned, spans };  ///< spans: two registrations, or a part of one
HostRange host_range(const void* place, size_t bytes);
cudaError_t register_host(void* place, size_t bytes);
cudaError_t unregister_host(void* place);
/// The allocation of cudaHostAlloc that holds the address; null: none.
const std::byte* host_allocation(const void* place, size_t* bytes);
void note_host_allocation(void* place, size_t bytes);
void forget_host_allocation(void* place);
/// True for an address of memory that the process has. Small numbers are none.
bool is_in_process(const void* place);
/// True for an address of the program's code or constants.
bool is_in_program(const void* place);

void* driver_function(const std::string& symbol);

}  // namespace zg::emulator
