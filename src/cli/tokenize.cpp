// mdi tokenize: text to token ids and back, for checking a tokenizer.json.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "core/error.h"
#include "core/json.h"
#include "text/tokenizer.h"

namespace mdi {

namespace {

constexpr JsonLimits kLine{size_t{256} << 20, 8};

void append_ids(const std::vector<int32_t>& ids, std::string& out) {
  out += '[';
  for (const int32_t id : ids) {
    char digits[16];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, id).ptr);
    out += ',';
  }
  if (ids.empty()) {
    out += ']';
  } else {
    out.back() = ']';
  }
}

std::vector<int32_t> read_ids(const nlohmann::json& value, const std::string& where) {
  if (!value.is_array()) throw Error(where, "expected \"ids\" to be a list");
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const nlohmann::json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      throw Error(where, "expected \"ids\" to hold token ids");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// One line {"text": ...} or {"ids": [...], "skip_special_tokens": ...}; other keys are not read. A text wins, so that
// an answer can be sent in again.
std::string answer_line(const Tokenizer& tokenizer, const std::string& line, const std::string& where) {
  const nlohmann::json request = parse_json(line, where, kLine);
  if (!request.is_object()) throw Error(where, "expected an object with \"text\" or \"ids\"");
  const nlohmann::json skip = request.value("skip_special_tokens", nlohmann::json(false));
  if (!skip.is_boolean()) throw Error(where, "expected \"skip_special_tokens\" to be true or false");
  std::vector<int32_t> ids;
  if (const auto text = request.find("text"); text != request.end()) {
    if (!text->is_string()) throw Error(where, "expected \"text\" to be a string");
    ids = tokenizer.encode(text->get_ref<const std::string&>());
  } else if (request.contains("ids")) {
    ids = read_ids(request["ids"], where);
  } else {
    throw Error(where, "expected \"text\" or \"ids\"");
  }
  std::string answer = "{\"ids\": ";
  append_ids(ids, answer);
  answer += ", \"decoded\": " + nlohmann::json(tokenizer.decode(ids, skip.get<bool>())).dump() + "}\n";
  return answer;
}

void put(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) throw Error("standard output", "cannot write");
}

void tokenize_lines(const Tokenizer& tokenizer) {
  std::string line;
  for (size_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    put(answer_line(tokenizer, line, "standard input, line " + std::to_string(number)));
    // Whoever waits for this answer before sending the next line must get it.
    if (std::cin.rdbuf()->in_avail() <= 0) std::fflush(stdout);
  }
}

void tokenize_text(const Tokenizer& tokenizer) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  std::string out;
  append_ids(tokenizer.encode(text), out);
  put(out + "\n");
}

struct Arguments {
  std::string file;
  bool lines = false;
};

void run(const Arguments& a) {
  std::ios::sync_with_stdio(false);
  const Tokenizer tokenizer = Tokenizer::load(a.file);
  if (a.lines) {
    tokenize_lines(tokenizer);
  } else {
    tokenize_text(tokenizer);
  }
  if (std::fflush(stdout) != 0) throw Error("standard output", "cannot write");
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("tokenize", "Turn the text on standard input into token ids");
  cmd->add_option("--tokenizer", a->file, "A tokenizer.json")->required();
  cmd->add_flag("--jsonl", a->lines,
                "Read lines {\"text\": ...} or {\"ids\": [...], \"skip_special_tokens\": ...}, write lines {\"ids\": "
                "[...], \"decoded\": ...}");
  cmd->callback([a] { run(*a); });
}

}  // namespace mdi
