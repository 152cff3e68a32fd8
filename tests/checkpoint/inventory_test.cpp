#include "checkpoint/inventory.h"

#include <map>
#include <set>

#include "support.h"

namespace mdi {
namespace {

struct Sum {
  int64_t tensors = 0, bytes = 0;
};

Sum sum_of(const std::vector<TensorSpec>& specs, Part part) {
  Sum sum;
  for (const auto& spec : specs) {
    if (spec.part != part) continue;
    ++sum.tensors;
    sum.bytes += spec.bytes();
  }
  return sum;
}

TEST(Inventory, ReleasedModelByPart) {  // spec checkpoint.md section 3
  const auto specs = inventory(load_config(test::data_dir() / "config" / "released.json"));
  EXPECT_EQ(specs.size(), 96085u);
  const struct {
    Part part;
    int64_t tensors, bytes;
  } parts[] = {
      {Part::kRoutedExperts, 92160, 288'777'830'400},
      {Part::kEngram, 12, 203'073'076'240},
      {Part::kDraftExperts, 2304, 7'219'445'760},
      {Part::kAttention, 520, 5'069'721'600},
      {Part::kSharedExperts, 240, 1'416'960'000},
      {Part::kEmbedHead, 2, 2'647'654'400},
      {Part::kVision, 263, 970'506'240},
      {Part::kDraftDense, 97, 713'428'872},
      {Part::kHyperConnections, 320, 158'114'240},
      {Part::kGates, 120, 157'409'280},
      {Part::kIndexers, 32, 45'130'752},
      {Part::kCompressors, 11, 36'704'256},
      {Part::kFinalNorm, 4, 40'960},
  };
  int64_t total = 0;
  for (const auto& expected : parts) {
    const Sum sum = sum_of(specs, expected.part);
    EXPECT_EQ(sum.tensors, expected.tensors) << part_name(expected.part);
    EXPECT_EQ(sum.bytes, expected.bytes) << part_name(expected.part);
    total += sum.bytes;
  }
  EXPECT_EQ(total, 510'286'023'000);
}

TEST(Inventory, ReleasedLayersByKind) {  // spec checkpoint.md section 1: tensors per layer
  const auto specs = inventory(load_config(test::data_dir() / "config" / "released.json"));
  std::map<int, int> per_layer;
  for (const auto& spec : specs) ++per_layer[spec.layer];
  for (int layer = 0; layer < 40; ++layer) {
    int expected = 2334;
    if (layer == 24 || layer == 28 || layer == 32 || layer == 36) expected += 3;
    if (layer == 2 || layer == 8 || layer == 14) expected += 8;
    if (layer == 20) expected += 7;
    if (layer == 1 || layer == 14) expected += 6;
    EXPECT_EQ(per_layer[layer], expected) << layer;
  }
}

TEST(Inventory, FlatFormGivesTheSameList) {
  const auto nested = inventory(load_config(test::data_dir() / "config" / "released.json"));
  const auto flat = inventory(load_config(test::data_dir() / "config" / "released_flat.json"));
  ASSERT_EQ(nested.size(), flat.size());
  for (size_t i = 0; i < nested.size(); ++i) {
    ASSERT_EQ(nested[i].name, flat[i].name);
    ASSERT_EQ(nested[i].shape, flat[i].shape);
  }
}

// The golden checkpoints came from another program: what their files hold is the list.
TEST(Inventory, EqualsTheGoldenFiles) {
  for (const char* name : {"tiny-text", "tiny-vision"}) {
    const test::Path dir = test::golden(name);
    test::Json held;
    for (const auto& file : std::filesystem::directory_iterator(dir)) {
      if (file.path().extension() == ".safetensors") held.update(test::split_safetensors(file.path()).header);
    }
    held.erase("__metadata__");
    const auto specs = inventory(load_config(dir));
    EXPECT_EQ(specs.size(), held.size());
    std::set<std::string> names;
    for (const auto& spec : specs) {
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
      ASSERT_TRUE(held.contains(spec.name)) << spec.name;
      EXPECT_EQ(held[spec.name]["dtype"].get<std::string>(), dtype_name(spec.dtype)) << spec.name;
      const std::vector<int64_t> shape(spec.shape.begin(), spec.shape.begin() + spec.rank);
      EXPECT_EQ(held[spec.name]["shape"].get<std::vector<int64_t>>(), shape) << spec.name;
    }
  }
}

TEST(Inventory, FollowsOtherShapes) {
  const auto change = [](const std::function<void(test::Json&)>& edit) {
    test::Json config = test::Json::parse(test::read_file(test::golden("tiny-vision") / "config.json"));
    edit(config);
    std::map<std::string, TensorSpec> by_name;
    for (auto& spec : inventory(parse_config(config.dump(), "config.json"))) by_name[spec.name] = spec;
    return by_name;
  };
  {
    const auto specs = change([](test::Json& c) { c["text_config"]["hc_mult"] = 2; });
    EXPECT_EQ(specs.at("layers.0.hc_attn_fn").shape, (std::array<int64_t, 4>{8, 256}));
    EXPECT_EQ(specs.at("layers.1.engram.wkv.weight").shape, (std::array<int64_t, 4>{384, 192}));
  }
  {
    const auto specs = change([](test::Json& c) {
      c["text_config"]["num_nextn_predict_layers"] = 0;
      c["text_config"]["compress_ratios"] = {0, 2, 2, 1, 1};
      c["text_config"]["engram_layer_ids"] = test::Json::array();
    });
    for (const auto& [name, spec] : specs) {
      EXPECT_NE(name.rfind("mtp.", 0), 0u) << name;
      EXPECT_EQ(name.find("engram"), std::string::npos) << name;
    }
  }
  {  // no compressed rows anywhere
    const auto specs = change([](test::Json& c) {
      auto& text = c["text_config"];
      text["compress_ratios"] = {0, 0, 0, 0, 0, 0};
      text["kv_source_layer_ids"] = text["index_source_layer_ids"] = test::Json::array();
      text["candidate_source_layer_id"] = nullptr;
    });
    for (const auto& [name, spec] : specs) EXPECT_EQ(name.find("indexer"), std::string::npos) << name;
  }
  {  // two draft stages: the first has the input projection, the last the heads
    const auto specs = change([](test::Json& c) {
      c["text_config"]["num_nextn_predict_layers"] = 2;
      c["text_config"]["compress_ratios"].push_back(0);
    });
    EXPECT_EQ(specs.count("mtp.0.main_proj.weight"), 1u);
    EXPECT_EQ(specs.count("mtp.1.main_proj.weight"), 0u);
    EXPECT_EQ(specs.count("mtp.0.markov_head.head.weight"), 0u);
    EXPECT_EQ(specs.count("mtp.1.markov_head.head.weight"), 1u);
    EXPECT_EQ(specs.at("mtp.1.confidence_head.proj.weight").shape[1], 128 + 32);
  }
}

}  // namespace
}  // namespace mdi
