// The commands of `mdi`: one file each, src/cli/<command>.cpp, with one function that adds the command, its options and
// what it does to the command line.
//
// To add a command: write add_<command> in its own file, declare it here, call it in main.cpp. Its callback throws
// mdi::Error for anything that goes wrong; main() prints it. Options that need checking throw CLI::ValidationError,
// which is a usage error.
#pragma once

namespace CLI {
class App;
}

namespace mdi {

inline constexpr const char* kVersion = "0.1.0";

void add_bench(CLI::App& app);
void add_bench_serve(CLI::App& bench);  // a part of bench, in a file of its own
void add_chat(CLI::App& app);
void add_check(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_serve(CLI::App& app);
void add_synth(CLI::App& app);
void add_tokenize(CLI::App& app);

}  // namespace mdi
