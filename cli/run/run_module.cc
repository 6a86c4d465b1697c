#include "cli/run/run_module.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace pipeloom::cli {

absl::StatusOr<void*> LoadModule(const std::string& file,
                                 const std::string& entry,
                                 const std::string& what,
                                 const std::string& needs) {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::string tried;
  for (const std::filesystem::path& path :
       {folder / file, folder / ".." / PIPELOOM_LIBDIR / "pipeloom" / file}) {
    if (!std::filesystem::exists(path, error)) {
      absl::StrAppend(&tried, tried.empty() ? "" : " and ", path.string());
      continue;
    }
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("the ", what, " cannot be loaded: ", dlerror()));
    }
    void* address = dlsym(module, entry.c_str());
    if (address == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          path.string(), " is not the ", what, " of this program"));
    }
    return address;
  }
  return absl::NotFoundError(absl::StrCat("there is no ", what, ": ", tried,
                                          " do not exist; build with ", needs));
}

}  // namespace pipeloom::cli
