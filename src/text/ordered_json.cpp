#include "text/ordered_json.h"

#include <charconv>
#include <cstdlib>

namespace mdi {
namespace {

// Objects this small are searched key by key.
constexpr size_t kScanKeys = 16;

// ordered_map finds keys by scanning, also when it inserts; the vector below it does not.
using Members = std::vector<std::pair<const std::string, OrderedJson>>;

Members& members(OrderedJson& object) { return object.get_ref<OrderedJson::object_t&>(); }

// repr(float): the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16 on.
void append_python_real(double value, std::string& out) {
  char digits[40];
  const auto done = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string_view text(digits, static_cast<size_t>(done.ptr - digits));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) {
    out += text;  // both print at least two digits of exponent, with a sign
    return;
  }
  std::string_view mantissa = text.substr(0, e);
  if (mantissa.front() == '-') {
    out += '-';
    mantissa.remove_prefix(1);
  }
  std::string plain(1, mantissa.front());
  if (mantissa.size() > 2) plain += mantissa.substr(2);
  if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + plain;
    return;
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (plain.size() <= whole) {
    out += plain + std::string(whole - plain.size(), '0') + ".0";
  } else {
    out += plain.substr(0, whole) + '.' + plain.substr(whole);
  }
}

void append(const OrderedJson& value, std::string& out) {
  using Type = OrderedJson::value_t;
  switch (value.type()) {
    case Type::object: {
      out += '{';
      const char* between = "";
      for (const auto& [key, member] : value.get_ref<const OrderedJson::object_t&>()) {
        out += between;
        append_python_json_string(key, out);
        out += ": ";
        append(member, out);
        between = ", ";
      }
      out += '}';
      return;
    }
    case Type::array: {
      out += '[';
      const char* between = "";
      for (const OrderedJson& item : value) {
        out += between;
        append(item, out);
        between = ", ";
      }
      out += ']';
      return;
    }
    case Type::string:
      return append_python_json_string(value.get_ref<const std::string&>(), out);
    case Type::number_float:
      return append_python_real(value.get<double>(), out);
    case Type::binary: {
      const auto& digits = value.get_binary();
      out.append(digits.begin(), digits.end());
      return;
    }
    default:
      out += value.dump();
  }
}

void copy_into(const OrderedJson& from, OrderedJson& to) {
  if (from.is_array()) {
    to = OrderedJson::array();
    auto& items = to.get_ref<OrderedJson::array_t&>();
    items.reserve(from.size());
    for (const OrderedJson& item : from) copy_into(item, items.emplace_back());
  } else if (from.is_object()) {
    to = OrderedJson::object();
    Members& all = members(to);
    all.reserve(from.size());
    for (const auto& [key, member] : from.get_ref<const OrderedJson::object_t&>()) {
      copy_into(member, all.emplace_back(key, nullptr).second);
    }
  } else {
    to = from;
  }
}

}  // namespace

void dissolve(OrderedJson& tree) noexcept {
  // Of an empty container the library's destructor allocates nothing.
  if (tree.is_array()) {
    for (OrderedJson& item : tree.get_ref<OrderedJson::array_t&>()) dissolve(item);
    tree.get_ref<OrderedJson::array_t&>().clear();
  } else if (tree.is_object()) {
    for (auto& [key, member] : members(tree)) dissolve(member);
    members(tree).clear();
  }
  tree = nullptr;
}

OrderedJson copy_json(const OrderedJson& value) {
  JsonTree copy(nullptr);
  copy_into(value, *copy);
  return copy.take();
}

OrderedJson& OrderedJsonBuilder::place(OrderedJson value) {
  OrderedJson* target = &root_;
  if (!open_.empty() && open_.back().node->is_array()) {
    auto& items = open_.back().node->get_ref<OrderedJson::array_t&>();
    items.emplace_back();
    target = &items.back();
  } else if (!open_.empty()) {
    target = slot_;
  }
  *target = std::move(value);
  return *target;
}

void OrderedJsonBuilder::on_object() { open_.push_back({&place(OrderedJson::object()), {}}); }
void OrderedJsonBuilder::on_object_end() { open_.pop_back(); }
void OrderedJsonBuilder::on_array() { open_.push_back({&place(OrderedJson::array()), {}}); }
void OrderedJsonBuilder::on_array_end() { open_.pop_back(); }

size_t OrderedJsonBuilder::find_key(Open& open, const std::string& key) {
  const Members& all = members(*open.node);
  if (all.size() < kScanKeys) {
    size_t at = 0;
    while (at < all.size() && all[at].first != key) ++at;
    return at;
  }
  if (open.places.empty()) {
    for (size_t i = 0; i < all.size(); ++i) open.places.emplace(all[i].first, i);
  }
  return open.places.emplace(key, all.size()).first->second;
}

void OrderedJsonBuilder::on_key(std::string& key) {
  Open& open = open_.back();
  Members& all = members(*open.node);
  const size_t at = find_key(open, key);
  if (at == all.size() && at == all.capacity()) {
    // The vector's own growth would copy the values: its keys are const.
    Members grown;
    grown.reserve(2 * at + 1);
    for (const auto& [name, value] : all) grown.emplace_back(name, nullptr);
    for (size_t i = 0; i < at; ++i) grown[i].second = std::move(all[i].second);
    all.swap(grown);
  }
  if (at == all.size()) all.emplace_back(key, nullptr);
  slot_ = &all[at].second;
}

bool OrderedJsonBuilder::on_wide_integer(const std::string& digits) {
  place(OrderedJson::binary({digits.begin(), digits.end()}));
  return true;
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view where, JsonLimits limits) {
  OrderedJsonBuilder builder;
  read_json(text, where, limits, builder);
  return builder.take();
}

std::string python_json(const OrderedJson& value) {
  std::string out;
  append(value, out);
  return out;
}

void append_python_json_string_inside(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
}

void append_python_json_string(std::string_view text, std::string& out) {
  out += '"';
  append_python_json_string_inside(text, out);
  out += '"';
}

}  // namespace mdi
