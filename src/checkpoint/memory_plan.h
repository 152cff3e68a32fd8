// What one rank's device must hold for a configuration, buffer by buffer, before anything is allocated.
//
// The plan is a promise: whoever serves with these options allocates at most this. Where a buffer's size depends on
// what comes in (routing, context), its largest case is counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"

namespace mdi {

enum class Placement : uint8_t { kDevice, kHost, kFile };
const char* placement_name(Placement p);  // "device", "host", "file"

struct PlanOptions {
  int ep = 1;                             // ranks that share the experts and the engram tables
  int dp = 0;                             // of these, groups with sequences of their own; 0: as ep. Divides ep
  std::optional<uint64_t> device_memory;  // bytes of one device; none: nothing is compared
  uint64_t host_memory = 0;               // bytes of the host, for engram tables
  std::optional<int64_t> sequences;       // over all ranks; none: as many as fit (1 without device_memory)
  int64_t context = 0;                    // tokens a sequence may have; 0: 131,072 or the model's limit if smaller
  int64_t step_rows = 4096;               // new tokens a step and rank
  std::optional<Placement> engram;        // none: the best that fits
  int64_t snapshots = 64;                 // of slots, that a rank's prefix cache keeps in host memory
  bool drafts = true, vision = true;      // whether these parts are loaded, where the model has them
  // For what the driver, the libraries' workspaces and captured graphs take beside our buffers. An allowance, not a
  // measurement.
  uint64_t reserve = 1'500'000'000;
};

struct PlanLine {
  std::string name;
  uint64_t bytes = 0;
  std::string formula;  // with the names of the configuration
  std::string reason;   // why it is there and why it is that large
};

struct MemoryPlan {
  PlanOptions options;  // with dp, context and sequences filled in

  // -- weights of one rank
  uint64_t dense = 0;          // replicated: everything but routed experts and engram tables
  uint64_t experts = 0;        // ceil(experts / ep) of every layer
  uint64_t draft_experts = 0;  // likewise of the draft layers
  uint64_t without_engram() const { return dense + experts + draft_experts; }
  uint64_t engram_total = 0;   // the tables, all rows
  uint64_t engram_share = 0;   // a rank's share: total / ep
  uint64_t engram_device = 0;  // on the device: ceil(rows / ep) rows of each table, or 0
  uint64_t wo_a_widened = 0;   // what wo_a would take more as bf16; not part of the sum
  Placement engram = Placement::kDevice;

  // -- sequences of one rank
  uint64_t bytes_per_token = 0;  // growing cache
  uint64_t block_bytes = 0;      // of kPlanBlockTokens tokens
  uint64_t slot_bytes = 0;       // fixed state of a sequence
  int64_t sequences = 0;         // on this rank
  int64_t blocks = 0;

  std::vector<PlanLine> weights, state, workspaces;
  uint64_t weight_bytes = 0, state_bytes = 0, workspace_bytes = 0;
  uint64_t total = 0;           // all of these and the reserve
  uint64_t host_bytes = 0;      // engram tables in host memory, once per host
  uint64_t snapshot_bytes = 0;  // likewise the snapshots, of each rank
  bool fits = true;
  uint64_t rest = 0;     // free, where it fits
  uint64_t missing = 0;  // where it does not
  // Where it does not fit: each of these alone makes it fit, smallest sacrifice first.
  std::vector<std::string> remedies;
};

inline constexpr int64_t kPlanBlockTokens = 128;  // as kernels/cache_layout.h

// Engram tables go to the device if everything fits with them, else to the host if that has room, else they stay in the
// file; with `sequences` left open, one sequence has to fit beside them. Throws mdi::Error naming the option that is
// out of range.
MemoryPlan plan_memory(const ModelConfig& config, const PlanOptions& options);

}  // namespace mdi
