// SPDX-License-Identifier: Apache-2.0
#include "browser.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "run_command.hpp"
#include "temporary_folder.hpp"

namespace {

/// Goes into the head, before anything of the page runs. When the page is loaded it tells the frame around it what it
/// sees:
///   errors    of scripts, and loads that the page's policy forbids
///   width     of the window; content: of what would have to fit into it
///   outside   elements that stick out of the window, and texts that are cut off
///   numbers   {name: [values]} of all <data> elements with a name; unnamed ones are under ""
///   marks     how many shapes and dots each drawing has
///   tip       what the pointer shows over the first shape of the memory map, and over the curve of the loss
///   scripts, images, hacked: whether a text became markup
constexpr const char* probe = R"(<script>
(() => {
  const errors = [];
  addEventListener("error", (event) => errors.push(String(event.message)), true);
  addEventListener("securitypolicyviolation", (event) => errors.push("forbidden: " + event.blockedURI));
  const look = () => {
    document.querySelectorAll("details").forEach((each) => { each.open = true; });
    const seen = {errors, width: innerWidth, content: document.documentElement.scrollWidth, outside: [], numbers: {}, marks: {}};
    const shown = (element) => getComputedStyle(element).display !== "none" && element.getClientRects().length > 0;
    for (const element of document.querySelectorAll("body *")) {
      if (!shown(element) || element.closest("svg") || element.id === "tip") continue;
      const box = element.getBoundingClientRect();
      const name = element.tagName + "." + element.className + " " + element.textContent.slice(0, 40);
      if (box.left < -1 || box.right > innerWidth + 1) seen.outside.push(name);
      const cuts = getComputedStyle(element).overflowX !== "visible" && !element.matches(".on-map, .on-strip");
      if (cuts && element.scrollWidth > element.clientWidth + 1) seen.outside.push("cut off: " + name);
    }
    for (const element of document.querySelectorAll("data")) {
      const name = element.dataset.name || "";
      (seen.numbers[name] = seen.numbers[name] || []).push(Number(element.value));
    }
    const dots = (path) => ((path && path.getAttribute("d")) || "").split("M").length - 1;
    for (const kind of ["replay", "eager", "capture"])
      seen.marks["time " + kind] = dots(document.querySelector("#time .dots." + kind));
    seen.marks["pairs"] = document.querySelectorAll("#pairs .pair").length;
    seen.marks["interval"] = document.querySelectorAll("#interval .whisker").length;
    seen.marks["evaluations"] = dots(document.querySelector("#loss .dots.evaluation"));
    seen.marks["loss points"] = ((document.querySelector("#loss path.raw") || {getAttribute: () => ""}).getAttribute("d")
      .match(/[ML]/g) || []).length;
    seen.marks["buffers"] = document.querySelectorAll("#map rect").length;
    seen.marks["runs"] = document.querySelectorAll("#strips rect[class^=run-]").length;
    seen.marks["kinds"] = document.querySelectorAll("#graph > table tbody tr").length;
    seen.marks["segments"] = document.querySelectorAll("#graph details tbody tr").length;
    seen.marks["floors"] = document.querySelectorAll("#graph > table .bar b").length;
    seen.marks["settings"] = document.querySelectorAll("#configuration tr").length;
    const tip = document.getElementById("tip");
    const point = (element) => {
      if (!element) return null;
      const box = element.getBoundingClientRect();
      element.dispatchEvent(new PointerEvent("pointermove",
        {bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + box.height / 2}));
      return tip.hidden ? "" : tip.textContent;
    };
    seen.tip = [point(document.querySelector("#map rect")), point(document.querySelector("#loss .area"))];
    seen.scripts = document.scripts.length;
    seen.images = document.querySelectorAll("img, iframe, object, embed, a[href]").length;
    seen.hacked = window.hacked === undefined ? null : String(window.hacked);
    seen.headline = (document.querySelector(".headline") || {textContent: ""}).textContent;
    seen.title = document.title;
    parent.postMessage(JSON.stringify(seen), "*");
  };
  addEventListener("load", () => setTimeout(look, 50));
})();
</script>)";

/// Around the page: a window cannot be as narrow as a telephone, a frame can.
constexpr const char* frame = R"(<!doctype html><body style="margin: 0"><script>
addEventListener("message", (event) => {
  const result = document.createElement("pre");
  result.id = "probe";
  result.textContent = event.data.replace(/[<>&]/g, (c) => "\\u00" + c.charCodeAt(0).toString(16));
  document.body.append(result);
});
</script><iframe src="page.html" style="border: 0; height: 1800px; width: )";

std::string quoted(const std::string& text) { return "'" + text + "'"; }

}  // namespace

Browser::Browser() {
  std::string candidates = "chromium chromium-browser google-chrome";
  if (const char* const named = std::getenv("ENCORE_TEST_BROWSER")) candidates = quoted(named);
  FILE* const pipe =
      ::popen(("for b in " + candidates + "; do command -v \"$b\" && break; done 2>/dev/null").c_str(), "r");
  if (pipe != nullptr) {
    for (int character = 0; (character = std::fgetc(pipe)) != EOF && character != '\n';)
      program_ += static_cast<char>(character);
    ::pclose(pipe);
  }
  if (program_.empty()) missing_ = "no Chromium here: scripts/setup tests installs it";
}

Browser::Output Browser::open(const std::string& page) const {
  const TemporaryFolder folder;
  // Without a sandbox, which containers and root cannot have; the page is our own.
  const std::string command =
      "HOME=" + quoted(folder.path().string()) + " timeout 100 " + quoted(program_) +
      " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars" +
      " --disable-background-networking --disable-extensions --enable-logging=stderr --log-level=0" +
      " --user-data-dir=" + quoted((folder / "profile").string()) +
      " --window-size=1400,2000 --virtual-time-budget=3000 --dump-dom " + quoted("file://" + page) + " >" +
      quoted((folder / "document").string()) + " 2>" + quoted((folder / "log").string());
  const int status = std::system(command.c_str());
  Output output{read_bytes(folder / "document"), read_bytes(folder / "log")};
  INFO("the browser says: ", output.log);
  REQUIRE(status == 0);
  return output;
}

std::string Browser::console(const std::string& page) const {
  std::string said;
  for (const std::string& line : lines_of(open(page).log))
    if (line.find("CONSOLE") != std::string::npos) said += line + '\n';
  return said;
}

nlohmann::json Browser::look(const std::string& page, int width) const {
  const TemporaryFolder folder;
  std::string text = read_bytes(page);
  const std::string head = "<head>";
  const std::size_t place = text.find(head);
  REQUIRE(place != std::string::npos);
  text.insert(place + head.size(), probe);
  write_bytes(folder / "page.html", text);
  write_bytes(folder / "frame.html", frame + std::to_string(width) + "px\"></iframe>");
  const std::string document = open((folder / "frame.html").string()).document;
  const std::string begin = "<pre id=\"probe\">";
  const std::size_t first = document.find(begin);
  REQUIRE_MESSAGE(first != std::string::npos, document.substr(0, 2000));
  const std::size_t end = document.find("</pre>", first);
  return nlohmann::json::parse(document.substr(first + begin.size(), end - first - begin.size()));
}
