#include "engine/golden/folder.h"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/mapped_file.h"
#include "core/printable.h"
#include "engine/golden/file.h"
#include "engine/golden/model.h"
#include "engine/golden/ops.h"
#include "engine/load_cuda.h"
#include "kernels/cpu/backend.h"

namespace mdi::golden {
namespace {

namespace fs = std::filesystem;

constexpr JsonLimits kManifestLimits{.max_bytes = size_t{64} << 20, .max_depth = 16};

// What a folder is made of, as paths relative to it ("." for the folder itself), in ascending order.
struct Contents {
  std::set<fs::path> ops;  // files of operator cases
  std::set<fs::path> checkpoints, tokenizers;
};

void look_at(const fs::path& root, const fs::path& name, Contents& contents) {
  const fs::path dir = root / name;
  if (fs::is_regular_file(dir / "config.json") && fs::is_directory(dir / "expected")) contents.checkpoints.insert(name);
  if (fs::is_regular_file(dir / "cases.jsonl")) contents.tokenizers.insert(name);
  if (fs::is_regular_file(dir / "ops.safetensors")) contents.ops.insert(name / "ops.safetensors");
  if (!fs::is_regular_file(dir / "params.json")) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() == ".safetensors") contents.ops.insert(name / entry.path().filename());
  }
}

Contents contents_of(const fs::path& dir) {
  Contents contents;
  look_at(dir, ".", contents);
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    if (entry.is_directory()) look_at(dir, entry.path().filename(), contents);
  }
  return contents;
}

std::string prefix_of(const fs::path& name) { return name == "." ? "" : name.generic_string() + "/"; }

// A name from the manifest that stays inside the folder.
bool is_plain(const fs::path& relative) {
  return relative.is_relative() &&
         std::none_of(relative.begin(), relative.end(), [](const fs::path& part) { return part == ".."; });
}

bool same_shape(const nlohmann::json& listed, const TensorView& found) {
  if (!listed.is_array() || listed.size() != static_cast<size_t>(found.rank)) return false;
  for (size_t i = 0; i < listed.size(); ++i) {
    if (!listed[i].is_number_integer() || listed[i].get<int64_t>() != found.shape[i]) return false;
  }
  return true;
}

// Every file that the manifest lists is there and holds the tensors that it lists: a file that went missing must not
// make the check shorter without a word.
void check_manifest(const fs::path& dir, Report& report) {
  const MappedFile text(dir / "manifest.json");
  const nlohmann::json manifest = parse_json(text.text(), "manifest.json", kManifestLimits);
  const auto files = manifest.find("files");
  if (files == manifest.end() || !files->is_object()) throw Error("manifest.json", "expected an object 'files'");
  for (const auto& [name, tensors] : files->items()) {
    const std::string label = "manifest/" + printable(name);
    if (!is_plain(name)) {
      report.fail(label, "expected a path inside the folder");
      continue;
    }
    try {
      if (fs::path(name).extension() != ".safetensors") {
        if (!fs::is_regular_file(dir / name)) throw Error(name, "the manifest lists this file, there is none");
        continue;
      }
      GoldenFile file(dir / name, name);
      size_t same = 0;
      for (const auto& [tensor, entry] : tensors.items()) {
        if (!file.has(tensor)) throw Error(name, "the manifest lists a tensor '" + tensor + "', the file has none");
        const TensorView found = file.peek(tensor);
        if (!entry.is_object() || entry.value("dtype", "") != dtype_name(found.dtype) ||
            !same_shape(entry.value("shape", nlohmann::json()), found)) {
          throw Error(name, "tensor '" + tensor + "': the manifest says " + printable(entry.dump(), 80) +
                                ", the file has " + std::string(dtype_name(found.dtype)) + " " + shape_text(found));
        }
        ++same;
      }
      Quantity q;
      q.name = label;
      q.verdict = Verdict::kPass;
      q.compared = true;
      q.tolerance = std::to_string(same) + " tensors as listed";
      report.add(q);
    } catch (const std::exception& e) {
      report.fail(label, e.what());
    }
  }
}

}  // namespace

void check_folder(const fs::path& dir, int threads, Report& report, const std::string& device) {
  if (!fs::is_directory(dir)) throw Error(dir.string(), "expected a folder of golden data, found none");
  const std::unique_ptr<CpuContext> context = make_cpu_context(threads);
  const std::unique_ptr<Context> gpu = device == "cpu" ? nullptr : make_gpu_context();
  if (fs::exists(dir / "manifest.json") && report.may_want("manifest/")) {
    try {
      check_manifest(dir, report);
    } catch (const std::exception& e) {
      report.fail("manifest", e.what());
    }
  }
  const Contents contents = contents_of(dir);
  for (const fs::path& name : contents.tokenizers) {
    report.skip(prefix_of(name) + "*", "cases of a tokenizer: `mdi tokenize` runs them");
  }
  for (const fs::path& file : contents.ops) {
    const fs::path folder = file.parent_path();
    const std::string prefix = prefix_of(folder);
    if (!report.may_want(prefix)) continue;
    if (gpu != nullptr) {
      report.skip(prefix + "*", "operator cases are of the CPU's reference functions");
      continue;
    }
    check_ops(dir / file, dir / folder / "params.json", prefix, context->pool, report);
    const fs::path grids = dir / folder / "image_grid.json";
    if (fs::exists(grids)) check_image_grid(grids, prefix, report);
  }
  for (const fs::path& name : contents.checkpoints) {
    const std::string prefix = prefix_of(name);
    if (report.may_want(prefix)) check_checkpoint(dir / name, prefix, *context, gpu.get(), report);
  }
}

}  // namespace mdi::golden
