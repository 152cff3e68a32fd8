// Speed of the tokenizer alone, for tools/bench_tokenizer.py, which runs the reference on the same texts.
//
// Usage: bench_tokenizer TOKENIZER_JSON DOCUMENTS [PASSES]
// DOCUMENTS holds texts separated by zero bytes. Prints one JSON object; times are the best of the passes, in seconds.
#include "text/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"

namespace {

double best_of(int passes, const std::function<void()>& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < passes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// A line without a space: letters that follow no pattern, so that one piece is as long as the line.
std::string long_line(size_t size) {
  std::string line(size, 'a');
  uint32_t state = 1;
  for (char& c : line) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>('a' + (state >> 24) % 26);
  }
  return line;
}

void run(const std::string& file, const std::string& documents, int passes) {
  const double load = best_of(passes, [&] { mdi::Tokenizer::load(file); });
  const mdi::Tokenizer tokenizer = mdi::Tokenizer::load(file);
  const mdi::MappedFile corpus(documents);
  std::vector<std::string_view> texts;
  for (std::string_view rest = corpus.text(); !rest.empty();) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    texts.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  size_t tokens = 0, bytes = 0;
  std::vector<std::vector<int32_t>> ids;
  const double encode = best_of(passes, [&] {
    ids.clear();
    for (const std::string_view text : texts) ids.push_back(tokenizer.encode(text));
  });
  for (const auto& list : ids) tokens += list.size();
  const double decode = best_of(passes, [&] {
    bytes = 0;
    for (const auto& list : ids) bytes += tokenizer.decode(list).size();
  });
  std::string whole(corpus.text());
  std::replace(whole.begin(), whole.end(), '\0', '\n');
  const double one_text = best_of(passes, [&] { tokenizer.encode(whole); });
  const std::string line = long_line(10'000'000);
  const double small = best_of(passes, [&] { tokenizer.encode(std::string_view(line).substr(0, 1'000'000)); });
  const double large = best_of(passes, [&] { tokenizer.encode(line); });
  std::printf(
      "{\"load\": %.4f, \"encode\": %.4f, \"tokens\": %zu, \"decode\": %.4f, \"bytes\": %zu, \"one_text\": %.4f, "
      "\"line_1mb\": %.4f, \"line_10mb\": %.4f}\n",
      load, encode, tokens, decode, bytes, one_text, small, large);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_tokenizer TOKENIZER_JSON DOCUMENTS [PASSES]\n");
    return 2;
  }
  try {
    run(argv[1], argv[2], argc > 3 ? std::max(1, std::atoi(argv[3])) : 3);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_tokenizer: %s\n", e.what());
    return 1;
  }
  return 0;
}
