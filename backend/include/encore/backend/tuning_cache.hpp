// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace encore::backend {

/// What a measurement was made with; elsewhere it says nothing.
struct TuningMachine {
  std::string device;   ///< the GPU's name
  std::string library;  ///< name and version
  friend auto operator<=>(const TuningMachine&, const TuningMachine&) = default;
};

/// The algorithm that was the fastest for a matrix product.
struct TunedProduct {
  std::string algorithm;    ///< the library's own form of it, in hexadecimal digits
  double microseconds = 0;  ///< that the product took
  friend bool operator==(const TunedProduct&, const TunedProduct&) = default;
};

/// Algorithms that were picked by measurement, so that another process takes the same ones without measuring, and
/// with them computes the same bits. Entries of other machines are kept, and are not found.
///
/// As text: a line `encore tuned products 1`, then a line for each entry with device, library, product, algorithm and
/// microseconds, separated by tabs. Nothing in a file is trusted further: whoever uses an entry has to find its
/// algorithm among those that the library offers for the product.
class TuningCache {
 public:
  /// Adds the entries of a text; where there is one already for the same machine and product, that stays. Throws
  /// InputFileError naming `source` and the line, and then adds nothing. False, with nothing added, for the format
  /// of another version.
  bool read(std::string_view text, std::string_view source);
  /// Sorted, so that equal contents give equal text.
  std::string text() const;

  /// Nullptr if there is none.
  const TunedProduct* find(const TuningMachine& machine, std::string_view product) const;
  /// Replaces what was there. Throws InternalError for names or numbers that the text could not hold.
  void add(const TuningMachine& machine, std::string_view product, const TunedProduct& tuned);

  std::size_t size() const;
  /// Entries that were measured with something else.
  std::size_t size_beside(const TuningMachine& machine) const;
  /// Grows whenever `add` changes something.
  std::size_t changes() const { return changes_; }

 private:
  std::map<TuningMachine, std::map<std::string, TunedProduct, std::less<>>> entries_;
  std::size_t changes_ = 0;
};

}  // namespace encore::backend
