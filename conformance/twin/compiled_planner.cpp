// FlashInfer's own MLAPlan behind one C function, built by a plain C++ compiler.
//
// MLAPlan is host code: of CUDA it needs the headers, two device queries, a copy and an error text.
// Those four runtime functions are defined here, hidden, so that no CUDA library is linked.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "compiled_pos_enc.h"
#include <flashinfer/attention/scheduler.cuh>

#define LOCAL __attribute__((visibility("hidden")))

namespace {
thread_local int sm_count = 0;
thread_local std::size_t copied_bytes = 0;

using flashinfer::MLAPlanInfo;

// FlashInfer 0.7: the schedule is left in host memory and its size returned.
using Staging = cudaError_t (*)(void*, std::size_t, void*, void*, std::size_t, MLAPlanInfo&,
                                std::size_t&, int*, int*, int*, std::uint32_t, std::uint32_t,
                                std::uint32_t, bool, cudaStream_t);
// FlashInfer 0.6: the schedule is copied to the device (here: onto itself) by the planner.
using Copying = cudaError_t (*)(void*, std::size_t, void*, void*, std::size_t, MLAPlanInfo&, int*,
                                int*, int*, std::uint32_t, std::uint32_t, std::uint32_t, bool,
                                cudaStream_t);

struct Input {
  int *qo_indptr, *kv_indptr, *kv_len;
  std::uint32_t rows, heads, head_dim;
};

// Workspace addresses only anchor offset arithmetic; the float one is never touched.
void* const kFloatBase = reinterpret_cast<void*>(std::uintptr_t{1} << 40);

cudaError_t call(Staging plan, const Input& in, void* host, std::size_t int_bytes,
                 std::size_t float_bytes, MLAPlanInfo& info, std::size_t& staged) {
  void* device = reinterpret_cast<void*>(std::uintptr_t{1} << 41);
  return plan(kFloatBase, float_bytes, device, host, int_bytes, info, staged, in.qo_indptr,
              in.kv_indptr, in.kv_len, in.rows, in.heads, in.head_dim, false, nullptr);
}

cudaError_t call(Copying plan, const Input& in, void* host, std::size_t int_bytes,
                 std::size_t float_bytes, MLAPlanInfo& info, std::size_t& staged) {
  cudaError_t status =
      plan(kFloatBase, float_bytes, host, host, int_bytes, info, in.qo_indptr, in.kv_indptr,
           in.kv_len, in.rows, in.heads, in.head_dim, false, nullptr);
  staged = copied_bytes;
  return status;
}
}  // namespace

extern "C" {
LOCAL cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
LOCAL cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? sm_count : 0;
  return cudaSuccess;
}
LOCAL cudaError_t CUDARTAPI cudaMemcpyAsync(void*, const void*, std::size_t bytes, cudaMemcpyKind,
                                            cudaStream_t) {
  copied_bytes = bytes;
  return cudaSuccess;
}
LOCAL const char* CUDARTAPI cudaGetErrorString(cudaError_t) { return "compiled without CUDA"; }

// 0: planned; 1: FlashInfer threw, its text is in `error`; 2: it returned what nobody expects.
__attribute__((visibility("default"))) int twin_mla_plan(
    int* qo_indptr, int* kv_indptr, int* kv_len, unsigned rows, unsigned heads, unsigned head_dim,
    int num_sms, void* staging, std::size_t int_bytes, std::size_t float_bytes,
    std::int64_t* info_out, std::size_t info_capacity, std::size_t* info_count,
    std::size_t* staged_bytes, char* error, std::size_t error_bytes) {
  sm_count = num_sms;
  copied_bytes = 0;
  MLAPlanInfo info{};
  std::size_t staged = 0;
  try {
    Input in{qo_indptr, kv_indptr, kv_len, rows, heads, head_dim};
    cudaError_t status =
        call(&flashinfer::MLAPlan<int>, in, staging, int_bytes, float_bytes, info, staged);
    if (status != cudaSuccess) {
      std::snprintf(error, error_bytes, "CUDA error %d", static_cast<int>(status));
      return 2;
    }
  } catch (const std::exception& thrown) {
    std::snprintf(error, error_bytes, "%s", thrown.what());
    return 1;
  }
  const std::vector<std::int64_t> values = info.ToVector();
  if (values.size() > info_capacity) {
    std::snprintf(error, error_bytes, "plan-info has %zu integers", values.size());
    return 2;
  }
  std::memcpy(info_out, values.data(), values.size() * sizeof(std::int64_t));
  *info_count = values.size();
  *staged_bytes = staged;
  return 0;
}
}
