// SPDX-License-Identifier: Apache-2.0
// A tool for NVTX_INJECTION64_PATH that writes each domain and range as a line of the file that ENCORE_TEST_TOOL_LOG
// names.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* file = nullptr;

nvtxDomainHandle_t create_domain(const char* name) {
  std::fprintf(file, "domain %s\n", name);
  return reinterpret_cast<nvtxDomainHandle_t>(&file);  // Any address but null.
}
int push_range(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
  std::fprintf(file, "push %s\n", range->message.ascii);
  return 0;
}
int pop_range(nvtxDomainHandle_t) {
  std::fputs("pop\n", file);
  std::fflush(file);  // Nothing tells a tool of the process' end.
  return 0;
}

template <class Function>
void set(NvtxFunctionTable table, unsigned index, unsigned size, Function function) {
  if (index < size) *table[index] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t export_table) {
  const char* const name = std::getenv("ENCORE_TEST_TOOL_LOG");
  if (name != nullptr) file = std::fopen(name, "w");
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (file == nullptr || callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
    return 0;
  set(table, NVTX_CBID_CORE2_DomainCreateA, size, create_domain);
  set(table, NVTX_CBID_CORE2_DomainRangePushEx, size, push_range);
  set(table, NVTX_CBID_CORE2_DomainRangePop, size, pop_range);
  return 1;
}
