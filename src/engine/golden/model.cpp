#include "engine/golden/model.h"

#include <exception>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/engram_token_map.h"
#include "core/error.h"
#include "engine/golden/backends.h"
#include "engine/golden/images.h"
#include "engine/golden/prompt.h"
#include "model/model.h"
#include "model/place.h"

namespace mdi::golden {
namespace {

namespace fs = std::filesystem;

Model load(const fs::path& dir) {
  Checkpoint checkpoint = Checkpoint::open(dir);
  std::vector<int32_t> token_map;
  if (!checkpoint.config().engram_layer_ids.empty()) {
    token_map = load_engram_token_map(dir / "engram_token_map.json", checkpoint.config());
  }
  return load_model(std::move(checkpoint), std::move(token_map));
}

void check_file(const fs::path& path, const std::string& prefix, Context& context, const Model& model,
                const Oracle* oracle, const TwoRuns& two_runs, Report& report) {
  const std::string name = path.filename().string();
  const std::string inner = prefix + path.stem().string() + "/";
  if (!report.may_want(inner)) return;
  try {
    GoldenFile file(path, name);
    if (file.has("input.tokens")) {
      check_prompt({context, model, file, two_runs, report, path.parent_path().parent_path(), name, inner, oracle});
    } else if (file.has("image0.grid") && context.ops->vision_attention == nullptr) {
      report.skip(inner + "*", "this backend does not run the vision tower");
    } else if (file.has("image0.grid")) {
      check_images(context, model, path.parent_path().parent_path(), file, inner, report);
    } else {
      report.skip(inner + "*", "neither a prompt nor images: there is no input.tokens and no image0.grid");
    }
  } catch (const std::exception& e) {
    report.fail(inner + "*", e.what());
  }
}

}  // namespace

void check_checkpoint(const fs::path& dir, const std::string& prefix, Context& cpu, Context* device, Report& report) {
  try {
    Model model = load(dir);
    std::optional<Model> mapped;
    FolderDifference folder;
    std::optional<Oracle> oracle;
    DeviceBuffer placed;
    if (device != nullptr) {
      mapped = load(dir);
      oracle.emplace(Oracle{cpu, *mapped, folder});
      placed = place_weights(*device, model);
    }
    Context& context = device != nullptr ? *device : cpu;
    TwoRuns two_runs;
    if (fs::exists(dir / "two_runs.json")) two_runs = TwoRuns(dir / "two_runs.json");
    std::set<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(dir / "expected")) {
      if (entry.path().extension() == ".safetensors") files.insert(entry.path());
    }
    if (files.empty()) throw Error((dir / "expected").string(), "expected files of stored outputs, found none");
    for (const fs::path& file : files) {
      check_file(file, prefix, context, model, oracle ? &*oracle : nullptr, two_runs, report);
    }
    report_folder(folder, prefix, report);
  } catch (const std::exception& e) {
    report.fail(prefix + "checkpoint", e.what());
  }
}

}  // namespace mdi::golden
