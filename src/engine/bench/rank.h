// One rank of the released model with synthetic weights and sequences, made on the device: dense weights, its share of
// the experts, and as much of its share of the engram tables as there is room for.
//
// There are no draft layers and no vision tower: neither is part of a step of text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/memory_plan.h"
#include "engine/bench/routing.h"

namespace mdi::bench {

inline constexpr int32_t kRanks = 4;  // EP4 x DP4

struct RankOptions {
  int64_t rows = 4096;       // new tokens a step
  int64_t sequences = 1;     // of this rank
  int64_t context = 131072;  // tokens of each, the new ones included
  Routing routing = Routing::kRandom;
  uint64_t seed = 1;
};

// Where the engram tables of this rank are: its share is on the device, or missing (look-ups then go to fewer rows).
struct EngramPlacement {
  uint64_t device = 0, host = 0, absent = 0;
  std::vector<int64_t> rows;  // of each table, on the device
};

// The model that a rank runs: the released one without drafts and vision.
ModelConfig rank_config();

// The engram rows that fit beside everything else into `free` bytes. Throws mdi::Error with the plan when a rank does
// not fit even without tables; `device` names the GPU there.
EngramPlacement place_engram(const ModelConfig& config, const RankOptions& options, uint64_t free,
                             const std::string& device, MemoryPlan& plan);

// One line: what a rank with its whole share of the tables needs, for the error of a machine that has no GPU for it.
std::string plan_summary(const ModelConfig& config, const RankOptions& options);

}  // namespace mdi::bench

#ifdef MDI_WITH_CUDA

#include <memory>

#include "engine/bench/context.h"
#include "model/forward.h"

namespace mdi::bench {

struct Rank {
  RankOptions options;
  MemoryPlan plan;
  EngramPlacement engram;
  std::string device;
  uint64_t device_total = 0, device_free = 0;
  double seconds = 0;                   // to make it
  std::vector<ExpertLoad> expert_load;  // a layer each

  std::unique_ptr<BenchContext> context;  // outlives what follows
  std::unique_ptr<Model> model;
  DeviceBuffer weights, route_index, route_weight, gathered, partial;
  StatePools state;
  std::unique_ptr<StepBuffers> buffers;
  std::vector<int32_t> blocks;  // tables of all sequences, one behind the other
  std::vector<int32_t> tokens;  // the step's new tokens

  const ModelConfig& config() const { return model->config(); }
  int64_t blocks_each() const { return blocks_for(options.context); }
};

// Looks at the GPU first: an error says that there is none, that it is of another architecture, or what does not fit,
// before anything is made.
Rank make_rank(const RankOptions& options);

// The step: every sequence's last rows / sequences tokens are new; the last token of each is sampled. kept: how many of
// a sequence's new tokens the upper layers compute (all: exact).
Step rank_step(const Rank& rank, int64_t kept, ReplayForm form);

}  // namespace mdi::bench

#endif
