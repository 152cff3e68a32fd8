// Structured output from hostile clients: whatever the schema, pattern, choices or tools, the compiler either refuses
// with an mdi::Error or makes masks along which an answer can be walked.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "fuzz.h"
#include "grammar/grammar.h"
#include "text/chat_parser.h"
#include "text/chat_render.h"
#include "text/ordered_json.h"
#include "text/tokenizer_file.h"

namespace mdi {
namespace {

// 256 bytes, a few longer tokens, and the control tokens of the format.
const Tokenizer& tokenizer() {
  static const Tokenizer kTokenizer = [] {
    OrderedJson vocab = OrderedJson::object(), merges = OrderedJson::array();
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      vocab[to_byte_alphabet({&c, 1})] = byte;
    }
    for (const std::string pair : {"\" ,", "\" :", "} ]", "a b", "0 0", "< /", "t r", "tr u"}) {
      std::string joined = pair;
      joined.erase(joined.find(' '), 1);
      vocab[joined] = vocab.size();
      merges.push_back(pair);
    }
    OrderedJson added = OrderedJson::array();
    int id = static_cast<int>(vocab.size());
    for (const char* content : {marker::kEos, marker::kThinkEnd, marker::kDsml}) {
      added.push_back({{"id", id++}, {"content", content}, {"special", true}});
    }
    const OrderedJson byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
    const OrderedJson file = {{"version", "1.0"},
                              {"truncation", nullptr},
                              {"padding", nullptr},
                              {"added_tokens", added},
                              {"normalizer", nullptr},
                              {"pre_tokenizer", byte_level},
                              {"post_processor", nullptr},
                              {"decoder", byte_level},
                              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
    return Tokenizer::from_json(file.dump(), "tokenizer");
  }();
  return kTokenizer;
}

void walk(const std::shared_ptr<const CompiledGrammar>& grammar, size_t seed, bool calls) {
  const int32_t eos = tokenizer().marker(marker::kEos).value();
  const GrammarMask mask = make_mask(grammar, false);
  ChatParser parser(tokenizer(), false);
  std::vector<ChatEvent> events;
  std::vector<int32_t> generated;
  std::vector<uint32_t> bits(16);
  for (int i = 0; i < 24; ++i) {
    std::fill(bits.begin(), bits.end(), 0);
    fuzz::require(mask(generated, bits), "something is constrained");
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < tokenizer().size(); ++id) {
      if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) != 0) allowed.push_back(id);
    }
    fuzz::require(!allowed.empty(), "something may come next");
    generated.push_back(allowed[(seed + static_cast<size_t>(i) * 7) % allowed.size()]);
    parser.push(generated.back(), events);
    if (generated.back() != eos) continue;
    const ChatReply& reply = parser.reply();
    fuzz::require(calls || reply.tool_calls.empty(), "a call without tools");
    fuzz::require(reply.problem.empty() || reply.problem == "two parameters of one name", "an answer is read back");
    return;
  }
}

}  // namespace
}  // namespace mdi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using mdi::GrammarSpec;
  if (size < 2) return 0;
  static mdi::GrammarCompiler& compiler = *[] {
    mdi::GrammarLimits limits;
    limits.max_compile_seconds = 20;  // under sanitizers
    limits.max_mask_seconds = 5;
    limits.max_cache_bytes = 1 << 20;
    const mdi::Tokenizer& t = mdi::tokenizer();
    return new mdi::GrammarCompiler(t, t.size() + 3, t.marker(mdi::marker::kEos).value(), limits);
  }();
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  GrammarSpec spec;
  spec.strict = (data[0] & 8U) != 0;
  spec.parallel = (data[0] & 16U) != 0;
  switch (data[0] & 7U) {
    case 0:
      spec.kind = GrammarSpec::Kind::kRegex;
      spec.pattern = text;
      break;
    case 1:
      spec.kind = GrammarSpec::Kind::kChoice;
      spec.choices = {text, "b"};
      break;
    case 2:
      spec.tool_choice = GrammarSpec::ToolChoice::kAuto;
      spec.tools = {{"f", text, spec.strict}, {text.substr(0, 8), "", false}};
      break;
    case 3:
      spec.tool_choice = GrammarSpec::ToolChoice::kRequired;
      spec.tools = {{"f", text, true}};
      break;
    default:
      spec.kind = GrammarSpec::Kind::kJsonSchema;
      spec.schema = text;
      break;
  }
  mdi::fuzz::allow_error([&] {
    try {
      mdi::walk(compiler.compile(spec), data[1], !spec.tools.empty());
    } catch (const mdi::GrammarBusy&) {  // an input before was late
    }
  });
  return 0;
}
