// `mdi chat`: a conversation in the terminal, or from a pipe.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "cli/replay_option.h"
#include "engine/chat_session.h"
#include "engine/load.h"

namespace mdi {

namespace {

volatile std::sig_atomic_t interrupted = 0;

struct Options {
  std::string model, system, draft = "none";
  ChatSettings settings;
  bool no_thinking = false;
  int64_t context = 8192;
  int32_t threads = 0, chunk = 512;
  ReplaySettings replay;
};

constexpr const char* kHelp =
    "/regenerate    answer the last message again\n"
    "/system TEXT   set the system message; without TEXT remove it\n"
    "/think on|off  reasoning before the answer\n"
    "/save FILE     write the conversation as JSON\n"
    "/load FILE     read a conversation\n"
    "/new           start again\n"
    "/exit          leave (or Ctrl-D)\n"
    "A line that ends in \\ goes on in the next one; \"\"\" starts and ends a text of several lines.\n"
    "Ctrl-C stops an answer.\n";

enum class Read { kLine, kEnd, kInterrupted };

Read read_line(std::string& line) {
  line.clear();
  char* buffer = nullptr;
  size_t capacity = 0;
  errno = 0;
  const ssize_t size = getline(&buffer, &capacity, stdin);
  if (size > 0) line.assign(buffer, static_cast<size_t>(size));
  std::free(buffer);
  if (size < 0) {
    const bool signal = errno == EINTR && interrupted != 0;
    if (signal) std::clearerr(stdin);
    return signal ? Read::kInterrupted : Read::kEnd;
  }
  if (!line.empty() && line.back() == '\n') line.pop_back();
  return Read::kLine;
}

// What the terminal shows of an answer. In a pipe stdout has the answers alone, and reasoning goes to stderr.
struct Screen {
  bool terminal_in = isatty(STDIN_FILENO) != 0;
  bool terminal_out = isatty(STDOUT_FILENO) != 0;
  bool dimmed = false, shown = false;

  void prompt(const char* text) const {
    if (!terminal_in || !terminal_out) return;
    std::printf("%s", text);
    std::fflush(stdout);
  }
  void dim(bool on) {
    if (on == dimmed) return;
    if (terminal_out) {
      std::printf(on ? "\033[2m" : "\033[0m\n\n");
    } else if (!on) {
      std::fprintf(stderr, "\n");
    }
    dimmed = on;
  }
  void write(std::FILE* to, const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), to);
    std::fflush(to);
    shown = true;
  }
  void show(const ChatEvent& event) {
    switch (event.kind) {
      case ChatEvent::Kind::kReasoning:
        dim(true);
        write(terminal_out ? stdout : stderr, event.text);
        break;
      case ChatEvent::Kind::kContent:
        dim(false);
        write(stdout, event.text);
        break;
      case ChatEvent::Kind::kCallBegin:
        dim(false);
        write(stdout, (shown ? "\n" : "") + std::string("[call ") + event.text + " ");
        break;
      case ChatEvent::Kind::kArguments:
        write(stdout, event.text);
        break;
      case ChatEvent::Kind::kCallEnd:
        write(stdout, "]");
        break;
    }
  }
  void end(const GenerateResult& r) {
    if (dimmed) terminal_out ? std::printf("\033[0m") : std::fprintf(stderr, "\n");
    dimmed = false;
    shown = false;
    std::printf("\n");
    std::fflush(stdout);
    std::fprintf(stderr, "%s%zu tokens, %.1f tok/s; prompt %.2f s%s%s\n", terminal_out ? "\033[2m" : "",
                 r.tokens.size(), static_cast<double>(r.tokens.size()) / std::max(r.decode_seconds, 1e-9),
                 r.prefill_seconds,
                 r.finish == FinishReason::kLength      ? "; cut off at the limit"
                 : r.finish == FinishReason::kCancelled ? "; stopped"
                                                        : "",
                 terminal_out ? "\033[0m" : "");
  }
};

// The whole of a message that may go over several lines.
Read read_message(const Screen& screen, std::string& message) {
  screen.prompt("> ");
  Read read = read_line(message);
  if (read != Read::kLine) return read;
  std::string line;
  if (message.rfind("\"\"\"", 0) == 0) {
    message.erase(0, 3);
    while (message.size() < 3 || message.compare(message.size() - 3, 3, "\"\"\"") != 0) {
      screen.prompt(". ");
      read = read_line(line);
      if (read != Read::kLine) return read;
      message += "\n" + line;
    }
    message.erase(message.size() - 3);
    while (!message.empty() && message.front() == '\n') message.erase(0, 1);
    while (!message.empty() && message.back() == '\n') message.pop_back();
    return Read::kLine;
  }
  while (!message.empty() && message.back() == '\\') {
    message.back() = '\n';
    screen.prompt(". ");
    read = read_line(line);
    if (read != Read::kLine) return read;
    message += line;
  }
  return Read::kLine;
}

struct Conversation {
  ChatSession& session;
  Screen screen;

  void answer(const std::function<GenerateResult(const std::function<void(const ChatEvent&)>&)>& run) {
    interrupted = 0;
    screen.end(run([this](const ChatEvent& event) { screen.show(event); }));
  }
  static bool go_on() { return interrupted == 0; }

  // False: leave.
  bool command(const std::string& line) {
    const auto space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/regenerate") {
      answer([this](const auto& on_event) { return session.regenerate(on_event, go_on); });
    } else if (name == "/system") {
      session.set_system(rest);
    } else if (name == "/think" && (rest == "on" || rest == "off")) {
      session.settings.thinking = rest == "on";
    } else if (name == "/save" && !rest.empty()) {
      session.save(rest);
    } else if (name == "/load" && !rest.empty()) {
      session.load(rest);
      std::fprintf(stderr, "%zu messages\n", session.messages().size());
    } else if (name == "/new") {
      session.clear();
    } else {
      std::fprintf(stderr, "%s", kHelp);
    }
    return true;
  }

  void run() {
    std::string message;
    for (;;) {
      interrupted = 0;
      const Read read = read_message(screen, message);
      if (read == Read::kEnd) break;
      if (read == Read::kInterrupted) {
        screen.prompt("\n");
        continue;
      }
      if (message.empty()) continue;
      try {
        if (message.front() == '/') {
          if (!command(message)) break;
          continue;
        }
        answer([&](const auto& on_event) { return session.say(message, on_event, go_on); });
      } catch (const std::exception& e) {
        std::fprintf(stderr, "mdi: %s\n", e.what());
      }
    }
    screen.prompt("\n");
  }
};

void chat(const Options& o) {
  check_sampling(o.settings.sampling, "chat");
  LoadedModel loaded = load_for_cpu(o.model, o.threads);
  const Tokenizer& tokenizer = need_tokenizer(loaded, "chat");
  const ModelConfig& config = loaded.model.config();
  const int64_t context = std::min(o.context, config.max_position_embeddings);
  Generator generator(*loaded.context, loaded.model, context, o.chunk, o.replay);
  ChatSession session(generator, tokenizer, config, context);
  session.settings = o.settings;
  session.settings.thinking = !o.no_thinking;
  session.settings.draft = o.draft == "dspark";
  session.set_system(o.system);

  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };  // without SA_RESTART, so that reading a line ends, too
  sigaction(SIGINT, &action, nullptr);
  Conversation conversation{.session = session, .screen = {}};
  if (conversation.screen.terminal_in) std::fprintf(stderr, "/help for the commands, Ctrl-D to leave\n");
  conversation.run();
}

}  // namespace

void add_chat(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  command->add_option("--model", o->model, "Folder of the checkpoint")->required();
  command->add_option("--system", o->system, "System message");
  command->add_flag("--no-thinking", o->no_thinking, "Answer without reasoning first");
  command->add_option("--effort", o->settings.effort, "Reasoning effort")->check(whole(1, 100))->capture_default_str();
  command->add_option("--max-tokens", o->settings.max_tokens, "Most tokens of an answer")
      ->check(whole(1))
      ->capture_default_str();
  command->add_option("--context", o->context, "Most tokens of a conversation")->check(whole(1))->capture_default_str();
  SamplingParams& sampling = o->settings.sampling;
  command->add_option("--temperature", sampling.temperature, "0: the most likely token")->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "Only the K most likely tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "Only the most likely tokens that reach P")->capture_default_str();
  command->add_option("--min-p", sampling.min_p, "Only tokens within P of the most likely")->capture_default_str();
  command->add_option("--seed", sampling.seed, "Same seed, same tokens")->capture_default_str();
  command->add_option("--draft", o->draft, "Draft layers")
      ->check(CLI::IsMember({"none", "dspark"}))
      ->capture_default_str();
  command->add_option("--chunk", o->chunk, "Prompt tokens a step")->check(whole(1))->capture_default_str();
  add_replay(*command, o->replay);
  command->add_option("--threads", o->threads, "CPU threads; 0: one per core")
      ->check(thread_count())
      ->capture_default_str();
  command->callback([o] { chat(*o); });
}

}  // namespace mdi
