# kvasir_wire.py - control streams by hand: frames and protobuf fields as bytes, so that a test can send what no honest process sends.
# SPDX-License-Identifier: Apache-2.0
import socket
import struct
import time

HELLO, CALL, ITEM, END, ACK, NACK, CANCEL, CREDIT, PAUSE, RESUME, PING, PONG, GOAWAY = range(1, 14)
GENERATE, PREFILL, FETCH, TOKENS, ABORT, HEALTH, MODEL_INFO, LINK, REGISTER, LOAD, DRAIN = range(1, 12)
ROUTER, PREFILL_ROLE, DECODE_ROLE, BOTH, CLIENT = range(1, 6)
KVS_REQ_INVALID, KVS_REQ_TOO_LONG, KVS_PEER_PROTOCOL = 100, 101, 302


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def num(field, v):
    return varint(field << 3) + varint(v)


def fixed64(field, v):
    return varint(field << 3 | 1) + struct.pack("<Q", v & (1 << 64) - 1)


def real(field, v):
    return varint(field << 3 | 5) + struct.pack("<f", v)


def data(field, v):
    v = v.encode() if isinstance(v, str) else v
    return varint(field << 3 | 2) + varint(len(v)) + v


def packed(field, numbers):
    return data(field, b"".join(varint(n) for n in numbers))


def fields(message):
    """[(field, value)] of a message: numbers, floats as 4 bytes, bytes."""
    out, at = [], 0

    def read():
        nonlocal at
        v = shift = 0
        while True:
            b = message[at]
            at += 1
            v |= (b & 127) << shift
            shift += 7
            if b < 128:
                return v
    while at < len(message):
        key = read()
        n = {0: None, 1: 8, 2: None, 5: 4}[key & 7]
        if key & 7 == 0:
            value = read()
        else:
            n = read() if n is None else n
            value = message[at:at + n]
            at += n
            value = struct.unpack("<Q", value)[0] if key & 7 == 1 else value
        out.append((key >> 3, value))
    return out


def frame(kind, stream, payload=b"", length=None, flags=0, zero=0):
    return struct.pack("<IBBHI", len(payload) if length is None else length, kind, flags, zero, stream) + payload


def hello(id="stranger", epoch=77, role=CLIENT, fingerprint=b"", numerics="", low=1, high=1):
    return (num(1, low) + num(2, high) + data(3, id) + fixed64(4, epoch) + num(5, role) + data(6, fingerprint) + data(7, numerics)
            + data(9, b"\0" * 16) + num(12, 1))


def call(method, body=b"", ms=0):
    return num(1, method) + num(2, ms) + data(3, "trace") + data(4, body)


def generate(request=1, attempt=1, choice=0, tokens=(1, 403, 407), prompt_count=None, first=0, n=4, sampling=(0, 1, 0, 0, 0), stop=(2,), place=1,
             prefill="", model="m"):
    t, top_p, min_p, top_k, seed = sampling
    s = real(1, t) + real(2, top_p) + real(3, min_p) + num(4, top_k) + fixed64(5, seed)
    return (fixed64(1, request) + num(2, attempt) + num(3, choice) + packed(4, tokens)
            + num(5, len(tokens) if prompt_count is None else prompt_count) + num(6, first) + num(7, n) + data(8, s) + packed(9, stop)
            + num(17, place) + data(18, prefill) + data(19, model))


def prefill(tokens=(1, 2, 3), blocks=(0,), groups=(0,)):
    return (fixed64(1, 1) + fixed64(2, 5) + fixed64(3, 6) + fixed64(4, 7) + packed(5, tokens) + packed(6, blocks) + packed(7, groups) + num(8, 1))


def link(near_ok=0, address=None, check=0):
    return num(1, near_ok) + num(2, 1) + (data(3, address) + fixed64(4, check) if address is not None else b"")


class Control:
    """One control stream."""

    def __init__(self, url, **hello_fields):
        path = url[len("ipc://"):]
        for _ in range(100):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(5)
            try:
                self.sock.connect(path)
                break
            except BlockingIOError:  # the listener's queue is full
                self.sock.close()
                time.sleep(0.05)
        self.rest, self.stream = b"", 1
        if hello_fields:
            self.send(frame(HELLO, 0, hello(**hello_fields)))

    def send(self, octets):
        try:
            self.sock.sendall(octets)
        except OSError:
            pass  # it was closed: what came before says why

    def call(self, method, body=b"", ms=0):
        stream = self.stream
        self.stream += 2
        self.send(frame(CALL, stream, call(method, body, ms)))
        return stream

    def next(self, seconds):
        """(kind, stream, payload); None when nothing came in time; False at the end. PINGs are answered."""
        end = time.monotonic() + seconds
        while True:
            while len(self.rest) >= 12:
                n, kind, _, _, stream = struct.unpack("<IBBHI", self.rest[:12])
                if len(self.rest) < 12 + n:
                    break
                payload, self.rest = self.rest[12:12 + n], self.rest[12 + n:]
                if kind != PING:
                    return kind, stream, payload
                self.send(frame(PONG, 0, payload))
            self.sock.settimeout(max(0.001, end - time.monotonic()))
            try:
                more = self.sock.recv(65536)
            except socket.timeout:
                return None
            except OSError:
                return False
            if not more:
                return False
            self.rest += more

    def all(self, seconds=0.3):
        """What comes until it is quiet for so long, or until the end."""
        out = []
        while frame_ := self.next(seconds):
            out.append(frame_)
        return out

    def end_of(self, stream, seconds=60):
        """Status and text of the END (or of the GOAWAY) that answers a call."""
        while frame_ := self.next(seconds):
            kind, of, payload = frame_
            if kind == GOAWAY or (kind == END and of == stream):
                f = dict(fields(payload))
                return f.get(1, 0), f.get(2, b"").decode()
        raise AssertionError("no END")

    def close(self):
        self.sock.close()
