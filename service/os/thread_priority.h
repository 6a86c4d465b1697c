// Threads that plan make way for threads that answer.
#ifndef PIPELOOM_SERVICE_OS_THREAD_PRIORITY_H_
#define PIPELOOM_SERVICE_OS_THREAD_PRIORITY_H_

namespace pipeloom::service {

enum class Background {
  kRequests,  // Work for a caller who waits: packing, plans that are hurried.
  kSearch,    // Makes way for that, too.
};

// The calling thread, and threads that it starts, give up their core at once
// when a thread of usual priority becomes ready, and get a third (kRequests) or
// a tenth of it beside one that is always busy. Not less, so that a busy
// machine delays plans instead of stopping them. Where the kernel refuses,
// nothing changes.
//
// Such a thread must not hold a lock for long that an answer needs, nor answer
// a call itself: it may lose its core in the middle.
void MakeWayForServing(Background kind);

// The calling thread, and threads that it starts, get short slices (0.1 ms):
// where Linux is new enough, it runs as soon as it is woken up, unless it had
// more than its share of late, also beside threads of other programs, for which
// it would wait up to a tick of the kernel (4 ms) else. It gets no larger share
// by that. Where the kernel refuses, nothing changes.
void AnswerAtOnce();

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_THREAD_PRIORITY_H_
