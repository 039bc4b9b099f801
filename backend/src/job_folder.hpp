// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/process_rank.hpp>

#include <filesystem>

namespace encore::backend::impl {

/// Makes the folder, for this user alone, and those above it where they are missing. Throws OutputFileError.
void make_folder(const std::filesystem::path& folder);
/// The same; a link in its place is refused, whoever has put it there.
void make_real_folder(const std::filesystem::path& folder);
/// The same; so is a folder that is another user's, or into which others may write.
void make_private_folder(const std::filesystem::path& folder);

/// The one for temporary files. Throws ConfigurationError, naming the variable that says where, when it is no folder.
std::filesystem::path temporary_folder(const EnvironmentLookup& lookup);

}  // namespace encore::backend::impl
