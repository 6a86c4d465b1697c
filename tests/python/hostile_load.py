#!/usr/bin/env python3
"""Loads a service with the ranks of a training and with hostile connections at
the same time, and measures what the ranks notice.

    PIPELOOM_BINARY=build/release/cli/pipeloom tests/python/hostile_load.py

Each of --good connections fetches, every --period seconds, its rank's share of
the newest step whose plan is ready; other jobs keep searches running meanwhile.
--hostile connections are of four kinds, in equal parts:

  slow       a header whose bytes come one a second
  endless    a header that goes on as fast as the service takes it
  unread     20 calls a second, whose answers are never read
  unfinished a connection that breaks off in its handshake or preface

A hostile connection that the service ends is opened again at once, at most
twice a second. All clients speak HTTP/2 by hand: a Python client of gRPC would
measure itself. A share's time is that from sending the call to the arrival of
its last byte at the client's socket, by the kernel's time stamp; "seen" is when
the client read it, which on this machine also waits for a core. A rank whose
share has not come when the next is due leaves that one out ("skipped").

On each core a thread of real-time priority sleeps for 2 ms again and again; a
time that it overslept is a pause of the core itself ("gaps"), as when the host
of a virtual machine gives it to another. "calm" are the shares that no such
pause overlaps. "worst" says when the slowest shares began, in seconds from the
start, and how many ms they took.
--check fails on a wrong or lost share, a killed service, a SIGTERM that takes longer than --grace, or too much memory."""
import argparse
import array
import bisect
import heapq
import json
import multiprocessing
import os
import random
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import time
import zlib

from http2_frames import (ACK, BEGIN, DATA, END_STREAM, GOAWAY, HEADERS, MORE,
                          PING, PREFACE, RESET, SETTINGS, call_frames, connect,
                          frame, rank_request)

MEMORY_LIMIT_MIB = 1024
REOPEN_S = 0.5
SEARCH_US = 2_000_000
UNREAD_CALLS = 20  # A second and connection.
SO_TIMESTAMPNS = 35  # Of Linux; Python has no name for it.
RUN, HOLD, END = range(3)  # Phases; in HOLD nothing is fetched any more.
SLACK_S = 5  # For a busy machine.
NAP_S, GAP_S = 0.002, 0.002
KINDS = ("slow", "endless", "unread", "unfinished")


class Rank:
    """A connection that fetches shares."""

    def __init__(self, port, rank):
        self.rank = rank
        self.sock = connect(port)
        self.sock.send(BEGIN)
        self.stream = -1
        self.buffer = b""
        self.share = None  # Bytes of the answer that arrives.
        self.step = 0
        self.began = 0.0
        self.arrived = 0.0  # When the newest bytes came.
        self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def fetch(self, job, step):
        self.stream += 2
        self.step = step
        self.share = []
        frames = call_frames(self.stream, rank_request(job, step, self.rank))
        self.began = time.clock_gettime(time.CLOCK_REALTIME)
        self.sock.send(frames)  # Small enough for any socket's buffer.

    def read(self):
        """Returns the share when it is complete; b"" for a failed call."""
        bytes_now, marks, _, _ = self.sock.recvmsg(1 << 18, 64)
        if not bytes_now:
            raise ConnectionError("the service ended a rank's connection")
        for level, kind, mark in marks:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("qq", mark[:16])
                self.arrived = seconds + nanoseconds * 1e-9
        self.buffer += bytes_now
        at = 0
        done = None
        while len(self.buffer) - at >= 9:
            size = int.from_bytes(self.buffer[at:at + 3], "big")
            if len(self.buffer) - at < 9 + size:
                break
            kind, flags = self.buffer[at + 3], self.buffer[at + 4]
            stream = int.from_bytes(self.buffer[at + 5:at + 9], "big")
            payload = self.buffer[at + 9:at + 9 + size]
            at += 9 + size
            if kind == SETTINGS and not flags & ACK:
                self.sock.send(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self.sock.send(frame(PING, ACK, 0, payload))
            elif kind == GOAWAY:
                raise ConnectionError("GOAWAY to a rank")
            elif stream == self.stream and self.share is not None:
                if kind == DATA:
                    self.share.append(payload)
                if kind == RESET:
                    self.share = []
                if kind == RESET or flags & END_STREAM:
                    done = b"".join(self.share)
                    self.share = None
        self.buffer = self.buffer[at:]
        return done


def raise_descriptors():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_ranks(count, ranks, seed, period, port, ready, phase, pipe):
    """One process of ranks."""
    raise_descriptors()
    rng = random.Random(seed)
    watch = selectors.DefaultSelector()
    due = []
    for i in range(count):
        rank = Rank(port, i % ranks)
        watch.register(rank.sock, selectors.EVENT_READ, rank)
        heapq.heappush(
            due, (time.perf_counter() + 1 + period * rng.random(), i, rank))
    pipe.send("connected")
    times, seen, begins = (array.array("d") for _ in range(3))
    errors = {}
    sums = {}
    skipped = 0

    def failed(reason):
        errors[reason] = errors.get(reason, 0) + 1

    while phase.value == RUN:
        now = time.perf_counter()
        while due and due[0][0] <= now:
            at, i, rank = heapq.heappop(due)
            heapq.heappush(due, (max(at + period, now), i, rank))
            if rank.share is not None:
                skipped += 1
                continue
            try:
                rank.fetch("ranks", ready.value)
            except OSError as error:
                failed(f"send: {error}")
            now = time.perf_counter()
        for key, _ in watch.select(max(0, min(due[0][0] - now, 0.2))):
            rank = key.data
            try:
                share = rank.read()
            except BlockingIOError:
                continue
            except OSError as error:
                failed(str(error))
                watch.unregister(rank.sock)
                rank.sock.close()
                due = [entry for entry in due if entry[2] is not rank]
                heapq.heapify(due)
                continue
            if share is None:
                continue
            times.append(rank.arrived - rank.began)
            begins.append(rank.began)
            seen.append(time.clock_gettime(time.CLOCK_REALTIME) - rank.began)
            if len(share) < 50:
                failed("a call without a share")
                continue
            check = zlib.crc32(share)
            if sums.setdefault((rank.step, rank.rank), check) != check:
                failed("two ranks got different shares")
    pipe.send((times.tobytes(), seen.tobytes(), begins.tobytes(), errors, sums,
               skipped))
    while phase.value != END:
        time.sleep(0.05)


def run_probe(core, phase, pipe):
    """Notes when a core did not run."""
    os.sched_setaffinity(0, {core})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
        real_time = True
    except PermissionError:
        real_time = False
    gaps = []
    while phase.value == RUN:
        began = time.clock_gettime(time.CLOCK_REALTIME)
        time.sleep(NAP_S)
        ended = time.clock_gettime(time.CLOCK_REALTIME)
        if ended - began > NAP_S + GAP_S:
            gaps.append((began + NAP_S, ended))
    pipe.send((real_time, gaps))


def calm_times(begins, times, gaps):
    """The times of shares that no gap overlaps."""
    edges = sorted(gaps)
    ends, latest = [], 0.0
    for gap in edges:
        latest = max(latest, gap[1])
        ends.append(latest)
    calm = []
    for began, took in zip(begins, times):
        before = bisect.bisect_left(edges, (began + took,))
        if not before or ends[before - 1] <= began:
            calm.append(took)
    return calm


class Attacker:
    """A hostile connection, which is opened anew when it was ended."""

    def __init__(self, kind, number, port, ready, watch):
        self.kind, self.number, self.port = kind, number, port
        self.ready, self.watch = ready, watch
        self.sock = None
        self.opened = 0
        self.backlog = b""
        self.stream = 1

    def open(self):
        self.sock = connect(self.port, wait=False)
        self.opened += 1
        self.backlog = self.first()
        self.rest = select.EPOLLRDHUP | (0 if self.kind == "unread" else
                                         select.EPOLLIN)
        self.watch.register(self.sock, self.rest | select.EPOLLOUT)

    def first(self):
        if self.kind == "slow":
            return BEGIN + frame(HEADERS, 0, 1, bytes(1000))[:9]
        if self.kind == "endless":
            return BEGIN + frame(HEADERS, 0, 1, b"\x83\x86")
        if self.kind == "unread":
            self.stream = 1
            return BEGIN
        return (b"", PREFACE[:12], b"\x16\x03\x01\x02\x00\x01\x00",
                PREFACE + b"\x00\x00")[self.number % 4]

    def close(self):
        self.watch.unregister(self.sock)
        self.sock.close()
        self.sock = None

    def happened(self, events):
        """Raises OSError if the connection ended."""
        if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            raise ConnectionError("ended")
        if events & select.EPOLLIN:
            self.sock.recv(65536)
        if not events & select.EPOLLOUT:
            return
        if self.kind == "endless" and not self.backlog:
            self.backlog = 50 * frame(MORE, 0, 1, b"\0\1x\1y")
        if self.backlog:
            self.backlog = self.backlog[self.sock.send(self.backlog):]
        if not self.backlog and self.kind != "endless":
            self.watch.modify(self.sock, self.rest)

    def trickle(self):
        """Sends what is due every second."""
        if self.sock is None or self.backlog:
            return
        if self.kind == "slow":
            self.sock.send(b"\0")
        if self.kind == "unread":
            request = rank_request("ranks", self.ready.value, 0)
            self.backlog = b"".join(
                call_frames(self.stream + 2 * i, request)
                for i in range(UNREAD_CALLS))
            self.stream += 2 * UNREAD_CALLS
            self.backlog = self.backlog[self.sock.send(self.backlog):]
            if self.backlog:
                self.watch.modify(self.sock, self.rest | select.EPOLLOUT)


def run_attackers(count, kinds, port, ready, phase, pipe):
    """The process of the hostile connections."""
    raise_descriptors()
    watch = select.epoll()
    attackers = [Attacker(kinds[i % len(kinds)], i // len(kinds), port, ready,
                          watch)
                 for i in range(count)]
    by_socket = {}
    due = [(time.monotonic() + i * 0.002, i) for i in range(len(attackers))]
    next_trickle = 0
    turn = 0
    most = 0

    def over(attacker):
        if attacker.sock is not None:
            by_socket.pop(attacker.sock.fileno(), None)
            attacker.close()
        heapq.heappush(due, (time.monotonic() + REOPEN_S,
                             attackers.index(attacker)))

    while phase.value != END:
        now = time.monotonic()
        while due and due[0][0] <= now:
            attacker = attackers[heapq.heappop(due)[1]]
            try:
                attacker.open()
                by_socket[attacker.sock.fileno()] = attacker
            except OSError:
                over(attacker)
        if now >= next_trickle:  # One of ten parts has its turn.
            next_trickle = now + 0.1
            turn = (turn + 1) % 10
            for attacker in attackers[turn::10]:
                try:
                    attacker.trickle()
                except BlockingIOError:
                    pass
                except OSError:
                    over(attacker)
        most = max(most, len(by_socket))
        for number, events in watch.poll(0.05):
            attacker = by_socket.get(number)
            try:
                if attacker is not None:
                    attacker.happened(events)
            except BlockingIOError:
                pass
            except OSError:
                over(attacker)
    opened = {kind: sum(a.opened for a in attackers if a.kind == kind)
              for kind in kinds}
    pipe.send((opened, most))


def percentile(values, part):
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0


def sample_batch(batch, count, seed, images):
    rng = random.Random(seed)
    for _ in range(count):
        sample = batch.samples.add(text_tokens=rng.randrange(200, 4000))
        if images:
            sample.images.add(width_px=448, height_px=448)


def search_job(messages, name, deadline_us):
    """A shipped job whose searches take so long."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "../../workloads/jobs", name + ".json")
    with open(path, encoding="utf-8") as file:
        job = json_format.ParseDict(json.load(file), messages.Job(),
                                    ignore_unknown_fields=True)
    job.search.deadline_us = deadline_us
    return job


class Steps:
    """Submits steps of the ranks' job and keeps the other jobs searching."""

    def __init__(self, caller, messages, options):
        self.caller, self.messages = caller, messages
        self.samples = options.samples
        self.next = {"ranks": 0, "search-0": 0, "search-1": 0}
        self.fetched = {"search-0": 0, "search-1": 0}
        self.search_ranks = 0
        self.ranks = 0
        for job in self.next:
            request = messages.OpenJobRequest(job_id=job)
            if job == "ranks":
                request.shipped_job = options.job
            else:
                request.job.CopyFrom(
                    search_job(messages, options.search_job, SEARCH_US))
            sample_batch(request.sample, 64, 0, job != "ranks")
            opened = caller.call("OpenJob", request, 60.0)
            if job == "ranks":
                self.ranks = opened.num_ranks
            else:
                self.search_ranks = opened.num_ranks

    def submit(self, job):
        step = self.next[job]
        self.next[job] += 1
        request = self.messages.SubmitBatchRequest(job_id=job, step=step)
        sample_batch(request.batch, self.samples, step, job != "ranks")
        self.caller.call("SubmitBatch", request, 20.0)
        return step

    def fetch_searched(self):
        """Fetches the searched plans, which are kept until all ranks did."""
        jobs = self.messages.ListJobsResponse.FromString(
            self.caller.raw("ListJobs", b"", 20.0)).jobs
        for info in jobs:
            if info.job_id not in self.fetched:
                continue
            # Those before the queued ones and the one that is searched. A call
            # for a later one would hurry its search.
            while self.fetched[info.job_id] <= info.newest_step - info.queued - 2:
                for rank in range(self.search_ranks):
                    self.caller.raw(
                        "GetRankPlan",
                        rank_request(info.job_id, self.fetched[info.job_id],
                                     rank), 20.0)
                self.fetched[info.job_id] += 1

    def make_ready(self):
        """Returns the next step when its plan is ready."""
        self.fetch_searched()
        for job in self.next:
            # These always have a step that waits.
            if job != "ranks" and self.next[job] < self.next["ranks"] + 8:
                self.submit(job)
        step = self.submit("ranks")
        share = self.caller.raw("GetRankPlan", rank_request("ranks", step, 0),
                                60.0)
        return step, len(share)


def measure(options):
    context = multiprocessing.get_context("spawn")
    options.cores = os.sched_getaffinity(0)
    cores = sorted(options.cores)
    half = len(cores) // 2
    if options.apart and half:
        os.sched_setaffinity(0, cores[:half])
    server = Server("--grace", f"{options.grace}s", *options.serve)
    if options.apart and half:
        os.sched_setaffinity(0, cores[half:])
    processes = []
    try:
        return measure_with(options, context, server, processes)
    finally:
        for process in processes:
            process.kill()
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        server.process.stdout.close()


def measure_with(options, context, server, processes):
    steps = Steps(Caller(server.target), messages, options)
    step, share_bytes = steps.make_ready()
    ready = context.Value("q", step, lock=False)
    phase = context.Value("b", RUN, lock=False)

    def start(run, *arguments):
        mine, theirs = context.Pipe()
        process = context.Process(target=run, args=(
            *arguments, server.port, ready, phase, theirs))
        process.start()
        processes.append(process)
        return mine

    share = options.good // options.processes
    counts = [share] * options.processes
    counts[0] += options.good - sum(counts)
    ranks = [start(run_ranks, count, steps.ranks, i, options.period)
             for i, count in enumerate(counts)]
    for pipe in ranks:
        pipe.recv()
    attackers = start(run_attackers, options.hostile, options.kinds.split(","))
    probes = []
    for core in sorted(options.cores):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=run_probe,
                                         args=(core, phase, theirs)))
        processes[-1].start()
        probes.append(mine)
    start_time = time.clock_gettime(time.CLOCK_REALTIME)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        ready.value = steps.make_ready()[0]
        time.sleep(1)
    phase.value = HOLD
    found = [pipe.recv() for pipe in ranks]
    watched = [pipe.recv() for pipe in probes]
    result = {"share_bytes": share_bytes, "steps": steps.next["ranks"],
              "searched": sum(steps.next.values()) - steps.next["ranks"],
              "rss_mib": round(server.rss_mib(peak=True))}
    # All are still connected.
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    result["exit_code"] = server.process.wait(options.grace + 60)
    result["sigterm_s"] = round(time.monotonic() - began, 2)
    phase.value = END
    result["opened"], result["hostile_at_once"] = attackers.recv()
    times, seen, begins = (array.array("d") for _ in range(3))
    errors, sums = {}, {}
    for some, later, when, mine, checks, _ in found:
        times.frombytes(some)
        seen.frombytes(later)
        begins.frombytes(when)
        for reason, count in mine.items():
            errors[reason] = errors.get(reason, 0) + count
        for key, check in checks.items():
            if sums.setdefault(key, check) != check:
                errors["shares differ"] = errors.get("shares differ", 0) + 1
    result.update({
        "shares": len(times),
        "skipped": sum(entry[-1] for entry in found),
        "errors": errors})
    gaps = [gap for found_gaps in watched for gap in found_gaps[1]]
    result["gaps"] = {
        "real_time": all(real_time for real_time, _ in watched),
        "count": len(gaps),
        "sum_s": round(sum(end - begin for begin, end in gaps), 2),
        "longest": [[round(begin - start_time, 2),
                     round(1000 * (end - begin), 1)]
                    for begin, end in sorted(
                        gaps, key=lambda gap: gap[0] - gap[1])[:5]]}
    slow = sorted(zip(times, begins), reverse=True)
    result["worst"] = []
    for took, began in slow[:2000]:  # One of each second.
        if len(result["worst"]) < 8 and all(
                abs(began - start_time - at) > 1
                for at, _ in result["worst"]):
            result["worst"].append([round(began - start_time, 2),
                                    round(1000 * took, 1)])
    calm = calm_times(begins, times, gaps)
    result["calm"] = len(calm)
    for prefix, values in (("", sorted(times)), ("seen_", sorted(seen)),
                           ("calm_", sorted(calm))):
        result.update({
            f"{prefix}p{name}_ms": round(1000 * percentile(values, part), 2)
            for name, part in (("50", 0.5), ("90", 0.9), ("99", 0.99),
                               ("99.9", 0.999), ("100", 1.0))})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--good", type=int, default=1500)
    parser.add_argument("--hostile", type=int, default=500)
    parser.add_argument("--kinds", default=",".join(KINDS),
                        help="of hostile connections")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--period", type=float, default=1.0,
                        help="seconds from a rank's share to its next")
    parser.add_argument("--job", default="llama3-70b", help="of the ranks")
    parser.add_argument("--search-job", default="dip-vlm-l")
    parser.add_argument("--samples", type=int, default=256, help="of a batch")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--apart", action="store_true",
                        help="the service on the first half of the cores, the "
                        "clients on the others, as if on other machines")
    parser.add_argument("--grace", type=int, default=10)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--memory-limit", type=float, metavar="MIB",
                        default=MEMORY_LIMIT_MIB, help="for --check")
    parser.add_argument("serve", nargs="*", help="options of the service")
    options = parser.parse_args()
    unknown = set(options.kinds.split(",")) - set(KINDS)
    if unknown:
        parser.error(f"--kinds {min(unknown)}: not one of {', '.join(KINDS)}")
    raise_descriptors()
    result = measure(options)
    print(json.dumps(result, indent=1))
    if not options.check:
        return 0
    wrong = (result["errors"] or result["exit_code"] != 0 or
             not result["shares"] or
             result["sigterm_s"] > options.grace + SLACK_S or
             result["rss_mib"] > options.memory_limit)
    return 1 if wrong else 0


if __name__ == "__main__":
    from google.protobuf import json_format
    from real_service import HAVE_ALL, Caller, Server
    if not HAVE_ALL:
        print("skipped: grpcio or the service is missing")
        sys.exit(0)
    from pipeloom import messages
    sys.exit(main())
