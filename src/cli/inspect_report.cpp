#include "cli/inspect_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/byte_size.h"

namespace mdi {

namespace {

std::string kind_of(const ModelConfig& c, int layer) {
  const int ratio = c.compress_ratios[static_cast<size_t>(layer)];
  if (ratio == 0) return "window only";
  std::string kind = c.is_kv_source(layer) ? "full" : c.is_index_source(layer) ? "reindex" : "reuse";
  kind += fmt::format(", ratio {}", ratio);
  if (layer == c.candidate_source_layer) kind += ", candidate source";
  if (!c.is_kv_source(layer) && c.is_index_source(layer) && c.candidate_source_layer >= 0 &&
      layer > c.candidate_source_layer) {
    kind += ", among candidates";
  }
  return kind;
}

std::string model_text(const Inspection& i) {
  const ModelConfig& c = i.config;
  std::string out;
  out += fmt::format("{}{}\n", i.path, i.has_files ? "" : " (configuration only)");
  out += fmt::format("  width {}, {} heads of {}, vocabulary {}, up to {} tokens\n", c.dim, c.n_heads, c.head_dim,
                     with_commas(static_cast<uint64_t>(c.vocab_size)),
                     with_commas(static_cast<uint64_t>(c.max_position_embeddings)));
  out += fmt::format("  {} layers: {} experts of width {}, {} active and {} shared; window {}\n", c.n_layers,
                     c.n_routed_experts, c.moe_inter_dim, c.n_activated_experts, c.n_shared_experts, c.window_size);
  for (const LayerKind& kind : layer_kinds(c)) {
    out += fmt::format("    {:<36} {:>3}   {}\n", kind.name, kind.layers.size(), ranges(kind.layers));
  }
  if (!c.engram_layer_ids.empty()) {
    std::string rows;
    for (const int64_t n : c.engram_num_embeddings) {
      rows += (rows.empty() ? "" : ", ") + with_commas(static_cast<uint64_t>(n));
    }
    out += fmt::format("    {:<36} {:>3}   {}, tables of {} rows\n", "with engram", c.engram_layer_ids.size(),
                       ranges(c.engram_layer_ids), rows);
  }
  if (c.n_mtp_layers > 0) {
    out += fmt::format("  {} draft layers: blocks of {}, {} experts, {} active, fed from layers {}\n", c.n_mtp_layers,
                       c.dspark_block_size, c.dspark_n_routed_experts, c.dspark_n_activated_experts,
                       ranges(c.dspark_target_layer_ids));
  }
  if (c.has_vision) {
    out += fmt::format("  vision: {} layers of width {}, up to {} tokens an image\n", c.vision.n_layers, c.vision.dim,
                       c.vision.max_n_token);
  }
  return out;
}

std::string parts_text(const Inspection& i) {
  std::string out = fmt::format("\n{:<36} {:>9} {:>19} {:>9}\n", "tensors by part", "tensors", "bytes", "GiB");
  PartSum all;
  const auto row = [&out](const char* name, const PartSum& p) {
    out += fmt::format("{:<36} {:>9} {:>19} {:>9.2f}\n", name, with_commas(static_cast<uint64_t>(p.tensors)),
                       with_commas(p.bytes), static_cast<double>(p.bytes) / (1 << 30));
  };
  for (size_t p = 0; p < i.parts.size(); ++p) {
    if (i.parts[p].tensors == 0) continue;
    row(part_name(static_cast<Part>(p)), i.parts[p]);
    all.tensors += i.parts[p].tensors;
    all.bytes += i.parts[p].bytes;
  }
  row("total", all);
  return out;
}

void append_lines(std::string& out, const char* title, uint64_t bytes, const std::vector<PlanLine>& lines) {
  out += fmt::format("  {:<34} {:>19}  {}\n", title, with_commas(bytes), size_text(bytes));
  for (const PlanLine& l : lines) {
    out +=
        fmt::format("    {:<32} {:>19}  {}\n    {:<52}  {}\n", l.name, with_commas(l.bytes), l.formula, "", l.reason);
  }
}

std::string engram_text(const MemoryPlan& m) {
  if (m.engram_total == 0) return {};
  std::string out = fmt::format("  engram tables: {} bytes, ", with_commas(m.engram_total));
  if (m.options.ep > 1) out += fmt::format("1/{} of them {}; ", m.options.ep, with_commas(m.engram_share));
  switch (m.engram) {
    case Placement::kDevice:
      return out + "on the device\n";
    case Placement::kHost:
      return out + "in host memory, once per host\n";
    case Placement::kFile:
      return out + "read from the file\n";
  }
  return out;
}

std::string plan_text(const MemoryPlan& m) {
  const PlanOptions& o = m.options;
  std::string out = fmt::format(
      "\nmemory plan of one rank: {} rank{} (EP{} x DP{}), {} sequence{} of {} tokens{}, {} new tokens a step\n", o.ep,
      o.ep == 1 ? "" : "s", o.ep, o.dp, m.sequences, m.sequences == 1 ? "" : "s",
      with_commas(static_cast<uint64_t>(o.context)), o.dp > 1 ? " on each" : "",
      with_commas(static_cast<uint64_t>(o.step_rows)));
  append_lines(out, "weights", m.weight_bytes, m.weights);
  out += fmt::format("    without engram tables {} bytes, {}; wo_a as bf16 would add {}\n",
                     with_commas(m.without_engram()), size_text(m.without_engram()), with_commas(m.wo_a_widened));
  out += engram_text(m);
  append_lines(out, "sequences", m.state_bytes, m.state);
  out += fmt::format("    {} bytes a token, blocks of {} tokens and {} bytes; a state slot {} bytes\n",
                     m.bytes_per_token, kPlanBlockTokens, with_commas(m.block_bytes), with_commas(m.slot_bytes));
  out += fmt::format("    in host memory {} snapshots of slots, {}\n", o.snapshots, size_text(m.snapshot_bytes));
  append_lines(out, "workspaces", m.workspace_bytes, m.workspaces);
  out +=
      fmt::format("  {:<34} {:>19}  allowance for driver, libraries and graphs\n", "reserve", with_commas(o.reserve));
  out += fmt::format("  {:<34} {:>19}  {}\n", "sum", with_commas(m.total), size_text(m.total));
  if (!o.device_memory) return out;
  out += fmt::format("  {:<34} {:>19}  {}\n", "device", with_commas(*o.device_memory), size_text(*o.device_memory));
  if (m.fits) {
    out += fmt::format("  {:<34} {:>19}  {}\n", "free", with_commas(m.rest), size_text(m.rest));
    return out;
  }
  out += fmt::format("does not fit: {} bytes ({}) too much. Any one of these makes it fit:\n", with_commas(m.missing),
                     size_text(m.missing));
  for (const std::string& remedy : m.remedies) out += "  " + remedy + "\n";
  return out;
}

nlohmann::ordered_json lines_json(const std::vector<PlanLine>& lines) {
  auto list = nlohmann::ordered_json::array();
  for (const PlanLine& l : lines) {
    list.push_back({{"name", l.name}, {"bytes", l.bytes}, {"formula", l.formula}, {"reason", l.reason}});
  }
  return list;
}

nlohmann::ordered_json plan_json(const MemoryPlan& m) {
  const PlanOptions& o = m.options;
  nlohmann::ordered_json j;
  j["ep"] = o.ep;
  j["dp"] = o.dp;
  j["context"] = o.context;
  j["step_rows"] = o.step_rows;
  j["sequences"] = *o.sequences;
  j["sequences_per_rank"] = m.sequences;
  j["dense_bytes"] = m.dense;
  j["expert_bytes"] = m.experts;
  j["draft_expert_bytes"] = m.draft_experts;
  j["without_engram_bytes"] = m.without_engram();
  j["engram_total_bytes"] = m.engram_total;
  j["engram_share_bytes"] = m.engram_share;
  j["engram_device_bytes"] = m.engram_device;
  j["engram_placement"] = placement_name(m.engram);
  j["wo_a_widened_bytes"] = m.wo_a_widened;
  j["bytes_per_token"] = m.bytes_per_token;
  j["block_tokens"] = kPlanBlockTokens;
  j["block_bytes"] = m.block_bytes;
  j["blocks"] = m.blocks;
  j["slot_bytes"] = m.slot_bytes;
  j["weights"] = lines_json(m.weights);
  j["state"] = lines_json(m.state);
  j["workspaces"] = lines_json(m.workspaces);
  j["weight_bytes"] = m.weight_bytes;
  j["state_bytes"] = m.state_bytes;
  j["workspace_bytes"] = m.workspace_bytes;
  j["reserve_bytes"] = o.reserve;
  j["total_bytes"] = m.total;
  j["host_bytes"] = m.host_bytes;
  j["snapshots"] = o.snapshots;
  j["snapshot_bytes"] = m.snapshot_bytes;
  if (o.device_memory) {
    j["device_bytes"] = *o.device_memory;
    j["fits"] = m.fits;
    j["free_bytes"] = m.rest;
    j["missing_bytes"] = m.missing;
    j["remedies"] = m.remedies;
  }
  return j;
}

}  // namespace

PartSums sum_parts(const std::vector<TensorSpec>& tensors) {
  PartSums sums;
  for (const TensorSpec& t : tensors) {
    PartSum& s = sums[static_cast<size_t>(t.part)];
    ++s.tensors;
    s.bytes += static_cast<uint64_t>(t.bytes());
  }
  return sums;
}

std::vector<LayerKind> layer_kinds(const ModelConfig& config) {
  std::vector<LayerKind> kinds;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const std::string name = kind_of(config, layer);
    auto at = std::find_if(kinds.begin(), kinds.end(), [&name](const LayerKind& k) { return k.name == name; });
    if (at == kinds.end()) at = kinds.insert(at, LayerKind{name, {}});
    at->layers.push_back(layer);
  }
  return kinds;
}

std::string ranges(const std::vector<int>& layers) {
  std::string out;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i;
    while (end + 1 < layers.size() && layers[end + 1] == layers[end] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", layers[i]);
    if (end > i) out += fmt::format("{}{}", end == i + 1 ? ", " : "-", layers[end]);
    i = end + 1;
  }
  return out;
}

std::string inspection_text(const Inspection& i) { return model_text(i) + parts_text(i) + plan_text(i.plan); }

std::string inspection_json(const Inspection& i) {
  const ModelConfig& c = i.config;
  nlohmann::ordered_json j;
  j["path"] = i.path;
  j["files_checked"] = i.has_files;
  j["model"] = {{"layers", c.n_layers},
                {"draft_layers", c.n_mtp_layers},
                {"dim", c.dim},
                {"heads", c.n_heads},
                {"head_dim", c.head_dim},
                {"vocab", c.vocab_size},
                {"experts", c.n_routed_experts},
                {"active_experts", c.n_activated_experts},
                {"window", c.window_size},
                {"max_context", c.max_position_embeddings},
                {"engram_layers", c.engram_layer_ids},
                {"vision", c.has_vision}};
  auto kinds = nlohmann::ordered_json::array();
  for (const LayerKind& k : layer_kinds(c)) kinds.push_back({{"kind", k.name}, {"layers", k.layers}});
  j["layer_kinds"] = kinds;
  auto parts = nlohmann::ordered_json::array();
  PartSum all;
  for (size_t p = 0; p < i.parts.size(); ++p) {
    const PartSum& s = i.parts[p];
    parts.push_back({{"part", part_name(static_cast<Part>(p))}, {"tensors", s.tensors}, {"bytes", s.bytes}});
    all.tensors += s.tensors;
    all.bytes += s.bytes;
  }
  j["parts"] = parts;
  j["tensors"] = all.tensors;
  j["bytes"] = all.bytes;
  j["plan"] = plan_json(i.plan);
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace mdi
