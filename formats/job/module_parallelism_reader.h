// Reader of the modules' own sizes of a parallel layout, in job and partition
// files:
//
//     "modules": [{"module": "vision_encoder", "tp": 1}]
#ifndef PIPELOOM_FORMATS_JOB_MODULE_PARALLELISM_READER_H_
#define PIPELOOM_FORMATS_JOB_MODULE_PARALLELISM_READER_H_

#include <vector>

#include "formats/text/object_reader.h"
#include "ir/job/job_spec.h"

namespace pipeloom::formats {

// Reads field "modules" of the reader's object, which may be absent.
// ValidateJobSpec checks that modules exist and sizes divide the job's.
inline void ReadModuleParallelism(ObjectReader& reader,
                                  std::vector<ModuleParallelism>* modules) {
  reader.ReadObjects("modules", [&](ObjectReader& r) {
    ModuleParallelism& own = modules->emplace_back();
    r.Require("module");
    r.Read("module", &own.module);
    r.Read("tp", 0, 65536, &own.tp);
    r.Read("cp", 0, 65536, &own.cp);
    r.Read("repeats", &own.repeats);
  });
}

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_MODULE_PARALLELISM_READER_H_
