/* The makers of the peers' module; each exists where its library was found. */
#ifndef NMLP_BENCH_PEERS_H
#define NMLP_BENCH_PEERS_H

#include "bench/peer.h"
#include "chain.h"

nmlp_status nmlp_peer_openblas(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_err *err);
nmlp_status nmlp_peer_onednn_f32(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_err *err);
nmlp_status nmlp_peer_onednn_bf16(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_err *err);

#endif
