// A conversation over a synthetic checkpoint with a byte tokenizer: the next turn reuses the state of the last one, and
// what is reused changes nothing.
#include "engine/chat_session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/synth.h"
#include "checkpoint/synth_presets.h"
#include "engine/load.h"

namespace mdi {
namespace {

namespace fs = std::filesystem;

class Chat : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = fs::temp_directory_path() / ("mdi-chat-" + std::to_string(getpid()));
    fs::remove_all(dir_);
    ModelConfig config = synth_preset("tiny");
    config.max_position_embeddings = 4096;
    SynthOptions options;
    options.traits.seed = 3;
    write_synthetic_checkpoint(dir_, config, options);
    loaded_ = new LoadedModel(load_for_cpu(dir_, 2));
  }
  static void TearDownTestSuite() {
    delete loaded_;
    fs::remove_all(dir_);
  }

  Chat() : generator_(*loaded_->context, loaded_->model, 2048, 64), session_(make()) {
    session_.settings.sampling.temperature = 0;
    session_.settings.max_tokens = 24;
    session_.settings.thinking = false;
  }
  ChatSession make() { return ChatSession(generator_, *loaded_->tokenizer, loaded_->model.config(), 2048); }

  GenerateResult say(ChatSession& session, const std::string& text) {
    return session.say(
        text, [this](const ChatEvent& e) { shown_ += e.text; }, [] { return true; });
  }

  static fs::path dir_;
  static LoadedModel* loaded_;
  Generator generator_;
  ChatSession session_;
  std::string shown_;
};
fs::path Chat::dir_;
LoadedModel* Chat::loaded_ = nullptr;

TEST_F(Chat, TheNextTurnRunsOnlyWhatIsNew) {
  const GenerateResult first = say(session_, "Hello");
  EXPECT_EQ(first.reused_tokens, 0);
  const GenerateResult second = say(session_, "And then?");
  EXPECT_GT(second.reused_tokens, static_cast<int64_t>(first.tokens.size()));

  // The same two turns with a generator that reuses nothing between them.
  Generator cold(*loaded_->context, loaded_->model, 2048, 64);
  ChatSession again(cold, *loaded_->tokenizer, loaded_->model.config(), 2048);
  again.settings = session_.settings;
  EXPECT_EQ(say(again, "Hello").tokens, first.tokens);
  GenerateRequest other;
  other.prompt = {1, 2, 3};
  other.max_tokens = 3;
  cold.run(other);
  const GenerateResult second_cold = say(again, "And then?");
  EXPECT_EQ(second_cold.reused_tokens, 0);
  EXPECT_EQ(second_cold.tokens, second.tokens);
}

TEST_F(Chat, MessagesAreKeptAndShown) {
  session_.set_system("Be brief.");
  say(session_, "Hello");
  ASSERT_EQ(session_.messages().size(), 3u);
  EXPECT_EQ(session_.messages()[0].role, Role::kSystem);
  EXPECT_EQ(session_.messages()[2].role, Role::kAssistant);
  EXPECT_EQ(session_.messages()[2].content[0].text, shown_);
  session_.set_system("");
  EXPECT_EQ(session_.messages().size(), 2u);
}

TEST_F(Chat, RegenerateReplacesTheAnswer) {
  EXPECT_THROW(session_.regenerate([](const ChatEvent&) {}, [] { return true; }), std::exception);
  session_.settings.sampling.temperature = 1;
  const auto first = say(session_, "Hello").tokens;
  const auto second = session_.regenerate([](const ChatEvent&) {}, [] { return true; }).tokens;
  EXPECT_EQ(session_.messages().size(), 2u);
  EXPECT_NE(first, second);
}

TEST_F(Chat, AnInterruptedAnswerIsKeptAsFarAsItWent) {
  int tokens = 0;
  const GenerateResult r = session_.say(
      "Hello", [](const ChatEvent&) {}, [&] { return ++tokens < 6; });
  EXPECT_EQ(r.finish, FinishReason::kCancelled);
  EXPECT_LT(r.tokens.size(), 24u);
  EXPECT_EQ(session_.messages().size(), 2u);
  say(session_, "Go on");
  EXPECT_EQ(session_.messages().size(), 4u);
}

TEST_F(Chat, WhatDoesNotFitIsRefusedAndForgotten) {
  EXPECT_THROW(say(session_, std::string(5000, 'x')), std::exception);
  EXPECT_THROW(say(session_, "\xff\xfe"), std::exception);
  EXPECT_TRUE(session_.messages().empty());
  say(session_, "Hello");
  EXPECT_EQ(session_.messages().size(), 2u);
}

TEST_F(Chat, SavesAndLoads) {
  session_.set_system("Be brief.");
  say(session_, "Hello \"you\"\n\xe4\xb8\xad");
  const fs::path file = dir_ / "conversation.json";
  session_.save(file);
  ChatSession other = make();
  other.load(file);
  ASSERT_EQ(other.messages().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(other.messages()[i].role, session_.messages()[i].role);
    EXPECT_EQ(other.messages()[i].content[0].text, session_.messages()[i].content[0].text);
  }
  std::ofstream(file) << "{ not json";
  EXPECT_THROW(other.load(file), std::exception);
  EXPECT_THROW(other.load(dir_ / "missing.json"), std::exception);
  EXPECT_EQ(other.messages().size(), 3u);
  EXPECT_THROW(other.save("/nonexistent/folder/file.json"), std::exception);
}

}  // namespace
}  // namespace mdi
