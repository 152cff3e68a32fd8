#include "engine/load_cuda.h"

#include <spdlog/fmt/fmt.h>

#include "checkpoint/memory_plan.h"
#include "core/error.h"
#include "engine/load.h"
#include "model/place.h"

#ifdef MDI_WITH_CUDA
#include "kernels/cuda/context.h"
#endif

namespace mdi {

namespace {

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

#ifdef MDI_WITH_CUDA

namespace {

// Scratch of one operation at a time, at most 4,096 rows a step: the largest is the experts' inner rows.
constexpr int64_t kWorkspaceBytes = int64_t{4} << 30;

}  // namespace

std::unique_ptr<Context> make_gpu_context() { return make_cuda_context(0, kWorkspaceBytes); }

void check_gpu_room(const ModelConfig& config) {
  const CudaDevice device = find_cuda_device(0);
  PlanOptions options;
  options.device_memory = static_cast<uint64_t>(device.free);
  options.sequences = 1;
  options.engram = Placement::kDevice;
  options.vision = false;
  const MemoryPlan plan = plan_memory(config, options);
  if (plan.fits) return;
  throw Error(device.name, plan_text(plan, static_cast<uint64_t>(device.free)));
}

#else

std::unique_ptr<Context> make_gpu_context() {
  throw Error("device cuda", "this build has no CUDA backend: configure it with MDI_CUDA=ON");
}

void check_gpu_room(const ModelConfig&) { make_gpu_context(); }

#endif

LoadedModel load_for_cuda(const std::filesystem::path& dir) {
  std::unique_ptr<Context> context = make_gpu_context();
  check_gpu_room(load_config(dir / "config.json"));
  std::optional<Tokenizer> tokenizer;
  Model model = load_model_of(dir, tokenizer);
  DeviceBuffer placed = place_weights(*context, model);
  return {.context = std::move(context),
          .model = std::move(model),
          .tokenizer = std::move(tokenizer),
          .placed = std::move(placed)};
}

}  // namespace mdi
