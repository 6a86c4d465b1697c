// A switch that turns service/os/thread_priority.h off.
#ifndef PIPELOOM_SERVICE_OS_USUAL_PRIORITIES_H_
#define PIPELOOM_SERVICE_OS_USUAL_PRIORITIES_H_

namespace pipeloom::service {

// Makes all threads of this process that start to serve, search or pack keep
// the priority and slices that they have, for kernels or containers whose own
// rules are better. Call it before the server starts.
void UseUsualPriorities();

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_USUAL_PRIORITIES_H_
