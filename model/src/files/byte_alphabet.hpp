// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace encore::model {

/// Byte-level vocabularies spell each byte as a printable character: bytes that print in Latin-1 as themselves, the
/// others as U+0100 and following. Source: bytes_to_unicode of GPT-2, https://github.com/openai/gpt-2, src/encoder.py
char32_t letter_of_byte(unsigned char byte) noexcept;

/// The bytes that a spelling stands for; empty if one of its characters stands for none.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

}  // namespace encore::model
