// The forms of the warpgroup product: D [64, N] += A [64, K] B [N, K]^T, fp32 sums, one warpgroup, asynchronous (frame
// in ptx.h). A lies in registers (rs) or in shared memory (ss), B in shared memory with K contiguous ("_mn": with N
// contiguous), both as ptx::descriptor_128 describes. K is 16 for bf16 and 32 for e4m3.
//
// Who holds what, w = warp of the warpgroup, g = lane / 4, q = lane % 4:
//   D: d[4 j + 0, 1] = row 16 w + g, columns 8 j + 2 q, + 1;  d[4 j + 2, 3] = row 16 w + g + 8, the same columns
//   A bf16: a[0] = row 16 w + g, k = 2 q, 2 q + 1; a[1] = row + 8; a[2] = k + 8; a[3] = row + 8, k + 8
//   A e4m3: a[0] = row 16 w + g, k = 4 q .. 4 q + 3; a[1] = row + 8; a[2] = k + 16; a[3] = row + 8, k + 16
// The assembly lists every accumulator as an operand, so the lists below are spelt out by macros.
#pragma once

#include <cstdint>

namespace mdi::cuda {

#define MDI_REGS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MDI_REGS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MDI_REGS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MDI_REGS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MDI_REGS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MDI_REGS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MDI_REGS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MDI_REGS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MDI_REGS_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define MDI_REGS_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define MDI_REGS_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define MDI_REGS_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define MDI_REGS_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define MDI_REGS_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define MDI_REGS_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define MDI_REGS_15 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define MDI_ACCS_0 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define MDI_ACCS_1 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define MDI_ACCS_2 \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define MDI_ACCS_3 \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define MDI_ACCS_4 \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define MDI_ACCS_5 \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define MDI_ACCS_6 \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define MDI_ACCS_7 \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define MDI_ACCS_8 \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define MDI_ACCS_9 \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define MDI_ACCS_10 \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define MDI_ACCS_11 \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define MDI_ACCS_12 \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define MDI_ACCS_13 \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define MDI_ACCS_14 \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define MDI_ACCS_15 \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define MDI_LIST_16 MDI_REGS_0
#define MDI_BOUND_16 MDI_ACCS_0
#define MDI_LIST_24 MDI_REGS_0 ", %8, %9, %10, %11"
#define MDI_BOUND_24 MDI_ACCS_0, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define MDI_LIST_32 MDI_REGS_0 MDI_REGS_1
#define MDI_BOUND_32 MDI_ACCS_0, MDI_ACCS_1
#define MDI_LIST_64 MDI_REGS_0 MDI_REGS_1 MDI_REGS_2 MDI_REGS_3
#define MDI_BOUND_64 MDI_ACCS_0, MDI_ACCS_1, MDI_ACCS_2, MDI_ACCS_3
#define MDI_LIST_96 MDI_REGS_0 MDI_REGS_1 MDI_REGS_2 MDI_REGS_3 MDI_REGS_4 MDI_REGS_5
#define MDI_BOUND_96 MDI_ACCS_0, MDI_ACCS_1, MDI_ACCS_2, MDI_ACCS_3, MDI_ACCS_4, MDI_ACCS_5
#define MDI_LIST_128 MDI_REGS_0 MDI_REGS_1 MDI_REGS_2 MDI_REGS_3 MDI_REGS_4 MDI_REGS_5 MDI_REGS_6 MDI_REGS_7
#define MDI_BOUND_128 MDI_ACCS_0, MDI_ACCS_1, MDI_ACCS_2, MDI_ACCS_3, MDI_ACCS_4, MDI_ACCS_5, MDI_ACCS_6, MDI_ACCS_7
#define MDI_LIST_144 MDI_REGS_0 MDI_REGS_1 MDI_REGS_2 MDI_REGS_3 MDI_REGS_4 MDI_REGS_5 MDI_REGS_6 MDI_REGS_7 MDI_REGS_8
#define MDI_BOUND_144 \
  MDI_ACCS_0, MDI_ACCS_1, MDI_ACCS_2, MDI_ACCS_3, MDI_ACCS_4, MDI_ACCS_5, MDI_ACCS_6, MDI_ACCS_7, MDI_ACCS_8
#define MDI_LIST_160 \
  MDI_REGS_0 MDI_REGS_1 MDI_REGS_2 MDI_REGS_3 MDI_REGS_4 MDI_REGS_5 MDI_REGS_6 MDI_REGS_7 MDI_REGS_8 MDI_REGS_9
#define MDI_BOUND_160 \
  MDI_ACCS_0, MDI_ACCS_1, MDI_ACCS_2, MDI_ACCS_3, MDI_ACCS_4, MDI_ACCS_5, MDI_ACCS_6, MDI_ACCS_7, MDI_ACCS_8, MDI_ACCS_9
#define MDI_LIST_192                                                                                            \
  MDI_REGS_0 MDI_REGS_1 MDI_REGS_2 MDI_REGS_3 MDI_REGS_4 MDI_REGS_5 MDI_REGS_6 MDI_REGS_7 MDI_REGS_8 MDI_REGS_9 \
      MDI_REGS_10 MDI_REGS_11
#define MDI_BOUND_192                                                                                         \
  MDI_ACCS_0, MDI_ACCS_1, MDI_ACCS_2, MDI_ACCS_3, MDI_ACCS_4, MDI_ACCS_5, MDI_ACCS_6, MDI_ACCS_7, MDI_ACCS_8, \
      MDI_ACCS_9, MDI_ACCS_10, MDI_ACCS_11
#define MDI_LIST_256                                                                                            \
  MDI_REGS_0 MDI_REGS_1 MDI_REGS_2 MDI_REGS_3 MDI_REGS_4 MDI_REGS_5 MDI_REGS_6 MDI_REGS_7 MDI_REGS_8 MDI_REGS_9 \
      MDI_REGS_10 MDI_REGS_11 MDI_REGS_12 MDI_REGS_13 MDI_REGS_14 MDI_REGS_15
#define MDI_BOUND_256                                                                                         \
  MDI_ACCS_0, MDI_ACCS_1, MDI_ACCS_2, MDI_ACCS_3, MDI_ACCS_4, MDI_ACCS_5, MDI_ACCS_6, MDI_ACCS_7, MDI_ACCS_8, \
      MDI_ACCS_9, MDI_ACCS_10, MDI_ACCS_11, MDI_ACCS_12, MDI_ACCS_13, MDI_ACCS_14, MDI_ACCS_15

// P, A.., B: numbers of the operands behind the N / 2 accumulators. TAIL: transposition flags, bf16 only.
#define MDI_WGMMA_RS(NAME, N, K, TYPES, TAIL, A0, A1, A2, A3, B, P)                                  \
  __device__ inline void NAME(float(&d)[N / 2], const uint32_t(&a)[4], uint64_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P                                             \
                 ", 0;\n"                                                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPES " {" MDI_LIST_##N       \
                 "}, "                                                                               \
                 "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1" TAIL ";\n}\n"          \
                 : MDI_BOUND_##N                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));             \
  }
#define MDI_WGMMA_SS(NAME, N, K, TYPES, TAIL, A, B, P)                                         \
  __device__ inline void NAME(float(&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P                                       \
                 ", 0;\n"                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPES " {" MDI_LIST_##N \
                 "}, %" #A ", %" #B ", p, 1, 1" TAIL ";\n}\n"                                  \
                 : MDI_BOUND_##N                                                               \
                 : "l"(a), "l"(b), "r"(accumulate));                                           \
  }
#define MDI_WGMMA_FORMS(N, A0, A1, A2, A3, B, P)                                  \
  MDI_WGMMA_RS(wgmma_bf16_rs, N, 16, "bf16.bf16", ", 0", A0, A1, A2, A3, B, P)    \
  MDI_WGMMA_RS(wgmma_bf16_rs_mn, N, 16, "bf16.bf16", ", 1", A0, A1, A2, A3, B, P) \
  MDI_WGMMA_RS(wgmma_e4m3_rs, N, 32, "e4m3.e4m3", "", A0, A1, A2, A3, B, P)       \
  MDI_WGMMA_SS(wgmma_bf16_ss, N, 16, "bf16.bf16", ", 0, 0", A0, A1, A2)           \
  MDI_WGMMA_SS(wgmma_e4m3_ss, N, 32, "e4m3.e4m3", "", A0, A1, A2)

MDI_WGMMA_FORMS(16, 8, 9, 10, 11, 12, 13)
MDI_WGMMA_FORMS(24, 12, 13, 14, 15, 16, 17)
MDI_WGMMA_FORMS(32, 16, 17, 18, 19, 20, 21)
MDI_WGMMA_FORMS(64, 32, 33, 34, 35, 36, 37)
MDI_WGMMA_FORMS(96, 48, 49, 50, 51, 52, 53)
MDI_WGMMA_FORMS(128, 64, 65, 66, 67, 68, 69)
MDI_WGMMA_FORMS(144, 72, 73, 74, 75, 76, 77)
MDI_WGMMA_FORMS(160, 80, 81, 82, 83, 84, 85)
MDI_WGMMA_FORMS(192, 96, 97, 98, 99, 100, 101)
MDI_WGMMA_FORMS(256, 128, 129, 130, 131, 132, 133)

#undef MDI_WGMMA_FORMS
#undef MDI_WGMMA_SS
#undef MDI_WGMMA_RS

}  // namespace mdi::cuda
