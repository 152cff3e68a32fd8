// Images of requests before the engine sees them: base64, data URLs, what is refused, and where their spans stand.
#include "server/images.h"

#include <fstream>
#include <iterator>

#include "../model/tiny_model.h"
#include "anthropic_support.h"
#include "checkpoint/synth.h"
#include "checkpoint/synth_presets.h"

namespace mdi {
namespace {

using testing::refused_member;

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string failure(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Base64, IsReadStrictly) {
  EXPECT_EQ(text_of(decode_base64("aGVsbG8=", "x")), "hello");
  EXPECT_EQ(text_of(decode_base64("aGVs\r\nbG8=\n", "x")), "hello");
  EXPECT_EQ(text_of(decode_base64("YQ==", "x")), "a");
  for (const char* bad : {"", "a", "aGVsbG8", "aGVsbG8==", "aGVs bG8=", "aGVsbG8=x", "-_-_", "aGVs!", "\n"}) {
    EXPECT_EQ(failure([&] { decode_base64(bad, "here"); }).find("here: expected base64 text"), 0u) << bad;
  }
}

TEST(DataUrl, HoldsBase64) {
  EXPECT_EQ(text_of(decode_data_url("data:image/png;base64,aGVsbG8=", "x")), "hello");
  EXPECT_EQ(text_of(decode_data_url("data:;BASE64,aGVsbG8=", "x")), "hello");
  EXPECT_EQ(text_of(decode_data_url("DATA:image/png;base64,aGVsbG8=", "x")), "hello");
  for (const char* bad : {"data:image/png,hello", "data:image/png;base64", "data:image/png;base64aGVs",
                          "dat:;base64,aGVs", "data:image/png;base64,hello"}) {
    EXPECT_EQ(failure([&] { decode_data_url(bad, "here"); }).find("here: expected"), 0u) << bad;
  }
}

std::string golden_png(int number) {
  std::ifstream in(testing::golden_dir() / "tiny-vision" / ("image" + std::to_string(number) + ".png"),
                   std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string base64_of(const std::string& bytes) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kLetters[bits >> (18 - 6 * k) & 63];
  }
  return out;
}

ShapeOverrides vocab_of(int vocab) {
  ShapeOverrides shape;
  shape.vocab = vocab;
  return shape;
}

// A synthetic checkpoint with a vision tower and a tokenizer, served without being started.
Service& seeing_service() {
  static LoadedModel loaded = [] {
    const auto dir = testing::fs::temp_directory_path() / ("mdi-images-test-" + std::to_string(getpid()));
    ModelConfig config = synth_preset("tiny-vision");
    apply_overrides(config, vocab_of(512));  // room for a tokenizer of bytes
    write_synthetic_checkpoint(dir, config, {});
    LoadedModel made = load_for_cpu(dir, 1);
    testing::fs::remove_all(dir);
    return made;
  }();
  static Service service(*loaded.context, loaded.model, &*loaded.tokenizer, testing::small_engine(250),
                         testing::named("seeing"));
  return service;
}

// Tokenizer and configuration disagree about the image's token: said at start, not to every client.
TEST(RequestImages, NeedTheirToken) {
  const auto dir = testing::fs::temp_directory_path() / ("mdi-images-token-" + std::to_string(getpid()));
  ModelConfig config = synth_preset("tiny-vision");
  apply_overrides(config, vocab_of(4096));
  write_synthetic_checkpoint(dir, config, {});
  const LoadedModel loaded = load_for_cpu(dir, 1);
  testing::fs::remove_all(dir);
  const Tokenizer other = Tokenizer::load(testing::fs::path(MDI_SOURCE_DIR) / "models/small/tokenizer.json");
  const std::string said = failure([&] {
    const Service service(*loaded.context, loaded.model, &other, testing::small_engine(250), testing::named("seeing"));
  });
  EXPECT_NE(said.find("the model sees images"), std::string::npos) << said;
  EXPECT_NE(said.find("<｜deepseek_image｜>"), std::string::npos) << said;
}

OrderedJson openai_part(const std::string& url) {
  OrderedJson part;
  part["type"] = "image_url";
  part["image_url"]["url"] = url;
  return part;
}

OrderedJson anthropic_part(const std::string& data) {
  OrderedJson part;
  part["type"] = "image";
  part["source"] = {{"type", "base64"}, {"media_type", "image/png"}, {"data", data}};
  return part;
}

TEST(RequestImages, BothFormsGiveTheSameImage) {
  ImageReader reader(seeing_service());
  const std::string png = base64_of(golden_png(1));
  EXPECT_EQ(reader.read(openai_part("data:image/png;base64," + png), "a").text, "0");
  EXPECT_EQ(reader.read(anthropic_part(png), "b").text, "1");
  EXPECT_EQ(reader.read(openai_part("data:image/png;base64," + base64_of(golden_png(3))), "c").text, "2");
  const std::vector<RequestImage> images = reader.take();
  ASSERT_EQ(images.size(), 3u);
  EXPECT_EQ(images[0].digest, images[1].digest);
  EXPECT_NE(images[0].digest, images[2].digest);
  EXPECT_GT(images[0].picture.patches.size(), 0u);
}

TEST(RequestImages, WhatCannotBeUsedNamesItsPlace) {
  const auto refusal = [](const OrderedJson& part) {
    return refused_member([&] { ImageReader(seeing_service()).read(part, "messages[1].content[2]"); });
  };
  const std::string place = "messages[1].content[2]";
  EXPECT_EQ(refusal(openai_part("data:image/png;base64,AAAA")), place + ".image_url.url");
  EXPECT_EQ(refusal(openai_part("http://example.org/a.png")), place + ".image_url.url");
  EXPECT_EQ(refusal(openai_part("file:///etc/passwd")), place + ".image_url.url");
  EXPECT_EQ(refusal(anthropic_part("AAAA")), place + ".source.data");
  EXPECT_EQ(refusal(anthropic_part(base64_of(golden_png(1).substr(0, 200)))), place + ".source.data");
  OrderedJson part = anthropic_part("AAAA");
  part["source"]["type"] = "file";
  EXPECT_EQ(refusal(part), place + ".source.type");
  part = openai_part("x");
  part["image_url"] = 5;
  EXPECT_EQ(refusal(part), place + ".image_url");
  part.erase("image_url");
  EXPECT_EQ(refusal(part), place);
  const std::string url = "Data:image/png;base64," + base64_of(golden_png(1));
  EXPECT_EQ(refusal(openai_part(url)), "accepted");
  part = openai_part(url);
  part["image_url"]["detail"] = "bogus";
  EXPECT_EQ(refusal(part), place + ".image_url.detail");
  part["image_url"]["detail"] = "low";
  EXPECT_EQ(refusal(part), "accepted");
  part["whatever"] = 1;
  EXPECT_EQ(refusal(part), place + ".whatever");
  EXPECT_EQ(refused_member([] { ImageReader(testing::small_service()).read(openai_part("data:"), "here"); }), "here");
}

TEST(RequestImages, AreBoundedInNumberAndInWhatWaits) {
  const OrderedJson part = anthropic_part(base64_of(golden_png(1)));
  ImageReader two(seeing_service(), {.max_images = 2});
  two.read(part, "a");
  two.read(part, "b");
  EXPECT_EQ(refused_member([&] { two.read(part, "c"); }), "c");
  EXPECT_GT(seeing_service().image_budget(), 0u);
  const size_t taken = seeing_service().image_budget();
  ImageReader full(seeing_service(), {.max_waiting_bytes = taken});
  try {
    full.read(part, "d");
    ADD_FAILURE() << "taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.kind(), ApiErrorKind::kBusy);
  }
  two.take().clear();
  EXPECT_EQ(seeing_service().image_budget(), 0u);
  // Images that alone are longer than the context are not prepared one after the other.
  ImageReader many(seeing_service());
  const std::string message = refused_member([&] {
    for (int i = 0; i < 100; ++i) many.read(part, "here");
  });
  EXPECT_EQ(message, "here");
}

TEST(RequestImages, SpansStandWhereTheImagesWere) {
  Service& service = seeing_service();
  ImageReader reader(service);
  std::vector<ChatMessage> messages = {text_message(Role::kUser, "Compare")};
  messages[0].content.push_back(reader.read(anthropic_part(base64_of(golden_png(1))), "a"));
  messages[0].content.push_back(reader.read(anthropic_part(base64_of(golden_png(3))), "b"));
  std::vector<RequestImage> images = reader.take();
  EncodedChat encoded = service.encode(messages, false, 75);
  const int64_t text = static_cast<int64_t>(encoded.ids.size()) - 2;
  const int64_t first = images[0].picture.grid.tokens(), second = images[1].picture.grid.tokens();
  EXPECT_EQ(count_tokens(encoded, images), text + first + second);
  const auto at = static_cast<int64_t>(encoded.images[0].position);
  const ImageDigest digest = images[1].digest;
  Request request;
  place_images(service.model().config(), std::move(encoded), images, request);
  EXPECT_EQ(static_cast<int64_t>(request.prompt.size()), text + first + second);
  ASSERT_EQ(request.image_identities.size(), 2u);
  EXPECT_EQ(request.image_identities[0].start, at);
  EXPECT_EQ(request.image_identities[0].count, first);
  EXPECT_EQ(request.image_identities[1].count, second);
  EXPECT_EQ(request.image_identities[1].digest, digest);
  EXPECT_EQ(std::count(request.images.dead.begin(), request.images.dead.end(), 1), first + second);
  EXPECT_EQ(request.pictures.size(), 2u);
}

}  // namespace
}  // namespace mdi
