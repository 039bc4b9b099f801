// SPDX-License-Identifier: Apache-2.0
// A Kokkos tool for KOKKOS_TOOLS_LIBS that writes each event as a line of the file that ENCORE_TEST_TOOL_LOG names. It
// includes nothing of Kokkos: the interface is the names of these functions. It asks for no setting, so Kokkos fences
// before each call, as it does for most tools.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* file = nullptr;
std::uint64_t kernels = 0;

}  // namespace

extern "C" {

void kokkosp_init_library(int, std::uint64_t, std::uint32_t, void*) {
  const char* const name = std::getenv("ENCORE_TEST_TOOL_LOG");
  if (name != nullptr) file = std::fopen(name, "w");
  if (file == nullptr) std::abort();
}

void kokkosp_finalize_library() {
  std::fputs("end\n", file);
  std::fclose(file);
}

void kokkosp_push_profile_region(const char* name) { std::fprintf(file, "push %s\n", name); }
void kokkosp_pop_profile_region() { std::fputs("pop\n", file); }

void kokkosp_begin_parallel_for(const char* name, std::uint32_t, std::uint64_t* kernel) {
  *kernel = ++kernels;
  std::fprintf(file, "kernel %" PRIu64 " %s\n", *kernel, name);
}
void kokkosp_end_parallel_for(std::uint64_t kernel) { std::fprintf(file, "over %" PRIu64 "\n", kernel); }

struct SpaceName {
  char name[64];
};
void kokkosp_begin_deep_copy(SpaceName, const char* name, const void*, SpaceName, const char*, const void*,
                             std::uint64_t) {
  std::fprintf(file, "copy %s\n", name);
}
void kokkosp_end_deep_copy() { std::fputs("copied\n", file); }
}
