// Stands in for flashinfer/pos_enc.cuh, which holds device code that only nvcc can parse.
//
// Of it the scheduler needs the enumeration alone. The unqualified min and max that nvcc provides
// are supplied here as well.
#pragma once
#define FLASHINFER_POS_ENC_CUH_

#include <algorithm>

namespace flashinfer {
using std::max;
using std::min;
enum class PosEncodingMode { kNone = 0U, kRoPELlama = 1U, kALiBi = 2U };
}  // namespace flashinfer
