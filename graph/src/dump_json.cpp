// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/dump.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <set>

namespace encore::graph {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view format_name = "encore dump";
constexpr std::int64_t format_version = 1;

Json json_of(const DumpedBuffer& buffer) {
  Json json{{"name", buffer.name},
            {"type", buffer.type},
            {"kind", buffer.kind},
            {"shape", buffer.shape},
            {"bytes", buffer.bytes}};
  if (!buffer.part_of.empty()) json["part_of"] = buffer.part_of;
  if (!buffer.part_of.empty()) json["part_offset"] = buffer.part_offset;
  if (buffer.arena_offset) {
    json["arena_offset"] = *buffer.arena_offset;
    json["first_segment"] = buffer.first_segment;
    json["last_segment"] = buffer.last_segment;
  }
  return json;
}

Json json_of(const DumpedSegment& segment) {
  Json json{{"name", segment.name},
            {"module", segment.module},
            {"phase", segment.phase},
            {"layer", segment.layer},
            {"microbatch", segment.microbatch},
            {"reads", segment.reads},
            {"writes", segment.writes},
            {"read_bytes", segment.read_bytes},
            {"written_bytes", segment.written_bytes},
            {"kernels", segment.kernels}};
  if (!segment.eager_because.empty()) json["eager_because"] = segment.eager_because;
  return json;
}

Json json_of(const DumpedRun& run) {
  return {{"name", run.name},
          {"captured", run.captured},
          {"first_segment", run.first_segment},
          {"last_segment", run.last_segment},
          {"segments", run.segments},
          {"kernels", run.kernels}};
}

template <class Entry>
Json list_of(const std::vector<Entry>& entries) {
  Json list = Json::array();
  for (const Entry& entry : entries) list.push_back(json_of(entry));
  return list;
}

/// An object of a file, with its place for errors.
class Reader {
 public:
  Reader(const Json& json, std::string_view source, std::string place)
      : json_(json), source_(source), place_(std::move(place)) {
    if (!json.is_object()) refuse("an object should stand there");
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw InputFileError(fmt::format("'{}' is no dump that can be read: {}: {}", source_, place_, what));
  }

  bool has(const char* key) const { return json_.contains(key); }

  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) refuse(fmt::format("there is no '{}'", key));
    return *found;
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) refuse(fmt::format("'{}' is no text", key));
    return value.get<std::string>();
  }
  bool truth(const char* key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) refuse(fmt::format("'{}' is neither true nor false", key));
    return value.get<bool>();
  }
  std::uint64_t count(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned()) refuse(fmt::format("'{}' is no whole number from 0 on", key));
    return value.get<std::uint64_t>();
  }
  std::int64_t whole(const char* key) const { return whole(at(key), key); }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> values;
    for (const Json& value : list(key)) {
      if (!value.is_string()) refuse(fmt::format("'{}' holds something that is no text", key));
      values.push_back(value.get<std::string>());
    }
    return values;
  }
  std::vector<std::int64_t> wholes(const char* key) const {
    std::vector<std::int64_t> values;
    for (const Json& value : list(key)) values.push_back(whole(value, key));
    return values;
  }
  const Json& list(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) refuse(fmt::format("'{}' is no list", key));
    return value;
  }

 private:
  std::int64_t whole(const Json& value, const char* key) const {
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > most))
      refuse(fmt::format("'{}' is no whole number", key));
    return value.get<std::int64_t>();
  }

  const Json& json_;
  std::string_view source_;
  std::string place_;
};

void read(const Reader& reader, DumpedBuffer& buffer) {
  buffer.type = reader.text("type");
  buffer.kind = reader.text("kind");
  buffer.shape = reader.wholes("shape");
  buffer.bytes = reader.count("bytes");
  if (reader.has("part_of")) {
    buffer.part_of = reader.text("part_of");
    buffer.part_offset = reader.count("part_offset");
  }
  if (reader.has("arena_offset")) {
    buffer.arena_offset = reader.count("arena_offset");
    buffer.first_segment = reader.text("first_segment");
    buffer.last_segment = reader.text("last_segment");
  }
}

void read(const Reader& reader, DumpedSegment& segment) {
  segment.module = reader.text("module");
  segment.phase = reader.text("phase");
  segment.layer = reader.whole("layer");
  segment.microbatch = reader.whole("microbatch");
  segment.reads = reader.texts("reads");
  segment.writes = reader.texts("writes");
  segment.read_bytes = reader.count("read_bytes");
  segment.written_bytes = reader.count("written_bytes");
  segment.kernels = reader.texts("kernels");
  if (reader.has("eager_because")) segment.eager_because = reader.text("eager_because");
}

void read(const Reader& reader, DumpedRun& run) {
  run.captured = reader.truth("captured");
  run.first_segment = reader.text("first_segment");
  run.last_segment = reader.text("last_segment");
  run.segments = reader.count("segments");
  run.kernels = reader.count("kernels");
}

template <class Entry>
void read_list(const Reader& dump, const char* key, std::string_view source, std::vector<Entry>& entries) {
  std::set<std::string> names;
  for (const Json& json : dump.list(key)) {
    const Reader reader(json, source, fmt::format("{}[{}]", key, entries.size()));
    Entry& entry = entries.emplace_back();
    entry.name = reader.text("name");
    if (!names.insert(entry.name).second) reader.refuse("its name stands twice in the list");
    read(reader, entry);
  }
}

/// The JSON library's words in one line.
std::string one_line(std::string_view text) {
  constexpr std::size_t longest = 200;
  std::string line;
  for (const char character : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(character);
    line += byte < 0x20 || byte >= 0x7f ? '?' : character;
  }
  return line;
}

}  // namespace

std::string to_json(const Dump& dump) {
  Json settings = Json::object();
  for (const auto& [key, value] : dump.settings) settings[key] = value;
  const Json json{{"format", format_name},
                  {"version", format_version},
                  {"settings", std::move(settings)},
                  {"arena_bytes", dump.arena_bytes},
                  {"buffers", list_of(dump.buffers)},
                  {"segments", list_of(dump.segments)},
                  {"runs", list_of(dump.runs)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

Dump parse_dump(std::string_view text, std::string_view source) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw InputFileError(fmt::format("'{}' is no dump that can be read: {}", source, one_line(error.what())));
  }
  const Reader reader(json, source, "the file");
  if (!reader.has("format") || reader.text("format") != format_name)
    reader.refuse(fmt::format("its format is not '{}': `encore dump --json` writes one", format_name));
  if (const std::int64_t version = reader.whole("version"); version != format_version)
    reader.refuse(fmt::format("its version is {} and not {}", version, format_version));
  Dump dump;
  const Json& settings = reader.at("settings");
  if (!settings.is_object()) reader.refuse("'settings' is no object");
  for (const auto& [key, value] : settings.items()) {
    if (!value.is_string()) reader.refuse("'settings' holds something that is no text");
    dump.settings.emplace_back(key, value.get<std::string>());
  }
  dump.arena_bytes = reader.count("arena_bytes");
  read_list(reader, "buffers", source, dump.buffers);
  read_list(reader, "segments", source, dump.segments);
  read_list(reader, "runs", source, dump.runs);
  return dump;
}

}  // namespace encore::graph
