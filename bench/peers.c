/* The module `neuronmlp bench mlp --peers` opens: what other libraries it was built with. */
#include "peers.h"

__attribute__((visibility("default"))) extern const nmlp_peer_maker nmlp_peer_makers[];

const nmlp_peer_maker nmlp_peer_makers[] = {
#if defined(NMLP_BENCH_OPENBLAS)
    {"openblas", nmlp_peer_openblas},
#endif
#if defined(NMLP_BENCH_ONEDNN)
    {"onednn-f32", nmlp_peer_onednn_f32},
    {"onednn-bf16", nmlp_peer_onednn_bf16},
#endif
    {0},
};
