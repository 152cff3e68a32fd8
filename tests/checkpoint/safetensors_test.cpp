#include "checkpoint/safetensors.h"

#include "checkpoint/safetensors_index.h"
#include "checkpoint/safetensors_writer.h"
#include "support.h"

namespace mdi {
namespace {

SafetensorsHeader parse(std::string_view header, std::string_view data = "") {
  return parse_safetensors(test::safetensors_bytes(header, data), "file");
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const auto header = parse(R"({"__metadata__":{"a":"b","c":""},)"
                            R"("s":{"dtype":"F32","shape":[],"data_offsets":[2,6]},)"
                            R"("empty":{"data_offsets":[2,2],"shape":[3,0],"dtype":"BF16"},)"
                            R"("b":{"dtype":"F8_E4M3","shape":[1,2,1],"data_offsets":[0,2]} }   )",
                            "abcdef");
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.tensors[0].rank, 3);
  EXPECT_EQ(header.tensors[1].name, "empty");
  EXPECT_EQ(header.tensors[2].name, "s");
  EXPECT_EQ(header.tensors[2].rank, 0);
  ASSERT_EQ(header.metadata.size(), 2u);
  EXPECT_EQ(header.metadata[0], std::pair(std::string("a"), std::string("b")));
  EXPECT_EQ(parse("{}").tensors.size(), 0u);
}

TEST(Safetensors, RefusesUnusualHeaders) {
  const struct {
    std::string header, words;
  } cases[] = {
      {R"({"__metadata__":{},"__metadata__":{}})", "'__metadata__' appears twice"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "metadata key 'a' appears twice"},
      {R"({"__metadata__":[]})", "expected an object for '__metadata__'"},
      {R"({"__metadata__":{"a":{}}})", "expected a string for 'a'"},
      {R"({"t":{"dtype":{},"shape":[],"data_offsets":[0,0]}})", "expected a string for 'dtype', found an object"},
      {R"({"t":{"dtype":"U8","shape":[[1]],"data_offsets":[0,0]}})", "found a list"},
      {R"({"t":{"dtype":"U8","shape":["1"],"data_offsets":[0,0]}})", "found the string '1'"},
      {R"({"t":{"dtype":"U8","shape":[true],"data_offsets":[0,0]}})", "found true"},
      {R"({"t":{"dtype":"U8","shape":[],"shape":[],"data_offsets":[0,0]}})", "'shape' appears twice"},
      {R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"data_offsets":[0,0]}})", "'data_offsets' appears twice"},
      {R"({"t":{"dtype":"u8","shape":[0],"data_offsets":[0,0]}})", "unknown dtype 'u8'"},
      {R"({"t":{}})", "'dtype' is missing"},
  };
  for (const auto& c : cases) test::expect_message(test::error_of([&] { parse(c.header); }), {"file: ", c.words});
}

TEST(Safetensors, ReadsEveryGoldenFile) {
  int files = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(test::data_dir() / "golden")) {
    if (file.path().extension() != ".safetensors") continue;
    ++files;
    const SafetensorsFile opened(file.path());
    EXPECT_GT(opened.header().tensors.size(), 0u) << file.path();
  }
  EXPECT_GE(files, 13);
}

TEST(Safetensors, WritesWhatItReads) {
  const test::ScratchDir dir;
  const test::Path path = dir.path() / "x.safetensors";
  const float numbers[] = {1, 2, 3, 4, 5, 6};
  const uint8_t one = 9;
  const NamedTensor tensors[] = {{"a", {numbers, DType::kF32, 2, {2, 3}}},
                                 {"quote\" and \xC3\xA9", {&one, DType::kU8, 0, {}}},
                                 {"none", {nullptr, DType::kBF16, 1, {0}}}};
  write_safetensors(path, tensors);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().data_start % 8, 0u);
  EXPECT_EQ(shape_text(file.tensor("a")), "[2, 3]");
  EXPECT_EQ(std::memcmp(file.tensor("a").data, numbers, sizeof(numbers)), 0);
  EXPECT_EQ(*file.tensor(tensors[1].name).as<uint8_t>(), 9);
  EXPECT_TRUE(file.contains("none"));
  EXPECT_FALSE(file.contains("b"));
  test::expect_message(test::error_of([&] { file.tensor("b"); }), {"x.safetensors", "no tensor 'b'"});
  test::expect_message(test::error_of([&] { write_safetensors(dir.path() / "no" / "x", tensors); }),
                       {"no/x", "create"});
}

TEST(SafetensorsIndex, Reads) {
  const auto index = parse_safetensors_index(
      R"({"weight_map":{"x":"b.safetensors","y":"a.safetensors"},"metadata":{"total_size":7,"format":"pt"}})", "index");
  EXPECT_EQ(index.shards, (std::vector<std::string>{"a.safetensors", "b.safetensors"}));
  ASSERT_EQ(index.tensors.size(), 2u);
  EXPECT_EQ(index.tensors[0].tensor, "x");
  EXPECT_EQ(index.tensors[0].shard, 1u);
  EXPECT_EQ(index.tensors[1].shard, 0u);
  EXPECT_EQ(index.total_size, 7u);
  EXPECT_FALSE(parse_safetensors_index(R"({"weight_map":{}})", "index").total_size.has_value());
}

}  // namespace
}  // namespace mdi
