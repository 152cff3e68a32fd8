// The operator cases of a golden folder (ops/ops.safetensors, ops/params.json), each through the CPU backend's
// reference functions.
#pragma once

#include <filesystem>
#include <string>

#include "core/thread_pool.h"
#include "engine/golden/case.h"
#include "engine/golden/report.h"

namespace mdi::golden {

// Checks every case of one file. `folder` ("ops/") goes before the names. A case that lacks a tensor or a parameter, or
// whose shapes do not fit together, is a FAIL of that case; an operator that this build does not have is a SKIP.
void check_ops(const std::filesystem::path& tensors, const std::filesystem::path& parameters, const std::string& folder,
               ThreadPool& pool, Report& report);

// image_grid.json: image sizes and the grids that follow, exact; sizes that the reference rejects must be refused.
void check_image_grid(const std::filesystem::path& file, const std::string& folder, Report& report);

// The cases of one operator each; golden_ops.cpp has the table of names.
void check_act_quant(const OpsCase& c);
void check_fp4_quant_e8m0(const OpsCase& c);
void check_fp4_quant_e4m3(const OpsCase& c);
void check_fp8_gemm(const OpsCase& c);
void check_fp4_gemm(const OpsCase& c);
void check_linear_fp8(const OpsCase& c);
void check_rms_norm(const OpsCase& c);
void check_rope(const OpsCase& c);
void check_hc_split(const OpsCase& c);
void check_hc_pre(const OpsCase& c);
void check_hc_post(const OpsCase& c);
void check_gate(const OpsCase& c);
void check_expert(const OpsCase& c);
void check_sparse_attention(const OpsCase& c);
void check_select_candidates(const OpsCase& c);
void check_compress_index(const OpsCase& c);
void check_engram_hash(const OpsCase& c);
void check_engram(const OpsCase& c);
void check_markov_head(const OpsCase& c);
void check_confidence_head(const OpsCase& c);

// Rope parameters as params.json has them ({dim, original_seq_len, theta, ...}), checked. Throws mdi::Error.
std::vector<float> rope_table_of(const OpsCase& c);

}  // namespace mdi::golden
