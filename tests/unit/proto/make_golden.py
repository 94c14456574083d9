#!/usr/bin/env python3
"""make_golden.py - writes golden.h: the messages of wire_samples.c as Python's protobuf library writes them.

Run it after a change of proto/kvasir.proto:  python3 -m grpc_tools.protoc -I../../../proto --python_out=. kvasir.proto
then: python3 make_golden.py > golden.h        (packages protobuf and grpcio-tools)
The values here and in wire_samples.c are written twice on purpose: each side is the other's witness.
SPDX-License-Identifier: Apache-2.0
"""
import kvasir_pb2 as k

U32, U64, I32 = 2**32 - 1, 2**64 - 1, 2**31 - 1
card = k.MemberCard(
    id="w" * 63, role=k.ROLE_BOTH, epoch=U64, control_url="ipc:///c", http_url="http://h", model="m", fingerprint=bytes(range(32)),
    numerics="n", layout="l", kv_types="k=f16,v=f16", rope="r", block_tokens=64, context=2048, vocab=49152, protocol_min=1,
    protocol_max=U32, groups=[k.GroupInfo(page_bytes=U64, pages=U32), k.GroupInfo(page_bytes=1, pages=2)], draining=True, pid=77)
samples = dict(
    hello=k.Hello(protocol_min=1, protocol_max=U32, id="prefill-0", epoch=U64, role=k.ROLE_PREFILL, fingerprint=bytes(range(1, 33)),
                  numerics="x86", auth="key", boot_id=bytes(range(16)), pid_namespace=4026531836, uid=1000, pid=U32,
                  probe_address=2**47 - 1, probe_value=2**63),
    call=k.Call(method=k.METHOD_DRAIN, remaining_ms=U32, trace_id="t\u00fc", body=b"\x00\xff"),
    generate=k.GenerateRequest(
        request_id=0x1122334455667788, attempt=2, choice=1, token_ids=[1, 300, 2, I32], prompt_token_count=3, first_index=1,
        max_tokens=16, sampling=k.SamplingParams(temperature=0.5, top_p=0.25, min_p=0.125, top_k=40, seed=U64), stop_token_ids=[2, 0],
        ignore_eos=True, return_logits=True, adapter="ad", tenant="t\u00fc", cache_salt="sa", trace_id="tr", priority=-(2**31),
        placement=k.PLACEMENT_REMOTE, prefill_worker="prefill-0", model="smollm2", prompt="\u4f60\u597d"),
    tokens=k.TokenBatch(entries=[
        k.TokenEntry(request_id=5, attempt=1, choice=3, index=9, token_id=42, logit=1.5, logprob=-0.5, placed=k.Placed(
            mode=k.PLACEMENT_REMOTE, prefill_worker="p", transport="shm", cached_tokens=1, local_prefill_tokens=2, pages=12,
            bytes=U64, transfer_us=3, prefill_us=4, queue_us=5, exposed_us=6)),
        k.TokenEntry(request_id=5, attempt=1, index=1, token_id=-1, finish_reason=k.FINISH_REASON_ERROR, error=300, text="gone")]),
    prefill=k.PrefillRequest(request_id=1, xfer=2, sink_epoch=3, nonce=U64, token_ids=[9, 8, 0], want_blocks=[0, 0, 200, U32],
                             want_groups=[0, 1, 1, 0xffff], return_logits=True, adapter="a", tenant="t", cache_salt="s", priority=I32),
    end=k.End(status=301, text="quiet", pages_sent=1, prefill_tokens=2, cached_tokens=3, chunks=4, prefill_us=U64),
    nack=k.Nack(missing_blocks=[7, U32], missing_groups=[2, 0xffff]),
    abort=k.AbortRequest(request_id=U64, attempt=U32, keep=True),
    set_role=k.RoleRequest(role=k.ROLE_BOTH),
    pause=k.SequenceRef(request_id=9),
    link=k.LinkRequest(near_ok=True, generation=3, address=b"\x01\x00\x02", address_check=U64 - 1),
    card=card,
    members=k.MemberList(members=[k.Member(change=k.MEMBER_CHANGE_PUT, card=card),
                                  k.Member(change=k.MEMBER_CHANGE_GONE, card=k.MemberCard(id="x", epoch=4)),
                                  k.Member(change=k.MEMBER_CHANGE_SNAPSHOT_END)]),
    load=k.Load(sequence=U64, running=1, waiting=2, outstanding_tokens=3,
                pools=[k.PagePool(total=100, free=1, cached=2, held=3, fenced=94), k.PagePool(total=1)],
                peers=[k.PeerLink(id="decode-0", transport="shm", latency_s=0.5, byte_s=1e-9, samples=7)], draining=True, metrics="a 1\n",
                speed=k.Speed(prefill_fixed_s=0.25, prefill_token_s=1e-3, prefill_pair_s=1e-9, prefill_samples=4, step_fixed_s=0.125,
                              step_sequence_s=2e-3, step_context_s=3e-6, step_samples=U32),
                prefill_left=U64 - 1, context_tokens=4096, decoding=5, chunk_tokens=128, role=k.ROLE_PREFILL),
    cache_events=k.CacheEvents(first_sequence=U64, snapshot_begin=True, snapshot_end=True, hashes=bytes(range(48)), depths=[1, 0, U32]),
    cache_digest=k.CacheDigest(epoch=U64 - 2, hashes=bytes(range(100, 132)), blocks=[300, U32]),
    health=k.HealthCheckResponse(ready=True, epoch=8, text="ok"),
    model_info_piece=k.GetModelInfoResponse(offset=3, total=32 << 20, data=b"GGUF"),
    chunk=k.GenerateResponse(choice=1, token_ids=[5, 6], text=" \u00e9", finish_reason=k.FINISH_REASON_LENGTH, prompt_tokens=7,
                             completion_tokens=8, cached_tokens=9),
)
print("/* golden.h - written by make_golden.py with Python's protobuf library; do not edit.\n * SPDX-License-Identifier: Apache-2.0 */")
for name, message in samples.items():
    data = message.SerializeToString(deterministic=True)
    print(f"static const unsigned char golden_{name}[] = {{")
    for i in range(0, len(data), 20):
        print("    " + " ".join(f"0x{b:02x}," for b in data[i:i + 20]))
    print("};")
