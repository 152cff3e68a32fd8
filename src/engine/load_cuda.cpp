#include "engine/load_cuda.h"

#include <spdlog/fmt/fmt.h>

#include "checkpoint/memory_plan.h"
#include "core/error.h"
#include "engine/gpu_memory.h"
#include "engine/load.h"
#include "model/place.h"

#ifdef MDI_WITH_CUDA
#include "kernels/cuda/context.h"
#endif

namespace mdi {

namespace {

// Scratch of one operation at a time, at most 4,096 rows a step: the largest is the experts' inner rows.
constexpr int64_t kWorkspaceBytes = int64_t{4} << 30;

std::string plan_lines(const char* title, const std::vector<PlanLine>& lines) {
  std::string text = fmt::format("\n  {}", title);
  for (const PlanLine& l : lines) text += fmt::format("\n    {:<34} {:>19}  {}", l.name, l.bytes, l.formula);
  return text;
}

}  // namespace

std::string plan_text(const MemoryPlan& plan, uint64_t free) {
  return fmt::format("the model needs {} bytes, {} are free, {} too few", plan.total, free, plan.missing) +
         plan_lines("weights", plan.weights) + plan_lines("sequences", plan.state) +
         plan_lines("workspaces", plan.workspaces) + fmt::format("\n  reserve {:>51}", plan.options.reserve);
}

void check_room(const ModelConfig& config, const std::string& device, uint64_t free) {
  PlanOptions options;
  options.device_memory = free;
  options.sequences = 1;
  options.engram = Placement::kDevice;
  options.reserve += static_cast<uint64_t>(kWorkspaceBytes);
  const MemoryPlan plan = plan_memory(config, options);
  if (plan.fits) return;
  throw Error(device,
              plan_text(plan, free) + fmt::format(", of which {} for one operation at a time", kWorkspaceBytes));
}

#ifdef MDI_WITH_CUDA

void need_gpu() { find_cuda_device(0); }

std::unique_ptr<Context> make_gpu_context() { return make_cuda_context(0, kWorkspaceBytes); }

uint64_t gpu_free_memory() { return static_cast<uint64_t>(find_cuda_device(0).free); }

void check_gpu_room(const ModelConfig& config) {
  const CudaDevice device = find_cuda_device(0);
  check_room(config, device.name, static_cast<uint64_t>(device.free));
}

#else

void need_gpu() { throw Error("device cuda", "this build has no CUDA backend: configure it with MDI_CUDA=ON"); }

std::unique_ptr<Context> make_gpu_context() {
  need_gpu();
  return nullptr;
}

uint64_t gpu_free_memory() {
  need_gpu();
  return 0;
}

void check_gpu_room(const ModelConfig&) { need_gpu(); }

#endif

LoadedModel load_for_cuda(const std::filesystem::path& dir) {
  // Everything that can be refused is refused before memory is taken: the GPU itself, the configuration, the room.
  need_gpu();
  check_gpu_room(load_config(dir / "config.json"));
  std::unique_ptr<Context> context = make_gpu_context();
  std::optional<Tokenizer> tokenizer;
  Model model = load_model_of(dir, tokenizer);
  DeviceBuffer placed = place_weights(*context, model);
  return {.context = std::move(context),
          .model = std::move(model),
          .tokenizer = std::move(tokenizer),
          .placed = std::move(placed)};
}

}  // namespace mdi
