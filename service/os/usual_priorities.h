// Turns service/os/thread_priority.h off.
#ifndef PIPELOOM_SERVICE_OS_USUAL_PRIORITIES_H_
#define PIPELOOM_SERVICE_OS_USUAL_PRIORITIES_H_

namespace pipeloom::service {

// From now on, all threads of this process that start to serve, search or pack
// keep the priority and slices they have. For a kernel or a container whose
// own rules are better; before the server starts.
void UseUsualPriorities();

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_USUAL_PRIORITIES_H_
