// SPDX-License-Identifier: Apache-2.0
#include "safetensors_header.hpp"

#include <fmt/format.h>

#include <encore/backend/error.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "strict_json.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

/// Where the parser stands: the object it is in, or the value it waits for.
enum class Place {
  before_header,
  header,          ///< in the outer object, a key comes next
  metadata_value,  ///< `__metadata__` was read, its object comes next
  metadata,        ///< in the metadata object
  tensor_value,    ///< a tensor's name was read, its object comes next
  tensor,          ///< in a tensor's object, a key comes next
  type,            ///< "dtype" was read, its string comes next
  shape_value,     ///< "shape" was read, its array comes next
  shape,           ///< in the shape array
  range_value,     ///< "data_offsets" was read, its array comes next
  range,           ///< in the data_offsets array
  after_header
};

class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderParser(SafetensorsHeader& header, const std::string& file) : header_(header), file_(file) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t value) override {
    return unexpected(fmt::format("the number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("the number {}", in_quotes(text)));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    // A rank above this cannot be meant, and each extent costs memory.
    constexpr std::size_t most_extents = 64;
    if (place_ == Place::shape) {
      if (tensor().shape.size() == most_extents)
        fail(fmt::format("tensor {} has more than {} extents", in_quotes(tensor().name), most_extents));
      tensor().shape.push_back(value);
      return true;
    }
    if (place_ == Place::range) {
      if (tensor().range.size() == 2) fail_range();
      tensor().range.push_back(value);
      return true;
    }
    return unexpected(fmt::format("the number {}", value));
  }

  bool string(string_t& text) override {
    if (place_ == Place::type) {
      tensor().type = std::move(text);
      place_ = Place::tensor;
      return true;
    }
    if (place_ == Place::metadata) {
      header_.metadata[metadata_key_] = std::move(text);
      return true;
    }
    return unexpected(fmt::format("the string {}", in_quotes(text)));
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::before_header: place_ = Place::header; return true;
      case Place::metadata_value: place_ = Place::metadata; return true;
      case Place::tensor_value:
        place_ = Place::tensor;
        fields_.clear();
        return true;
      default: return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::header:
        if (!names_.insert(name).second) fail(fmt::format("the name {} occurs twice", in_quotes(name)));
        if (name == "__metadata__") {
          place_ = Place::metadata_value;
        } else {
          header_.tensors.push_back({.name = std::move(name), .type = {}, .shape = {}, .range = {}});
          place_ = Place::tensor_value;
        }
        return true;
      case Place::metadata:
        if (header_.metadata.contains(name))
          fail(fmt::format("the metadata entry {} occurs twice", in_quotes(name)));
        metadata_key_ = std::move(name);
        return true;
      case Place::tensor: return tensor_key(name);
      default: return unexpected(fmt::format("the key {}", in_quotes(name)));
    }
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const std::string_view field : {"dtype", "shape", "data_offsets"})
        if (!fields_.contains(field))
          fail(fmt::format("tensor {} has no {}", in_quotes(tensor().name), field));
      place_ = Place::header;
    } else if (place_ == Place::metadata) {
      place_ = Place::header;
    } else {
      place_ = Place::after_header;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::shape_value) {
      place_ = Place::shape;
      return true;
    }
    if (place_ == Place::range_value) {
      place_ = Place::range;
      return true;
    }
    return unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::range && tensor().range.size() != 2) fail_range();
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    fail(fmt::format("it is not valid JSON near byte {}: {}", position, json_error_text(error)));
  }

 private:
  TensorDescription& tensor() { return header_.tensors.back(); }

  bool tensor_key(const std::string& name) {
    if (!fields_.insert(name).second)
      fail(fmt::format("tensor {} has {} twice", in_quotes(tensor().name), in_quotes(name)));
    if (name == "dtype") {
      place_ = Place::type;
    } else if (name == "shape") {
      place_ = Place::shape_value;
    } else if (name == "data_offsets") {
      place_ = Place::range_value;
    } else {
      fail(fmt::format("tensor {} has the unknown field {}", in_quotes(tensor().name), in_quotes(name)));
    }
    return true;
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw InputFileError(fmt::format("the safetensors header of {} cannot be used: {}", file_, reason));
  }

  [[noreturn]] void fail_range() {
    fail(fmt::format("data_offsets of tensor {} is not a pair of numbers", in_quotes(tensor().name)));
  }

  bool unexpected(const std::string& what) {
    switch (place_) {
      case Place::before_header: fail(fmt::format("it is {}, not an object", what));
      case Place::metadata_value: fail(fmt::format("__metadata__ is {}, not an object", what));
      case Place::metadata:
        fail(fmt::format("the metadata entry {} is {}, not a string", in_quotes(metadata_key_), what));
      case Place::tensor_value:
        fail(fmt::format("tensor {} is {}, not an object", in_quotes(tensor().name), what));
      case Place::type:
        fail(fmt::format("dtype of tensor {} is {}, not a string", in_quotes(tensor().name), what));
      case Place::shape_value:
        fail(fmt::format("shape of tensor {} is {}, not an array", in_quotes(tensor().name), what));
      case Place::shape:
        fail(fmt::format("shape of tensor {} holds {}, not a whole number from 0 on",
                         in_quotes(tensor().name), what));
      case Place::range_value:
      case Place::range: fail_range();
      default: fail(fmt::format("{} stands where a name is expected", what));
    }
  }

  SafetensorsHeader& header_;
  const std::string& file_;
  Place place_ = Place::before_header;
  std::set<std::string, std::less<>> names_;
  std::set<std::string, std::less<>> fields_;
  std::string metadata_key_;  ///< the last key in the metadata object
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file) {
  SafetensorsHeader header;
  HeaderParser parser(header, file);
  nlohmann::json::sax_parse(json.begin(), json.end(), &parser);
  return header;
}

}  // namespace encore::model
