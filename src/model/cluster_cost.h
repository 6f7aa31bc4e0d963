/* Time of one token where nodes share a model by tensor parallelism: what each must read, how often they wait for each
 * other, and what travels. Arithmetic alone; a machine's numbers come from the user or from a measurement.
 *
 * A node reads its share of the weights and of the KV cache at `read_gbs`. All send to all at the same time, so that a
 * gather takes `latency_us` whatever P is; a node receives at `gbit` what the others have. Small sums are gathers of
 * all values; those of more than NMLP_GROUP_SMALL_SUM values take two steps, and each value passes twice. */
#ifndef NMLP_MODEL_CLUSTER_COST_H
#define NMLP_MODEL_CLUSTER_COST_H

#include "base/status.h"
#include "checkpoint/config.h"

typedef struct nmlp_cluster_spec {
    int64_t nodes;
    double latency_us; /* of one message between two nodes */
    double gbit;       /* of the network, each way, in 10^9 bits a second */
    double read_gbs;   /* of a node's memory, 10^9 bytes a second */
    double bits;       /* of a weight; 16 unless said */
} nmlp_cluster_spec;

/* From "nodes=8,latency_us=30,gbit=10,read_gbs=100[,bits=16]". */
nmlp_status nmlp_cluster_spec_parse(nmlp_cluster_spec *spec, const char *text, nmlp_err *err);

/* How the MLPs are shared; attention is shared by heads and the head by rows of the vocabulary in each of them. */
typedef enum nmlp_cluster_split {
    NMLP_CLUSTER_SPLIT_DENSE,      /* dense matrices by columns and rows (Megatron): 2 sums a layer */
    NMLP_CLUSTER_SPLIT_REPLICATED, /* A: factors on the side of the hidden state whole in every node: 2 sums */
    NMLP_CLUSTER_SPLIT_ALL,        /* B: every factor split; gather of 2r, sum of r, gather of H: 4 waits */
    NMLP_CLUSTER_SPLIT_SLICES,     /* S: each node's slice has factors of its own (compress --shards): 2 sums */
    NMLP_CLUSTER_SPLIT_COUNT
} nmlp_cluster_split;

const char *nmlp_cluster_split_name(nmlp_cluster_split split);
/* NMLP_CLUSTER_SPLIT_COUNT: there is none of that name. */
nmlp_cluster_split nmlp_cluster_split_find(const char *name);

/* Ranks of a layer's MLP; 0: that matrix is dense. */
typedef struct nmlp_cluster_mlp {
    int64_t gate, up, down;
    bool shared;       /* gate and up have one v */
    int64_t slices;    /* each of which has these ranks; 0: whole matrices have them */
    double dense_bits; /* of a weight of the dense split, where factors are multiplied out for it; 0: as the others */
} nmlp_cluster_mlp;

typedef struct nmlp_cluster_time {
    double ms; /* of one token: the sum of the next three */
    double read_ms, wait_ms, wire_ms;
} nmlp_cluster_time;

/* Of one layer (attention and MLP) of a model without experts on `nodes` of the cluster, `tokens` in the cache. */
nmlp_cluster_time nmlp_cluster_layer_time(const nmlp_cluster_spec *spec, int64_t nodes, const nmlp_config *config,
                                          const nmlp_cluster_mlp *mlp, nmlp_cluster_split split, int64_t tokens);
/* Of the head. */
nmlp_cluster_time nmlp_cluster_head_time(const nmlp_cluster_spec *spec, int64_t nodes, const nmlp_config *config);
nmlp_cluster_time nmlp_cluster_time_add(nmlp_cluster_time a, nmlp_cluster_time b);

#endif
