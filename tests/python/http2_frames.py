"""Calls of the planner service in HTTP/2 by hand, for clients that must cost less
than the Python client of gRPC: frames, a call, and its connection."""
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHOD = "/pipeloom.v1.PlannerService/GetRankPlan"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, UPDATE, MORE = (0, 1, 3, 4, 6, 7,
                                                              8, 9)
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(
        ">BBI", kind, flags, stream) + payload


# Streams may get 2^31 - 1 bytes, and so may the connection.
BEGIN = (PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0x7fffffff)) +
         frame(UPDATE, 0, 0, struct.pack(">I", 0x7fffffff - 65535)))


def call_frames(stream, request):
    """The frames of a call with one request."""
    def text(value):
        return bytes([len(value)]) + value.encode()
    headers = (b"\x83\x86" + b"\x04" + text(METHOD) + b"\x01" +
               text("localhost") + b"\0" + text("content-type") +
               text("application/grpc") + b"\0" + text("te") + text("trailers"))
    message = struct.pack(">BI", 0, len(request)) + request
    return (frame(HEADERS, END_HEADERS, stream, headers) +
            frame(DATA, END_STREAM, stream, message))


def rank_request(job, step, rank):
    """The bytes of a GetRankPlanRequest, without the Python package."""
    def number(value):
        out = b""
        while value > 127:
            out += bytes([value & 127 | 128])
            value >>= 7
        return out + bytes([value])
    request = b"\x0a" + number(len(job)) + job.encode()
    if step:
        request += b"\x10" + number(step)
    if rank:
        request += b"\x20" + number(rank)
    return request


def connect(port, wait=True):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(wait)
    try:
        sock.connect(("127.0.0.1", port))
    except BlockingIOError:
        pass
    sock.setblocking(False)
    return sock
