// SPDX-License-Identifier: Apache-2.0
#include "job_folder.hpp"

#include <encore/backend/error.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace encore::backend::impl {

namespace {

[[noreturn]] void refuse(const std::filesystem::path& folder, const std::string& why) {
  throw OutputFileError("the folder '" + folder.string() + "' by which ranks find each other " + why);
}

constexpr const char* remedy = ": remove it, or set ENCORE_RENDEZVOUS to a folder of your own";

struct stat status_of(const std::filesystem::path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0)
    refuse(folder, "cannot be looked at: " + std::system_category().message(errno));
  if (!S_ISDIR(status.st_mode)) refuse(folder, "is a link or a file" + std::string(remedy));
  return status;
}

}  // namespace

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (const auto above = folder.parent_path(); !above.empty())
    std::filesystem::create_directories(above, error);
  if (!error && ::mkdir(folder.c_str(), S_IRWXU) != 0) {
    const int reason = errno;
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) error = {reason, std::system_category()};
  }
  if (error) refuse(folder, "cannot be made: " + error.message());
}

void make_real_folder(const std::filesystem::path& folder) {
  make_folder(folder);
  (void)status_of(folder);
}

void make_private_folder(const std::filesystem::path& folder) {
  make_folder(folder);
  const struct stat status = status_of(folder);
  if (status.st_uid != ::geteuid()) refuse(folder, "belongs to another user" + std::string(remedy));
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    refuse(folder, "can be written to by other users" + std::string(remedy));
}

std::filesystem::path temporary_folder(const EnvironmentLookup& lookup) {
  // Those of POSIX and of std::filesystem::temp_directory_path().
  for (const char* const name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    const auto value = lookup(name);
    if (!value || value->empty()) continue;
    std::error_code error;
    if (!std::filesystem::is_directory(*value, error))
      throw ConfigurationError("the environment variable " + std::string(name) + " is '" + *value +
                               "', which is no folder: set it to one for temporary files, or unset it");
    return std::filesystem::absolute(*value);
  }
  return "/tmp";
}

}  // namespace encore::backend::impl
