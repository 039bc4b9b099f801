# SPDX-License-Identifier: Apache-2.0
#
# encore_embed_text(<target> <file> <function>)
#
# Links the bytes of <file> into <target> as `std::string_view <function>() noexcept`, <function> being a
# qualified name such as encore::model::embedded_text. The source is written at build time, whenever the file
# changes.
# Run as a script (cmake -D input= -D output= -D function= -P EmbedText.cmake) this file writes that source.

if(CMAKE_SCRIPT_MODE_FILE)
  string(REGEX MATCH "^(.*)::([A-Za-z0-9_]+)$" matched "${function}")
  if(NOT matched)
    message(FATAL_ERROR "encore_embed_text: '${function}' must be a function name inside a namespace")
  endif()
  set(function_namespace "${CMAKE_MATCH_1}")
  set(function_name "${CMAKE_MATCH_2}")
  get_filename_component(input_name "${input}" NAME)
  file(READ "${input}" bytes HEX)
  # 32 bytes a line, then each byte as a character literal: no byte value needs an exception.
  string(REPEAT "[0-9a-f]" 64 line_pattern)
  string(REGEX REPLACE "(${line_pattern})" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  file(WRITE "${output}.new"
    "// Written by cmake/EmbedText.cmake from ${input_name}: do not edit.\n"
    "#include <string_view>\n\n"
    "namespace ${function_namespace} {\n"
    "namespace {\n"
    "constexpr char bytes[] = {\n${bytes}'\\0'};\n"
    "}  // namespace\n\n"
    "std::string_view ${function_name}() noexcept;\n"
    "std::string_view ${function_name}() noexcept { return {bytes, sizeof(bytes) - 1}; }\n"
    "}  // namespace ${function_namespace}\n")
  file(RENAME "${output}.new" "${output}")
  return()
endif()

set(ENCORE_EMBED_TEXT_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")

function(encore_embed_text target file function)
  get_filename_component(input "${file}" ABSOLUTE)
  get_filename_component(stem "${file}" NAME_WE)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/embedded_${stem}.cpp")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" -D "input=${input}" -D "output=${output}" -D "function=${function}" -P
            "${ENCORE_EMBED_TEXT_SCRIPT}"
    DEPENDS "${input}" "${ENCORE_EMBED_TEXT_SCRIPT}"
    COMMENT "Embedding ${stem}"
    VERBATIM)
  target_sources(${target} PRIVATE "${output}")
endfunction()
