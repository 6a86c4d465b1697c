# cmake -DOUT=build_id.cc -DVERSION=1.2.3 -DFILES=a|b -P PipeloomBuildId.cmake
# Writes the name of a build, which depends on the files' content. Does not
# touch the output if the name is unchanged.
string(REPLACE "|" ";" files "${FILES}")
set(all "")
foreach(file IN LISTS files)
  file(SHA256 "${file}" print)
  string(APPEND all "${print}")
endforeach()
string(SHA256 name "${all}")
string(SUBSTRING "${name}" 0 12 name)
file(
  CONFIGURE
  OUTPUT "${OUT}"
  CONTENT
    "#include \"cli/console/build_id.h\"

namespace pipeloom::cli {

const char kBuildLine[] = \"pipeloom build: ${VERSION}-${name}\\n\";

}  // namespace pipeloom::cli
"
  @ONLY)
