// Thread priorities with which threads that plan yield to threads that answer.
#ifndef PIPELOOM_SERVICE_OS_THREAD_PRIORITY_H_
#define PIPELOOM_SERVICE_OS_THREAD_PRIORITY_H_

namespace pipeloom::service {

enum class Background {
  kRequests,  // Work for a waiting caller, such as packing or hurried plans.
  kSearch,    // Searches, which yield to kRequests, too.
};

// Lowers the priority of the calling thread and of threads that it starts. They
// give up their core at once when a thread of usual priority becomes ready, and
// get a third (kRequests) or a tenth (kSearch) of the core while a thread of
// usual priority is always busy. They do not get less, so that a busy machine
// delays plans instead of stopping them. If the kernel refuses, nothing
// changes.
//
// Such a thread must not hold a lock for long that an answer needs, nor answer
// a call itself, as it may lose its core at any time.
void MakeWayForServing(Background kind);

// Gives the calling thread and threads that it starts short slices (0.1 ms).
// With a new enough Linux, such a thread runs as soon as it is woken up, unless
// it recently had more than its share. Otherwise it could wait up to a tick of
// the kernel (4 ms) for threads of this or other programs. Its share does not
// grow. If the kernel refuses, nothing changes.
void AnswerAtOnce();

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_THREAD_PRIORITY_H_
