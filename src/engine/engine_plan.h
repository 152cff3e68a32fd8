// Which EngineOptions fit a machine: how many slots, blocks, rows a step and snapshots an engine may have, so that it
// finds all of its memory at start. What an engine would allocate is not estimated: its parts are made once with a
// backend that only counts (dry_run), so that the plan and the engine cannot differ.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/engine.h"

namespace mdi {

// What a user may fix; what is left open is filled in as large as it fits.
struct PlanRequest {
  std::optional<int32_t> slots;       // none: as many as fit, at most 64
  std::optional<int64_t> max_length;  // tokens; none: 131,072 or the model's limit, halved until it fits
  std::optional<int32_t> blocks;      // none: what the rest of the memory holds, at most slots of max_length
  std::optional<int32_t> max_rows;    // none: 2,048 on a GPU, 512 on the CPU, halved until it fits
  std::optional<int32_t> snapshots;   // none: what an eighth of the host's memory holds, at most 1,024
  // Bytes that the engine may take. device: none: what the GPU has free now; not looked at on the CPU. host: none: half
  // of what the machine has available; on the CPU the pools and buffers count too.
  std::optional<uint64_t> device_memory, host_memory;
  bool draft = true;  // whether the engine drafts, where the model has draft layers
};

// The sizes above in `base`, whose other fields stay as they are. `context` is the one that the engine will run on and
// holds the weights already. Throws mdi::Error that says what does not fit, by how much, and which of the options
// --slots, --max-length, --blocks, --max-rows, --snapshots alone would make it fit.
EngineOptions plan_engine(const Model& model, const Context& context, const PlanRequest& request,
                          EngineOptions base = {});

// Bytes that an engine with these options allocates, by part.
struct EngineBytes {
  int64_t device = 0;     // of it:
  int64_t state = 0;      // blocks and slots
  int64_t buffers = 0;    // of a step, its logits included
  int64_t drafts = 0;     // of draft calls
  int64_t images = 0;     // of the vision tower
  int64_t graphs = 0;     // an allowance for recorded steps and what the driver keeps, on a GPU
  int64_t snapshots = 0;  // host memory
  int64_t host = 0;       // other host memory: what is fetched and staged
};
EngineBytes dry_run(const Model& model, const Context& context, const EngineOptions& options);

}  // namespace mdi
