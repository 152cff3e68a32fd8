// The page's files are in the program as they are in the source tree, and are served so that a browser takes them.
#include "server/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

namespace mdi {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(MDI_SOURCE_DIR) / "src/server/page";

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Kept : public HttpReply {
 public:
  void send(int status_, std::string type_, std::string body_, Headers extra) override {
    status = status_;
    type = std::move(type_);
    body = std::move(body_);
    for (auto& [name, value] : extra) headers[name] = value;
  }
  void begin(int /*status*/, std::string /*content_type*/, Headers /*extra*/) override { FAIL() << "a stream"; }
  bool write(std::string /*text*/) override { return false; }
  void end() override {}
  void on_gone(std::function<void()> /*gone*/) override {}
  bool gone() const override { return false; }

  int status = 0;
  std::string type, body;
  std::map<std::string, std::string> headers;
};

Kept get(const std::string& path, const std::string& known = {}) {
  HttpRequest request;
  request.method = "GET";
  request.path = path;
  if (!known.empty()) request.headers.emplace_back("if-none-match", known);
  const auto routes = page_routes();
  const auto route = std::find_if(routes.begin(), routes.end(), [&](const Route& r) {
    return r.path == path || (r.path == "/page/*" && path.starts_with("/page/"));
  });
  auto reply = std::make_shared<Kept>();
  if (route == routes.end()) return *reply;
  EXPECT_TRUE(route->open) << "a browser asks for it before a key can be entered";
  route->handler(request, reply);
  return *reply;
}

TEST(Page, EveryFileIsInTheProgramByteForByte) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder)) names.insert(entry.path().filename().string());
  EXPECT_EQ(page_assets().size(), names.size());
  for (const PageAsset& asset : page_assets()) {
    EXPECT_EQ(names.count(std::string(asset.name)), 1u) << asset.name;
    EXPECT_TRUE(asset.text == read(kFolder / asset.name)) << asset.name;
    EXPECT_EQ(asset.tag.size(), 34u) << asset.name;
  }
}

TEST(Page, FilesHaveTheirTypesAndThePolicy) {
  const std::map<std::string, std::string> types = {{"/", "text/html; charset=utf-8"},
                                                    {"/page/main.js", "text/javascript; charset=utf-8"},
                                                    {"/page/style.css", "text/css; charset=utf-8"},
                                                    {"/page/icon.svg", "image/svg+xml"}};
  for (const auto& [path, type] : types) {
    const Kept kept = get(path);
    EXPECT_EQ(kept.status, 200) << path;
    EXPECT_EQ(kept.type, type);
    EXPECT_EQ(kept.body, read(kFolder / (path == "/" ? "index.html" : path.substr(6))));
    const std::string& policy = kept.headers.at("content-security-policy");
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
    EXPECT_EQ(policy.find('*'), std::string::npos);
    EXPECT_EQ(policy.find("http"), std::string::npos);
    EXPECT_EQ(kept.headers.at("x-content-type-options"), "nosniff");
  }
}

TEST(Page, AKnownFileIsNotSentAgain) {
  const std::string tag = get("/page/main.js").headers.at("etag");
  for (const std::string& known :
       {tag, "W/" + tag, "\"a\", " + tag + " ", std::string("*"), "\"b\",W/" + tag + ",\"c\""}) {
    const Kept kept = get("/page/main.js", known);
    EXPECT_EQ(kept.status, 304) << known;
    EXPECT_EQ(kept.body, "");
    EXPECT_EQ(kept.headers.at("etag"), tag);
  }
  for (const std::string& other :
       {std::string("\"a\""), tag.substr(1), tag.substr(0, 12), std::string(","), "x" + tag}) {
    EXPECT_EQ(get("/page/main.js", other).status, 200) << other;
  }
}

TEST(Page, NothingElseIsServed) {
  for (const char* path : {"/page/", "/page/none.js", "/page/main.js/", "/page//main.js", "/page/main.js\\x"}) {
    EXPECT_EQ(get(path).status, 404) << path;
  }
  EXPECT_EQ(get("/page").status, 0) << "no route";
}

// What a file names is there: a slip would only show as a blank page.
TEST(Page, EveryNameThatAFileUsesExists) {
  std::set<std::string> names;
  for (const PageAsset& asset : page_assets()) names.emplace(asset.name);
  int used = 0;
  for (const PageAsset& asset : page_assets()) {
    for (const char* before : {"from './", "import './", "\"page/"}) {
      for (size_t at = asset.text.find(before); at != std::string_view::npos; at = asset.text.find(before, at + 1)) {
        const size_t begin = at + std::string_view(before).size();
        const std::string name(asset.text.substr(begin, asset.text.find_first_of("'\"", begin) - begin));
        EXPECT_EQ(names.count(name), 1u) << asset.name << " names " << name;
        ++used;
      }
    }
    EXPECT_EQ(asset.text.find("http://"), asset.name == "icon.svg" || asset.name == "dom.js"
                                              ? asset.text.find("http://www.w3.org")
                                              : std::string_view::npos)
        << asset.name;
  }
  EXPECT_GT(used, 60);
}

}  // namespace
}  // namespace mdi
