// `mdi <command>`: reads the command line, runs one command, turns what went wrong into one line and an exit code.
// Exit codes: 0 done, 1 the command failed, 2 the command line was not understood.
#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "cli/commands.h"
#include "core/stderr_text.h"
#include "grammar/grammar.h"

namespace {

int run(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of whoever writes it
  CLI::App app("mini-DeepInfer: an inference engine for DeepSeek-V4.1-Flash", "mdi");
  app.set_version_flag("--version", std::string("mdi ") + mdi::kVersion);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  mdi::add_bench(app);
  mdi::add_chat(app);
  mdi::add_check(app);
  mdi::add_eval(app);
  mdi::add_generate(app);
  mdi::add_inspect(app);
  mdi::add_serve(app);
  mdi::add_synth(app);
  mdi::add_tokenize(app);

  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::RequiredError& e) {
    const auto rest = app.remaining();
    if (rest.empty()) return app.exit(e) == 0 ? 0 : 2;
    std::fprintf(stderr, "mdi: unknown command '%s'\nRun with --help for more information.\n", rest.front().c_str());
    return 2;
  } catch (const CLI::ParseError& e) {
    // Also the way in which --help and --version end, with code 0.
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const std::exception& e) {
    using Clock = std::chrono::steady_clock;
    mdi::write_stderr("mdi: " + std::string(e.what()) + "\n",
                      [end = Clock::now() + std::chrono::seconds(1)] { return Clock::now() >= end; });
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int code = run(argc, argv);
  if (mdi::running_compilations() == 0) return code;
  // They use what the end of a process tears down.
  std::fflush(nullptr);
  std::_Exit(code);
}
